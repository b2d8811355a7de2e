"""`frugan prepare`."""

from pathlib import Path
from typing import Annotated

import typer

from frugan.api import prepare as prepare_set
from frugan.api.faces import pack
from frugan.api.small_pictures import small_for_preparing
from frugan.cli.output import Bar, say
from frugan.errors import BadInput


def prepare(
    source: Annotated[Path, typer.Argument(help="folder, NVlabs zip, HDF5 file or CIFAR binary folder; or faces")],
    out: Annotated[Path, typer.Argument(help="folder to make; or a .pak file, for faces")],
    resolution: Annotated[int | None, typer.Option(help="side of the square pictures in pixels")] = None,
    resample: Annotated[str, typer.Option(help="bilinear (the original's) or lanczos (sharper)")] = "bilinear",
    allow_upscale: Annotated[bool, typer.Option(help="enlarge pictures that are smaller than the resolution")] = False,
    workers: Annotated[int, typer.Option(help="threads that decode", min=1)] = 2,
) -> None:
    """Turn pictures into a memory-mapped training set, or aligned faces into one faceset.pak.

    Example: frugan prepare holiday-pictures/ prepared/holiday --resolution 128

    Faces: frugan prepare workspace/data_src/aligned packed/faceset.pak (a file that DeepFaceLab reads too)
    """
    if out.suffix == ".pak":
        _pack(source, out, resolution)
        return
    if resolution is None:
        raise BadInput("--resolution is missing: the side of the square pictures in pixels, such as --resolution 128")
    if resample not in ("bilinear", "lanczos"):
        raise typer.BadParameter("expected bilinear or lanczos", param_hint="--resample")
    with Bar("preparing") as move, small_for_preparing(source, out, resolution, resample):
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


def _pack(source: Path, out: Path, resolution: int | None) -> None:
    """Pack aligned faces.

    Raises:
        BadInput: a resolution was given.
    """
    if resolution is not None:
        raise BadInput(f"--resolution {resolution}: faces are packed as they are; leave it out")
    with Bar("packing") as move:
        count = pack(source, out, say, move)
    print(f"{count:,} faces: {out}")
    print(f"Next: frugan train saehd-df-ud-256 --data src={out} --data dst=... --out RUN")
