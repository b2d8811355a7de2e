"""SAEHD: DeepFaceLab's face autoencoder, with its code discriminator and its patch discriminator.

Network and parameter names are the original's; `inter_AB` and the like follow from the architecture string.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from frugan.contract.family import BufferRule, Dimension
from frugan.contract.phase import Networks, Phase
from frugan.contract.samples import SheetRequest
from frugan.data.faces.needs import FaceNeeds
from frugan.families.saehd import flows, phases, sheets
from frugan.families.saehd.code_discriminator import CodeDiscriminator
from frugan.families.saehd.config import SAEHDNetworks, SAEHDObjective
from frugan.families.saehd.decoder import Decoder
from frugan.families.saehd.encoder import Encoder, features
from frugan.families.saehd.initialise import initialise
from frugan.families.saehd.inter import Inter
from frugan.families.saehd.patch_discriminator import PatchDiscriminator
from frugan.families.saehd.variants import variants

PREVIEW_ROWS = 4


@dataclass(frozen=True)
class SAEHDFamily:
    """The family contract for SAEHD."""

    name: str = "saehd"
    networks_type: type[SAEHDNetworks] = SAEHDNetworks
    objective_type: type[SAEHDObjective] = SAEHDObjective
    optimizers: tuple[str, ...] = ("autoencoder", "code_discriminator", "patch_discriminator")

    def build(self, networks: SAEHDNetworks, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """The autoencoder's networks and both discriminators; the code discriminator for df only."""
        n, archi = networks, networks.letters
        length = features(archi, n.resolution, n.e_dims)
        code_channels = n.ae_dims if archi.kind == "df" else n.ae_dims * 2

        def inter() -> Inter:
            return Inter(archi, n.resolution, length, n.ae_dims, code_channels)

        def decoder() -> Decoder:
            return Decoder(archi, n.ae_dims if archi.kind == "df" else n.ae_dims * 4, n.d_dims, n.d_mask_dims)

        with torch.device(device):
            built: dict[str, nn.Module] = {"encoder": Encoder(archi, n.e_dims)}
            for name in flows.network_names(archi)[1:]:
                built[name] = inter() if name.startswith("inter") else decoder()
            if archi.kind == "df":
                built["code_discriminator"] = CodeDiscriminator(n.ae_dims, archi.code_side(n.resolution))
            built["patch_discriminator"] = PatchDiscriminator(n.gan_patch_size, n.gan_dims)
        return built

    def initialise(self, networks: SAEHDNetworks, built: Networks, seed: Callable[[str], int]) -> None:
        """Glorot uniform, zero biases; each network from a random stream of its own."""
        for name, network in built.items():
            device = next(network.parameters()).device
            initialise(network, torch.Generator(device).manual_seed(seed(name)))

    def phases(self, networks: SAEHDNetworks, objective: SAEHDObjective) -> tuple[Phase, ...]:
        """The autoencoder, then the discriminators that are switched on."""
        return phases.phases(networks, objective)

    @property
    def optimizer_types(self) -> Mapping[str, type[BaseModel]]:
        """The engine's own are enough."""
        return {}

    def sources(self, networks: SAEHDNetworks, objective: SAEHDObjective) -> Mapping[str, FaceNeeds]:
        """Faces of the source "src" and of the destination "dst"."""
        how = objective.effective

        def needs(*, flip: bool, hsv_power: float, colours_of: str | None) -> FaceNeeds:
            return FaceNeeds(
                resolution=networks.resolution,
                face_type=networks.face_type,
                random_warp=how.random_warp,
                random_flip=flip,
                hsv_power=hsv_power,
                colour_transfer=how.ct_mode if colours_of else "none",
                colours_of=colours_of if how.ct_mode != "none" else None,
                uniform_yaw=how.uniform_yaw,
                eyes_mouth=how.eyes_mouth_prio,
                mixed_types=how.mixed_face_types,
            )

        return {
            "src": needs(flip=how.random_src_flip, hsv_power=how.random_hsv_power, colours_of="dst"),
            "dst": needs(flip=how.random_dst_flip, hsv_power=0.0, colours_of=None),
        }

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Every scaling and residual block of the autoencoder."""
        found: dict[str, tuple[str, ...]] = {}
        for name, network in built.items():
            if isinstance(network, Encoder | Decoder):
                found[name] = network.blocks
            elif isinstance(network, Inter) and network.upscale1 is not None:
                found[name] = ("upscale1",)
        return found

    def forwards(self, networks: SAEHDNetworks) -> Mapping[str, Callable[[nn.Module, int], object]]:
        """Each network on zeros."""
        archi, side = networks.letters, networks.resolution
        built = self.build(networks, "meta")

        def on_zeros(*shape: int) -> Callable[[nn.Module, int], object]:
            def forward(network: nn.Module, samples: int) -> object:
                return network(torch.zeros(samples, *shape, device=next(network.parameters()).device))

            return forward

        code_side = archi.code_side(side)
        found: dict[str, Callable[[nn.Module, int], object]] = {}
        for name, network in built.items():
            if isinstance(network, Inter):
                found[name] = on_zeros(network.dense1.in_features)
            elif isinstance(network, Decoder):
                found[name] = on_zeros(networks.ae_dims * (1 if archi.kind == "df" else 4), code_side, code_side)
            elif isinstance(network, CodeDiscriminator):
                found[name] = on_zeros(networks.ae_dims, code_side, code_side)
            else:
                found[name] = on_zeros(3, side, side)
        return found

    def averaged(self) -> Mapping[str, BufferRule]:
        """None: the original trains without an average."""
        return {}

    def sample(self, networks: SAEHDNetworks, built: Networks, request: SheetRequest) -> Tensor:
        """What the networks make of the request's faces."""
        return sheets.sample(networks.letters, networks.face_type, built, request)

    def snapshots(self, networks: SAEHDNetworks) -> Mapping[str, SheetRequest]:
        """The preview, and the same through the masks."""
        rows, titles = PREVIEW_ROWS, sheets.COLUMNS
        return {
            "preview": SheetRequest(rows=rows, columns=len(titles), titles=titles),
            "preview-masked": SheetRequest(rows=rows, columns=len(titles), titles=titles, masked=True),
        }

    def fresh_after(self, before: SAEHDObjective, now: SAEHDObjective) -> tuple[str, ...]:
        """After pretraining the bottleneck forgets the many people, as in the original."""
        return ("inter", "inter_AB", "inter_B") if before.pretrain and not now.pretrain else ()

    def variants(self, networks: SAEHDNetworks) -> Mapping[Dimension, tuple[Mapping[str, object], ...]]:
        """By resolution, or by all four widths."""
        return variants(networks)

    def tiny(self) -> tuple[SAEHDNetworks, SAEHDObjective]:
        """64 pixels, df-ud, every term on; narrower than a recipe may be."""
        networks = SAEHDNetworks.model_validate(
            {
                "archi": "df-ud",
                "resolution": 64,
                "gan_patch_size": 8,
                "gan_dims": 4,
            }
        ).model_copy(update={"ae_dims": 16, "e_dims": 4, "d_dims": 4, "d_mask_dims": 4})
        objective = SAEHDObjective(
            eyes_mouth_prio=True, true_face_power=0.01, face_style_power=1, bg_style_power=1, gan_power=0.1
        )
        return networks, objective


__all__ = ["SAEHDFamily", "SAEHDNetworks", "SAEHDObjective"]
