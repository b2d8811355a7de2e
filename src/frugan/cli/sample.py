"""`frugan sample`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from frugan.api.sampling import sample as draw
from frugan.cli.output import named_paths, print_json, say
from frugan.errors import BadInput
from frugan.phase import SheetRequest


class Interpolation(StrEnum):
    """What moves along a row of an interpolation sheet."""

    CLASS = "class"
    LATENT = "latent"
    BOTH = "both"


def parse_classes(text: str) -> tuple[int, ...]:
    """Read "0,3,7-9".

    Raises:
        BadInput: not numbers, or a range that goes down.
    """
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not (last.isdigit() and int(last) >= int(first))):
            raise BadInput(f"--classes {text}: expected numbers and ranges, such as 0,3,7-9")
        chosen.extend(range(int(first), int(last or first) + 1))
    return tuple(chosen)


def sample(
    source: Annotated[Path, typer.Argument(help="run folder, checkpoint or weights file")],
    out: Annotated[Path, typer.Option(help="folder for the sheets")],
    classes: Annotated[str | None, typer.Option(help="a row for each, such as 0,3,7-9")] = None,
    columns: Annotated[int, typer.Option(help="pictures in a row")] = 10,
    rows: Annotated[int, typer.Option(help="rows of an interpolation")] = 10,
    truncation: Annotated[float, typer.Option(help="standard deviation of the latents; below 1: less variety")] = 1.0,
    interpolate: Annotated[Interpolation | None, typer.Option(help="go from one end of a row to the other")] = None,
    data: Annotated[list[str] | None, typer.Option(help="[NAME=]PATH of faces, for a face model")] = None,
    seed: Annotated[int, typer.Option(help="of the latents")] = 0,
    micro_batch: Annotated[int, typer.Option(help="samples in one forward; memory, not the result")] = 16,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print the paths as JSON")] = False,
) -> None:
    """Draw sheets of what a model makes: samples, interpolations, or previews of faces.

    Example: frugan sample runs/first --out sheets --classes 0-4 --truncation 0.7

    Faces: frugan sample runs/swap --data workspace --out sheets --rows 8
    """
    request = SheetRequest(
        seed=seed,
        classes=parse_classes(classes) if classes is not None else None,
        columns=columns,
        truncation=truncation,
        interpolate=interpolate.value if interpolate is not None else None,
        rows=rows,
        micro_batch=micro_batch,
    )
    paths = draw(source, out, request, data=named_paths(data) if data else None, device=device, say=say)
    if as_json:
        print_json([str(path) for path in paths])
        return
    for path in paths:
        print(path)
