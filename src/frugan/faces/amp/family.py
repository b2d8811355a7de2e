"""AMP: DeepFaceLab's face autoencoder whose swap is a mixture of both faces, as far as one likes.

Network and parameter names are the original's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from frugan.contract.family import Dimension, GridRequest
from frugan.contract.phase import Networks, Phase
from frugan.faces.amp.config import LEFT_OUT, OPTION_NAMES, AMPNetworks, AMPObjective, option_words
from frugan.faces.amp.networks import (
    ARCHI,
    INTERS,
    MorphEncoder,
    MorphInter,
    decode,
    dst_code,
    encode,
    morphed_code,
)
from frugan.faces.amp.phases import phases
from frugan.faces.data.face import FaceType, SampleSettings
from frugan.faces.data.needs import FaceNeeds
from frugan.faces.data.swap import FaceSwap
from frugan.faces.saehd.autoencoder import PREVIEW_ROWS, SwappingFamily, narrower_and_wider, on_zeros
from frugan.faces.saehd.config import LEAST_RESOLUTION, MOST_RESOLUTION, PATCHES, nearest_patch
from frugan.faces.saehd.networks import Decoder, PatchDiscriminator

COLUMNS = ("S", "SS", "D", "DD")
"""Source, its reconstruction from its own code alone, destination and its reconstruction; then the swap at morphs."""
MORPHS = (0.25, 0.5, 0.65, 0.75, 1.0)
"""Morphs of the previews, as in the original."""
SINGLE_MORPH = 0.75
"""Morph of single swapped faces, with which DeepFaceLive begins: at 1 the decoder sees codes that it was not trained
with."""


class AMPFamily(SwappingFamily):
    """The family contract for AMP. Nothing is averaged: the original trains without an average."""

    name = "amp"
    networks_type = AMPNetworks
    objective_type = AMPObjective
    optimizers = ("autoencoder", "patch_discriminator")
    foreign_names = OPTION_NAMES
    left_out = LEFT_OUT

    def build(self, networks: AMPNetworks, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """The autoencoder's four networks and the patch discriminator."""
        n = networks
        with torch.device(device):
            return {
                "encoder": MorphEncoder(n.resolution, n.e_dims, n.ae_dims),
                **{name: MorphInter(n.resolution, n.ae_dims, n.inter_dims) for name in INTERS},
                "decoder": Decoder(ARCHI, n.inter_dims, n.d_dims, n.d_mask_dims),
                "patch_discriminator": PatchDiscriminator(n.gan_patch_size, n.gan_dims),
            }

    def phases(self, networks: AMPNetworks, objective: AMPObjective) -> tuple[Phase, ...]:
        """The autoencoder, then the patch discriminator if it is switched on."""
        return phases(networks, objective)

    def sources(self, networks: AMPNetworks, objective: AMPObjective) -> Mapping[str, FaceNeeds]:
        """Faces of the source "src" and of the destination "dst"."""

        def needs(*, flip: bool, lender: str | None) -> FaceNeeds:
            samples = SampleSettings(
                resolution=networks.resolution,
                face_type=FaceType.from_option(networks.face_type),
                random_warp=objective.random_warp,
                random_flip=flip,
                colour_transfer=objective.ct_mode if lender else "none",
                eyes_mouth=True,
            )
            return FaceNeeds(samples, lender, uniform_yaw=objective.uniform_yaw, mixed_types=objective.mixed_face_types)

        return {
            "src": needs(flip=objective.random_src_flip, lender="dst" if objective.ct_mode != "none" else None),
            "dst": needs(flip=objective.random_dst_flip, lender=None),
        }

    def forwards(self, networks: AMPNetworks) -> Mapping[str, Callable[[nn.Module, int], object]]:
        """Each network on zeros."""
        side, code_side = networks.resolution, ARCHI.code_side(networks.resolution)
        return {
            "encoder": on_zeros(3, side, side),
            **{name: on_zeros(networks.ae_dims) for name in INTERS},
            "decoder": on_zeros(networks.inter_dims, code_side, code_side),
            "patch_discriminator": on_zeros(3, side, side),
        }

    @torch.no_grad()
    def sample(self, networks: AMPNetworks, built: Networks, request: GridRequest) -> Tensor:
        """A row of COLUMNS for each face, then the swap at each of the request's morphs, or at MORPHS.

        Masked: S and D times their own masks, DD times its made mask, swaps times both made masks; whole heads times
        the swap's alone.

        Returns:
            [rows, 4 + morphs, 3, R, R], RGB, on the host.

        Raises:
            ValueError: the request holds no faces.
        """
        if not request.pictures:
            raise ValueError("a preview of faces needs pictures of src and dst")
        device = next(built["encoder"].parameters()).device
        src, dst = request.pictures["src"], request.pictures["dst"]
        rows = []
        for first in range(0, len(src["target"]), request.micro_batch):
            here = slice(first, first + request.micro_batch)
            s, d = src["target"][here].to(device), dst["target"][here].to(device)
            ss, _ = decode(built, morphed_code(built, encode(built, s), 1.0))
            vectors = encode(built, d)
            dd, dd_mask = decode(built, dst_code(built, vectors))
            swaps = []
            for morph in request.morphs or MORPHS:
                swap, mask = decode(built, morphed_code(built, vectors, morph))
                merged = mask if networks.face_type == "head" else mask * dd_mask
                swaps.append(swap * merged if request.masked else swap)
            if request.masked:
                s, d, dd = s * src["mask"][here].to(device), d * dst["mask"][here].to(device), dd * dd_mask
            rows.append(torch.stack([s, ss, d, dd, *swaps], 1).float().cpu())  # [n, 4 + morphs, 3, R, R]
        return torch.cat(rows).flip(2).clamp(0, 1) * 2 - 1  # BGR to RGB

    def face_swap(self, networks: AMPNetworks, built: Networks) -> FaceSwap:
        """Faces at SINGLE_MORPH, and the mask of the destination's own code."""

        @torch.no_grad()
        def call(faces: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            vectors = encode(built, faces)
            swapped, swap_mask = decode(built, morphed_code(built, vectors, SINGLE_MORPH))
            _, dst_mask = decode(built, dst_code(built, vectors))
            return swapped.float(), swap_mask.float(), dst_mask.float()

        return FaceSwap(networks.resolution, networks.face_type, call)

    def snapshots(self, networks: AMPNetworks) -> Mapping[str, GridRequest]:
        """The preview, and the same through the masks."""
        usual = GridRequest(rows=PREVIEW_ROWS, columns=len(COLUMNS), titles=COLUMNS).with_morphs(MORPHS)
        return {"preview": usual, "preview-masked": replace(usual, masked=True)}

    def foreign_option(self, name: str, value: str) -> Sequence[str] | None:
        """Options of the original under its names, such as batch_size=8 and lr_dropout=y."""
        return option_words(name, value)

    def variants(self, networks: AMPNetworks) -> Mapping[Dimension, tuple[Mapping[str, Any], ...]]:
        """Resolutions of the same widths, and widths of the same resolution, smallest first."""
        limits = {
            **{"ae_dims": (32, 1024), "inter_dims": (32, 2048)},
            **{"e_dims": (16, 256), "d_dims": (16, 256), "d_mask_dims": (16, 256)},
        }
        return {
            "resolution": tuple(
                {"resolution": side, "gan_patch_size": nearest_patch(side // 8, side, *PATCHES)}
                for side in range(LEAST_RESOLUTION, MOST_RESOLUTION + 1, ARCHI.multiple)
            ),
            "width": narrower_and_wider(networks, limits),
        }

    def tiny(self) -> tuple[AMPNetworks, AMPObjective]:
        """64 pixels, every term on; narrower than a recipe may be."""
        networks = AMPNetworks(resolution=64, gan_patch_size=8, gan_dims=4, d_mask_dims=16)
        narrow = {"ae_dims": 16, "inter_dims": 16, "e_dims": 4, "d_dims": 4, "d_mask_dims": 4}
        return networks.model_copy(update=narrow), AMPObjective(gan_power=0.1)
