"""`frugan prepare`."""

from pathlib import Path
from typing import Annotated

import typer

from frugan.api import prepare as prepare_set
from frugan.cli.output import Bar, say


def prepare(
    source: Annotated[Path, typer.Argument(help="folder, NVlabs zip, HDF5 file or CIFAR binary folder")],
    out: Annotated[Path, typer.Argument(help="folder to make")],
    resolution: Annotated[int, typer.Option(help="side of the square pictures in pixels")],
    resample: Annotated[str, typer.Option(help="bilinear (the original's) or lanczos (sharper)")] = "bilinear",
    allow_upscale: Annotated[bool, typer.Option(help="enlarge pictures that are smaller than the resolution")] = False,
    workers: Annotated[int, typer.Option(help="threads that decode", min=1)] = 2,
) -> None:
    """Turn pictures into a memory-mapped training set.

    Example: frugan prepare holiday-pictures/ prepared/holiday --resolution 128
    """
    if resample not in ("bilinear", "lanczos"):
        raise typer.BadParameter("expected bilinear or lanczos", param_hint="--resample")
    with Bar("preparing") as move:
        report = prepare_set(
            source,
            out,
            resolution=resolution,
            resample="lanczos" if resample == "lanczos" else "bilinear",
            allow_upscale=allow_upscale,
            workers=workers,
            progress=move,
        )
    for line in report.lines:
        say(line)
    classes = f"{len(report.class_names)} classes" if report.labelled else "no classes"
    print(f"{report.pictures:,} pictures of {resolution} pixels, {classes}: {report.path}")
    print(f"Next: frugan train RECIPE --data {report.path} --out RUN (a recipe of {resolution} pixels: frugan recipes)")
