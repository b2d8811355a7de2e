"""The `frugan masks` commands."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from frugan.cli.options import Device
from frugan.cli.output import Bar, say
from frugan.errors import BadInput
from frugan.wording import count, shown

Source = Annotated[
    Path, typer.Argument(metavar="FACESET", help="folder of aligned JPEGs, or a faceset.pak, or a folder with one")
]
Weights = Annotated[
    Path,
    typer.Argument(
        metavar="XSEG", help="run, checkpoint or weights file of XSeg; DeepFaceLab's folder or XSeg_256.npy"
    ),
]
Out = Annotated[Path | None, typer.Option(help="new folder to write, or a file that ends in .pak")]
InPlace = Annotated[
    bool, typer.Option("--in-place", help="change the faces where they are, each file whole or as it was")
]
KindKnown = Annotated[
    str | None,
    typer.Option("--face-type", help="that XSEG knows: h, mf, f, wf, head, or same (no cutting); default: as trained"),
]


def _target(out: Path | None, in_place: bool) -> Path | None:
    """Return where to write; None: in place.

    Raises:
        BadInput: neither was chosen, or both.
    """
    if (out is None) is not in_place:
        raise BadInput("expected either --out NEW, or --in-place, which changes the faces where they are")
    return out


def apply(
    source: Source,
    weights: Weights,
    out: Out = None,
    in_place: InPlace = False,
    kind_known: KindKnown = None,
    grow: Annotated[
        float, typer.Option(help="widen masks by so many pixels of the picture; below 0: narrow them")
    ] = 0.0,
    as_original: Annotated[
        bool, typer.Option("--as-original", help="cut faces of other types bilinearly, as DeepFaceLab does")
    ] = False,
    device: Device = "auto",
) -> None:
    """Find the mask of every face with a trained XSeg and store it in the faces, as DeepFaceLab does.

    Example: frugan masks apply workspace/data_src/aligned runs/masks --out masked

    Where they are: frugan masks apply workspace/data_src/aligned runs/masks --in-place
    """
    from frugan.faces.masks.applying import MaskOptions, apply_masks

    target = _target(out, in_place)
    options = MaskOptions(kind_known, grow, as_original, device)
    with Bar("masks") as bar:
        path, number = apply_masks(source, weights, target, options, say, bar)
    print(f"{count(number, 'face')} with a mask: {shown(str(path))}")
    print(f"Next: frugan masks show {shlex.quote(str(path))} --out masks.png")


def remove(source: Source, out: Out = None, in_place: InPlace = False) -> None:
    """Take the masks out that were applied.

    Example: frugan masks remove workspace/data_src/aligned --in-place
    """
    from frugan.faces.masks.applying import take_out

    with Bar("faces") as bar:
        path, number = take_out(source, "xseg_mask", _target(out, in_place), say, bar)
    print(f"{count(number, 'mask')} taken out: {shown(str(path))}")


def remove_labels(source: Source, out: Out = None, in_place: InPlace = False) -> None:
    """Take the polygons out that XSeg learns from.

    Example: frugan masks remove-labels workspace/data_src/aligned --out unlabelled
    """
    from frugan.faces.masks.applying import take_out

    with Bar("faces") as bar:
        path, number = take_out(source, "polygons", _target(out, in_place), say, bar)
    print(f"polygons of {count(number, 'face')} taken out: {shown(str(path))}")


def fetch(
    source: Source,
    out: Annotated[Path | None, typer.Option(help="new folder; default: FACESET with _xseg at its end")] = None,
) -> None:
    """Copy the faces that have polygons, to train on or to give away; the originals stay.

    Example: frugan masks fetch workspace/data_src/aligned
    """
    from frugan.faces.masks.applying import fetch_labels

    with Bar("faces") as bar:
        folder, number = fetch_labels(source, out, say, bar)
    print(f"{count(number, 'labelled face')}: {shown(str(folder))}")
    print(f"Next: frugan train xseg --data {shlex.quote(str(folder))} --out RUN")


COMMANDS: tuple[Callable[..., None], ...] = (apply, remove, remove_labels, fetch)
