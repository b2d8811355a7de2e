"""SAEHD: DeepFaceLab's face autoencoder, with its code discriminator and its patch discriminator.

Network and parameter names are the original's; `inter_AB` and the like follow from the architecture string.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from frugan.contract.family import Dimension, Family, GridRequest, Preliminary
from frugan.contract.phase import Networks, Phase
from frugan.contract.settings import DataSettings
from frugan.faces.data.face import FaceType, SampleSettings
from frugan.faces.data.faceset import Faceset
from frugan.faces.data.needs import FaceNeeds
from frugan.faces.data.sample import aligned_picture
from frugan.faces.saehd.config import (
    LEAST_RESOLUTION,
    MOST_RESOLUTION,
    PATCHES,
    PRETRAINING,
    PRETRAINING_ENDS,
    SAEHDNetworks,
    SAEHDObjective,
    nearest_patch,
    option_words,
)
from frugan.faces.saehd.networks import (
    CodeDiscriminator,
    Decoder,
    Encoder,
    Inter,
    PatchDiscriminator,
    code_of,
    decode,
    encode,
    features,
    initialise,
    network_names,
    swap_code,
)
from frugan.faces.saehd.phases import phases

EIGHTHS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
"""Widths tried, in eighths of the recipe's."""
COLUMNS = ("S", "SS", "D", "DD", "SD")
"""Source, its reconstruction, destination, its reconstruction, and the swap: the destination as the source's face."""
PREVIEW_ROWS = 4


def narrower_and_wider(networks: BaseModel, limits: Mapping[str, tuple[int, int]]) -> tuple[Mapping[str, int], ...]:
    """Widths for the planner to try instead, all scaled together, smallest first.

    Args:
        networks: a recipe's section.
        limits: field -> least and most channels.
    """
    widths: list[Mapping[str, int]] = []
    for eighths in EIGHTHS:
        wide = {name: 2 * round(getattr(networks, name) * eighths / 16) for name in limits}
        fitting = {name: min(most, max(least, wide[name])) for name, (least, most) in limits.items()}
        if fitting not in widths:
            widths.append(fitting)
    return tuple(widths)


class SAEHDFamily(Family):
    """The family contract for SAEHD. Nothing is averaged: the original trains without an average."""

    name = "saehd"
    networks_type = SAEHDNetworks
    objective_type = SAEHDObjective
    optimizers = ("autoencoder", "code_discriminator", "patch_discriminator")

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
            for name in network_names(archi)[1:]:
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
        return phases(networks, objective)

    def sources(self, networks: SAEHDNetworks, objective: SAEHDObjective) -> Mapping[str, FaceNeeds]:
        """Faces of the source "src" and of the destination "dst"."""
        how = objective.effective

        def needs(*, flip: bool, hsv_power: float, colours_of: str | None) -> FaceNeeds:
            samples = SampleSettings(
                resolution=networks.resolution,
                face_type=FaceType.from_option(networks.face_type),
                random_warp=how.random_warp,
                random_flip=flip,
                hsv_power=hsv_power,
                colour_transfer=how.ct_mode if colours_of else "none",
                eyes_mouth=how.eyes_mouth_prio,
            )
            lender = colours_of if how.ct_mode != "none" else None
            return FaceNeeds(samples, lender, uniform_yaw=how.uniform_yaw, mixed_types=how.mixed_face_types)

        return {
            "src": needs(flip=how.random_src_flip, hsv_power=how.random_hsv_power, colours_of="dst"),
            "dst": needs(flip=how.random_dst_flip, hsv_power=0.0, colours_of=None),
        }

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Every scaling and residual block of the autoencoder."""
        blocks: dict[str, tuple[str, ...]] = {}
        for name, network in built.items():
            if isinstance(network, Encoder | Decoder):
                blocks[name] = network.blocks
            elif isinstance(network, Inter) and network.upscale1 is not None:
                blocks[name] = ("upscale1",)
        return blocks

    def forwards(self, networks: SAEHDNetworks) -> Mapping[str, Callable[[nn.Module, int], object]]:
        """Each network on zeros."""
        archi, side = networks.letters, networks.resolution
        built = self.build(networks, "meta")

        def on_zeros(*shape: int) -> Callable[[nn.Module, int], object]:
            def forward(network: nn.Module, samples: int) -> object:
                return network(torch.zeros(samples, *shape, device=next(network.parameters()).device))

            return forward

        code_side = archi.code_side(side)
        runs: dict[str, Callable[[nn.Module, int], object]] = {}
        for name, network in built.items():
            if isinstance(network, Inter):
                runs[name] = on_zeros(network.dense1.in_features)
            elif isinstance(network, Decoder):
                runs[name] = on_zeros(networks.ae_dims * (1 if archi.kind == "df" else 4), code_side, code_side)
            elif isinstance(network, CodeDiscriminator):
                runs[name] = on_zeros(networks.ae_dims, code_side, code_side)
            else:
                runs[name] = on_zeros(3, side, side)
        return runs

    @torch.no_grad()
    def sample(self, networks: SAEHDNetworks, built: Networks, request: GridRequest) -> Tensor:
        """A row for each face: S, SS, D, DD, SD; or the same through the masks. [rows, 5, 3, R, R], RGB, on the host.

        Masked: S and D times their own masks, DD times its made mask, SD times the made mask that the merger uses: both
        sides' masks multiplied, and the swap's alone for whole heads.

        Raises:
            ValueError: the request holds no faces.
        """
        if not request.pictures:
            raise ValueError("a preview of faces needs pictures of src and dst")
        archi = networks.letters
        device = next(built["encoder"].parameters()).device
        src, dst = request.pictures["src"], request.pictures["dst"]
        rows = []
        for first in range(0, len(src["target"]), request.micro_batch):
            here = slice(first, first + request.micro_batch)
            s, d = src["target"][here].to(device), dst["target"][here].to(device)
            vectors = encode(built, s)
            ss, _ = decode(archi, built, code_of(archi, built, vectors, "src"), "src")
            vectors = encode(built, d)
            dd, dd_mask = decode(archi, built, code_of(archi, built, vectors, "dst"), "dst")
            sd, sd_mask = decode(archi, built, swap_code(archi, built, vectors), "src")
            if request.masked:
                s_mask, d_mask = src["mask"][here].to(device), dst["mask"][here].to(device)
                merged = sd_mask if networks.face_type == "head" else sd_mask * dd_mask
                s, d, dd, sd = s * s_mask, d * d_mask, dd * dd_mask, sd * merged
            rows.append(torch.stack([s, ss, d, dd, sd], 1).float().cpu())  # [n, 5, 3, R, R]
        return torch.cat(rows).flip(2).clamp(0, 1) * 2 - 1  # BGR to RGB

    @torch.no_grad()
    def transformed(
        self, networks: SAEHDNetworks, built: Networks, sources: Mapping[str, Faceset], count: int, micro_batch: int
    ) -> Iterator[tuple[str, Tensor]]:
        """Swapped faces: the first ones of the destination, by their names, as they lie in their pictures."""
        archi, faces = networks.letters, sources["dst"]
        settings = self.sources(networks, SAEHDObjective())["dst"].samples
        device = next(built["encoder"].parameters()).device
        for first in range(0, min(count, len(faces)), micro_batch):
            here = range(first, min(first + micro_batch, count, len(faces)))
            pictures = [aligned_picture(faces.faces[at], faces.picture(at), settings) for at in here]
            batch = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous().to(device)  # [n, 3, R, R]
            swapped, _ = decode(archi, built, swap_code(archi, built, encode(built, batch)), "src")
            for at, picture in zip(here, swapped.float().cpu().flip(1).clamp(0, 1) * 2 - 1, strict=True):
                face = faces.faces[at]
                yield "-".join([*([face.person] if face.person else []), PurePath(face.name).stem]), picture

    def snapshots(self, networks: SAEHDNetworks) -> Mapping[str, GridRequest]:
        """The preview, and the same through the masks."""
        rows, titles = PREVIEW_ROWS, COLUMNS
        return {
            "preview": GridRequest(rows=rows, columns=len(titles), titles=titles),
            "preview-masked": GridRequest(rows=rows, columns=len(titles), titles=titles, masked=True),
        }

    def foreign_option(self, name: str, value: str) -> Sequence[str] | None:
        """Options of the original under its names, such as batch_size=8 and lr_dropout=y."""
        return option_words(name, value)

    def preliminary(self, objective: SAEHDObjective, data: DataSettings) -> Preliminary | None:
        """Pretraining, which the original calls so too."""
        if not objective.pretrain:
            return None
        faces = f"from {data.pretrain} (data.pretrain)"
        if data.pretrain is None:
            faces = (
                "from --data; that should hold many people, and not the two of a swap (or name it: data.pretrain=PATH)"
            )
        overruled = {f"objective.{name}": value for name, value in PRETRAINING.items()}
        words = ", ".join(f"{name}={json.dumps(value).strip(chr(34))}" for name, value in PRETRAINING.items())
        return Preliminary(
            name="pretraining",
            overrules=overruled,
            data=data.pretrain,
            lines=(
                f"pretraining (objective.pretrain): both sides learn faces of many people, {faces}",
                f"pretraining: in force whatever else is set: {words}, no learning-rate dropout",
                f"pretraining ends by {PRETRAINING_ENDS} on resuming: the swap then begins at step 0, with a fresh "
                "bottleneck (inter)",
            ),
        )

    def fresh_after(self, before: SAEHDObjective, now: SAEHDObjective) -> tuple[str, ...]:
        """After pretraining the bottleneck forgets the many people, as in the original."""
        return ("inter", "inter_AB", "inter_B") if before.pretrain and not now.pretrain else ()

    def variants(self, networks: SAEHDNetworks) -> Mapping[Dimension, tuple[Mapping[str, Any], ...]]:
        """Resolutions of the same widths, and widths of the same resolution, smallest first."""
        multiple = networks.letters.multiple
        resolutions = range(-(-LEAST_RESOLUTION // multiple) * multiple, MOST_RESOLUTION + 1, multiple)
        limits = {"ae_dims": (32, 1024), "e_dims": (16, 256), "d_dims": (16, 256), "d_mask_dims": (16, 256)}
        return {
            "resolution": tuple(
                {"resolution": side, "gan_patch_size": nearest_patch(side // 8, side, *PATCHES)} for side in resolutions
            ),
            "width": narrower_and_wider(networks, limits),
        }

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
