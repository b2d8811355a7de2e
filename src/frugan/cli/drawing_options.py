"""Options of the commands that draw from weights: what they draw with, and how much at once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class StatisticsOf(StrEnum):
    """What batch normalisation uses."""

    RUNNING = "running"
    STANDING = "standing"
    BATCH = "batch"


class NoiseOf(StrEnum):
    """What the layers of a StyleGAN2 add."""

    CONST = "const"
    RANDOM = "random"
    NONE = "none"


WeightsFrom = Annotated[Path, typer.Argument(help="run folder, checkpoint or weights file")]
Psi = Annotated[
    float, typer.Option(help="StyleGAN2: truncation; 1 as trained, nearer to 0 less variety, below 0 opposites")
]
PsiLayers = Annotated[int | None, typer.Option(help="apply --psi to this many first layers only")]
Noise = Annotated[NoiseOf, typer.Option(help="StyleGAN2: the same noise for all pictures, new for each, or none")]
StandingSize = Annotated[
    int | None, typer.Option(help="samples in each of these batches; default: training.normalisation_batch")
]
Seed = Annotated[int, typer.Option(help="random seed of the latents")]
MicroBatch = Annotated[
    int | None,
    typer.Option(help="samples per forward pass; changes memory, not the result; default: at most as in training"),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]
