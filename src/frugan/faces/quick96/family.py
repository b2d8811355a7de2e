"""Quick96: SAEHD's df-ud at 96 pixels, with fixed losses and samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from frugan.contract.family import Dimension, NoObjective
from frugan.contract.phase import Phase
from frugan.faces.data.face import FaceType, SampleSettings
from frugan.faces.data.needs import FaceNeeds
from frugan.faces.quick96.config import OPTION_NAMES, Quick96Networks, option_words
from frugan.faces.quick96.phases import phases
from frugan.faces.saehd.autoencoder import AutoencoderFamily, autoencoder, narrower_and_wider

SCALE = 1.05
"""Most of the samples' random scale: SAEHD's reaches to 1.15."""


class Quick96Family(AutoencoderFamily):
    """The family contract for Quick96. Its faces are never mirrored."""

    name = "quick96"
    networks_type = Quick96Networks
    foreign_names = OPTION_NAMES

    def build(self, networks: Quick96Networks, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """The autoencoder's four networks."""
        with torch.device(device):
            return autoencoder(networks)

    def phases(self, networks: Quick96Networks, objective: NoObjective) -> tuple[Phase, ...]:
        """One phase."""
        return phases()

    def sources(self, networks: Quick96Networks, objective: NoObjective) -> Mapping[str, FaceNeeds]:
        """Faces of the source "src" and of the destination "dst"."""
        samples = SampleSettings(
            resolution=networks.resolution,
            face_type=FaceType.from_option(networks.face_type),
            random_warp=True,
            random_flip=False,
            eyes_mouth=False,
            scale=SCALE,
        )
        return {side: FaceNeeds(samples) for side in ("src", "dst")}

    def foreign_option(self, name: str, value: str) -> Sequence[str] | None:
        """The one option of the original: batch_size=4."""
        return option_words(name, value)

    def variants(self, networks: Quick96Networks) -> Mapping[Dimension, tuple[Mapping[str, Any], ...]]:
        """Widths, smallest first; there is one resolution."""
        limits = {"ae_dims": (32, 1024), "e_dims": (16, 256), "d_dims": (16, 256), "d_mask_dims": (16, 256)}
        return {"width": narrower_and_wider(networks, limits)}

    def tiny(self) -> tuple[Quick96Networks, NoObjective]:
        """Narrower than a recipe may be, and a third of its side.

        At 96 pixels a step has 735,000 values before a leaky ReLU, one of which lies within rounding of its kink in
        every second step: the gradients of a layer then differ by a percent between any two devices.
        """
        small = {"resolution": 32, "ae_dims": 16, "e_dims": 4, "d_dims": 4, "d_mask_dims": 4}
        return Quick96Networks().model_copy(update=small), NoObjective()
