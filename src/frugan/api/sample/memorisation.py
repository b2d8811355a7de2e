"""Does a generator repeat its training pictures? Samples beside the nearest ones."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from frugan.api.data.sources import open_real
from frugan.api.progress import Progress, Say
from frugan.api.sample.generation import DrawRequest, generating
from frugan.api.sample.opened_networks import open_networks
from frugan.api.sample.sheet_requests import check_sheet
from frugan.api.weights import Weights
from frugan.data.picture_set import PictureSet
from frugan.errors import BadInput
from frugan.metrics.nearest import nearest_pictures
from frugan.report.sheets import write_sheet

COPIED = 0.5
"""A sample nearer to a training picture than half of what is usual between two of them is worth a look."""


@dataclass(frozen=True)
class MemorisationCheck:
    """What was found.

    Attributes:
        sheet: each row a sample and the training pictures nearest to it.
        ratios: distance of each sample to the nearest one, as a share of what is usual between training pictures.
        suspicious: rows, from 1, whose ratio is below `COPIED`.
    """

    sheet: Path
    ratios: tuple[float, ...]
    suspicious: tuple[int, ...]


def check_memorisation(
    source: str | Path | Weights,
    data: str | Path | PictureSet,
    out: str | Path,
    request: DrawRequest | None = None,
    *,
    samples: int = 10,
    nearest: int = 5,
    device: str = "auto",
    say: Say = print,
    progress: Progress | None = None,
) -> MemorisationCheck:
    """Write a sheet of samples, each beside the training pictures (mirrored ones too) that are nearest to it.

    Nearest by pixels at 32 x 32: a copy shows, a change of pose or colour does not.

    Args:
        source: run, checkpoint or weights file, or what `Weights.open` made of one.
        data: what it was trained on.
        out: folder for nearest.png.
        samples, nearest: rows, and training pictures in each.

    Raises:
        BadInput: no such weights or pictures, or counts below 1.
    """
    if samples < 1 or nearest < 1:
        raise BadInput(f"--rows {samples}, --nearest {nearest}: expected at least 1")
    opened = open_networks(source, device, say)
    check_sheet(samples, 1 + nearest, opened.recipe)
    pictures = open_real(opened.recipe, data, say, progress)
    with generating(opened.recipe, opened.networks, opened.layout, request or DrawRequest()) as generator:
        drawn = torch.cat([block for block, _ in generator.draw(0, samples)])  # [samples, C, R, R]
    count = min(nearest, len(pictures))
    near = nearest_pictures(drawn, pictures, count, progress)
    beside = torch.from_numpy(np.array(pictures[near.indices.flatten().numpy()])).unflatten(0, (samples, count))
    rows = torch.cat([drawn[:, None], beside], 1)  # [samples, 1 + count, C, R, R]
    path = Path(out) / "nearest.png"
    titles = ("sample", *(f"near {number}" for number in range(1, count + 1)))
    write_sheet(rows.float().div(127.5).sub(1), path, opened.provenance, titles=titles)
    ratios = tuple(float(f"{ratio:.3f}") for ratio in near.ratios.tolist())
    suspicious = tuple(row for row, ratio in enumerate(ratios, 1) if ratio < COPIED)
    say(
        f"nearest: a sample is {min(ratios):.2f} to {max(ratios):.2f} times as far from its nearest training picture "
        "as two training pictures usually are"
        + (f"; rows {', '.join(map(str, suspicious))} look copied" if suspicious else "; none looks copied")
    )
    return MemorisationCheck(path, ratios, suspicious)
