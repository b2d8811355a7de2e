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
    float, typer.Option(help="StyleGAN2: 1 as trained, nearer to 0 less variety, below 0 the opposite of each")
]
PsiLayers = Annotated[int | None, typer.Option(help="of --psi: the first layers that it holds for")]
Noise = Annotated[NoiseOf, typer.Option(help="StyleGAN2: of each layer its own, another for each picture, or none")]
StandingSize = Annotated[int | None, typer.Option(help="samples in each; default: the recipe's groups")]
Seed = Annotated[int, typer.Option(help="of the latents")]
MicroBatch = Annotated[
    int | None, typer.Option(help="samples in one forward; memory, not the result; default: at most as trained")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]
