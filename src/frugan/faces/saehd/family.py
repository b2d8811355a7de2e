"""SAEHD: DeepFaceLab's face autoencoder, with its code discriminator and its patch discriminator.

Network and parameter names are the original's; `inter_AB` and the like follow from the architecture string.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from frugan.contract.family import Dimension, Preliminary
from frugan.contract.phase import Phase
from frugan.contract.settings import DataSettings
from frugan.faces.data.as_pictures import notice_of_faces
from frugan.faces.data.face import FaceType, SampleSettings
from frugan.faces.data.needs import FaceNeeds
from frugan.faces.saehd.autoencoder import AutoencoderFamily, autoencoder, narrower_and_wider
from frugan.faces.saehd.config import (
    LEAST_RESOLUTION,
    LEFT_OUT,
    MOST_RESOLUTION,
    OPTION_NAMES,
    PATCHES,
    PRETRAINING,
    PRETRAINING_ENDS,
    SAEHDNetworks,
    SAEHDObjective,
    nearest_patch,
    option_words,
)
from frugan.faces.saehd.networks import CodeDiscriminator, PatchDiscriminator
from frugan.faces.saehd.phases import phases


class SAEHDFamily(AutoencoderFamily):
    """The family contract for SAEHD. Nothing is averaged: the original trains without an average."""

    name = "saehd"
    networks_type = SAEHDNetworks
    objective_type = SAEHDObjective
    optimizers = ("autoencoder", "code_discriminator", "patch_discriminator")
    foreign_names = OPTION_NAMES
    left_out = LEFT_OUT

    def build(self, networks: SAEHDNetworks, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """The autoencoder's networks and both discriminators; the code discriminator for df only."""
        archi = networks.letters
        with torch.device(device):
            built = autoencoder(networks)
            if archi.kind == "df":
                built["code_discriminator"] = CodeDiscriminator(networks.ae_dims, archi.code_side(networks.resolution))
            built["patch_discriminator"] = PatchDiscriminator(networks.gan_patch_size, networks.gan_dims)
        return built

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

    def foreign_option(self, name: str, value: str) -> Sequence[str] | None:
        """Options of the original under its names, such as batch_size=8 and lr_dropout=y."""
        return option_words(name, value)

    def notice(self, path: Path) -> str | None:
        """Aligned faces are told of, and a DeepFaceLab workspace is refused: no recipe is chosen for faces."""
        return notice_of_faces(path)

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
