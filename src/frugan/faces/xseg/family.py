"""XSeg: DeepFaceLab's network that finds the mask of a face, trained on labelled faces.

Nothing is computed across the batch, so that any micro-batch gives the same update.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frugan.contract.family import Dimension, Family, GridRequest, Preliminary
from frugan.contract.phase import Networks, Phase
from frugan.contract.settings import DataSettings
from frugan.faces.data.face import FaceType
from frugan.faces.data.faceset import ALIGNED, SOURCES, Faceset
from frugan.faces.xseg.config import (
    LEAST_RESOLUTION,
    MOST_RESOLUTION,
    PRETRAINING_ENDS,
    XSegNetworks,
    XSegObjective,
    option_words,
)
from frugan.faces.xseg.masking import Masker, masked_faceset
from frugan.faces.xseg.needs import XSegNeeds
from frugan.faces.xseg.networks import DIVISOR, XSeg, initialise
from frugan.faces.xseg.phases import NETWORK, phases
from frugan.faces.xseg.samples import aligned

EIGHTHS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
"""Widths tried, in eighths of the recipe's."""
PREVIEW_ROWS = 3
COLUMNS = ("given", "network", "together")
"""The face through its label, the network's mask, and the face through that; while pretraining the face, what the
network draws, and both at half strength."""
GREEN = (0.0, 1.0, 0.0)
"""Colour outside a mask, in part."""


class XSegFamily(Family):
    """The family contract for XSeg. Nothing is averaged: the original trains without an average."""

    name = "xseg"
    networks_type = XSegNetworks
    objective_type = XSegObjective

    def build(self, networks: XSegNetworks, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """The one network."""
        with torch.device(device):
            return {NETWORK: XSeg(networks.resolution, networks.base, networks.eps)}

    def initialise(self, networks: XSegNetworks, built: Networks, seed: Callable[[str], int]) -> None:
        """Glorot uniform kernels, zero biases."""
        for name, network in built.items():
            device = next(network.parameters()).device
            initialise(network, torch.Generator(device).manual_seed(seed(name)))

    def phases(self, networks: XSegNetworks, objective: XSegObjective) -> tuple[Phase, ...]:
        """One phase."""
        return phases(objective)

    def sources(self, networks: XSegNetworks, objective: XSegObjective) -> Mapping[str, XSegNeeds]:
        """Faces of all people together."""
        face_type = FaceType.from_option(networks.face_type)
        return {"faces": XSegNeeds(networks.resolution, face_type, objective.pretrain, objective.as_original)}

    def recomputable(self, built: Networks) -> dict[str, tuple[str, ...]]:
        """Every block of a convolution."""
        return {name: network.blocks for name, network in built.items() if isinstance(network, XSeg)}

    def forwards(self, networks: XSegNetworks) -> Mapping[str, Callable[[nn.Module, int], object]]:
        """The network on zeros."""
        side = networks.resolution

        def forward(network: nn.Module, samples: int) -> object:
            return network(torch.zeros(samples, 3, side, side, device=next(network.parameters()).device))

        return {NETWORK: forward}

    @torch.no_grad()
    def sample(self, networks: XSegNetworks, built: Networks, request: GridRequest) -> Tensor:
        """A row of COLUMNS for each face. [rows, 3, 3, R, R], RGB, on the host.

        Raises:
            ValueError: the request holds no faces.
        """
        if not request.pictures:
            raise ValueError("a preview of masks needs pictures of faces")
        faces, network = request.pictures["faces"], built[NETWORK]
        device, labels = next(network.parameters()).device, faces.get("mask")
        rows = []
        for first in range(0, len(faces["picture"]), request.micro_batch):
            here = slice(first, first + request.micro_batch)
            picture = faces["picture"][here].to(device)
            found = torch.sigmoid(network(picture, skips=labels is not None)).float()
            shown = found.expand(-1, 3, -1, -1)
            if labels is None:
                columns = [picture, shown, (picture + shown) / 2]
            else:
                columns = [through(picture, labels[here].to(device)), shown, through(picture, found)]
            rows.append(torch.stack(columns, 1).float().cpu())  # [n, 3, 3, R, R]
        return torch.cat(rows).flip(2).clamp(0, 1) * 2 - 1  # BGR to RGB

    @torch.no_grad()
    def transformed(
        self, networks: XSegNetworks, built: Networks, sources: Mapping[str, Faceset], count: int, micro_batch: int
    ) -> Iterator[tuple[str, Tensor]]:
        """The first faces through the masks that the network finds, by their names."""
        faces, face_type = sources["faces"], FaceType.from_option(networks.face_type)
        device = next(built[NETWORK].parameters()).device
        for first in range(0, min(count, len(faces)), micro_batch):
            here = range(first, min(first + micro_batch, count, len(faces)))
            pictures = [
                aligned(faces.faces[at], np.float32(1 / 255) * faces.picture(at), face_type, networks.resolution)
                for at in here
            ]
            batch = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous().to(device)  # [n, 3, R, R]
            masked = through(batch, torch.sigmoid(built[NETWORK](batch)).float())
            for at, picture in zip(here, masked.cpu().flip(1).clamp(0, 1) * 2 - 1, strict=True):
                face = faces.faces[at]
                yield "-".join([*([face.person] if face.person else []), PurePath(face.name).stem]), picture

    def commands_after(self, run: Path, data: Path) -> tuple[str, ...]:
        """A sheet of the masks that it finds, and masks in the faces; of a workspace in those of one side."""
        side = data / SOURCES["dst"] / ALIGNED
        faces, weights = (shlex.quote(str(path)) for path in (side if side.is_dir() else data, run))
        return (
            f"frugan masks show {faces} --out masks.png --with {weights}",
            f"frugan masks apply {faces} {weights} --out masked",
        )

    def masked(
        self,
        networks: XSegNetworks,
        built: Networks,
        source: Faceset,
        kept: Path,
        say: Callable[[str], None],
        progress: Callable[[int, int], None] | None,
    ) -> Faceset:
        """The faces with the masks that the network finds."""
        masker = Masker(built[NETWORK], networks.resolution, FaceType.from_option(networks.face_type))
        return masked_faceset(source, masker, kept, say, progress)

    def snapshots(self, networks: XSegNetworks) -> Mapping[str, GridRequest]:
        """Training samples, with their masks and those found."""
        return {"preview": GridRequest(rows=PREVIEW_ROWS, columns=len(COLUMNS), titles=COLUMNS)}

    def foreign_option(self, name: str, value: str) -> Sequence[str] | None:
        """Options of the original under its names, such as batch_size=8."""
        return option_words(name, value)

    def preliminary(self, objective: XSegObjective, data: DataSettings) -> Preliminary | None:
        """Pretraining, which the original calls so too. Network and optimizer go on after it."""
        if not objective.pretrain:
            return None
        faces = f"{data.pretrain} (data.pretrain)" if data.pretrain is not None else "--data (or data.pretrain=PATH)"
        return Preliminary(
            name="pretraining",
            overrules={},
            data=data.pretrain,
            lines=(
                f"pretraining (objective.pretrain): the network learns to draw faces in grey, from {faces}, no labels",
                f"pretraining ends by {PRETRAINING_ENDS} on resuming: masks are then learned, from step 0",
            ),
        )

    def variants(self, networks: XSegNetworks) -> Mapping[Dimension, tuple[Mapping[str, Any], ...]]:
        """Resolutions of the same width, and widths of the same resolution, smallest first."""
        bases = dict.fromkeys(min(256, max(2, round(networks.base * eighths / 8))) for eighths in EIGHTHS)
        sides = range(LEAST_RESOLUTION, MOST_RESOLUTION + 1, DIVISOR)
        return {
            "resolution": tuple({"resolution": side} for side in sides),
            "width": tuple({"base": base} for base in bases),
        }

    def tiny(self) -> tuple[XSegNetworks, XSegObjective]:
        """64 pixels, of which one is left in the middle.

        With the usual eps, maps that are nearly 0 grow a thousandfold: the last bit of a weight then moves a few steps
        of Adam 15 % apart on one processor, and no two devices could be compared.
        """
        return XSegNetworks(resolution=64, base=2, eps=1.0), XSegObjective()


def through(pictures: Tensor, masks: Tensor) -> Tensor:
    """Pictures, BGR [B, 3, R, R], half green where masks [B, 1, R, R] are 0."""
    green = torch.tensor(GREEN, device=pictures.device)[:, None, None]
    return pictures * masks + (pictures + green) / 2 * (1 - masks)
