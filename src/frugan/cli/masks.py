"""The `frugan masks` commands."""

import shlex
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from frugan.cli.options import AsJson, Device
from frugan.cli.output import Bar, print_json, say
from frugan.errors import BadInput, optional_module
from frugan.reporting.ports import port_to_listen_on
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


LISTED = 10
"""Faces that are named to label next."""


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


def export(
    source: Source,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="new folder to write")],
    form: Annotated[
        Literal["labelme", "coco", "png", "jpg"],
        typer.Option(
            "--format", help="labelme or coco: polygons, or outlines of applied masks; png; jpg: DeepFaceLab's masks"
        ),
    ] = "labelme",
) -> None:
    """Write the labels of faces for other programs, labelme among them, in which polygons are drawn.

    Example: frugan masks export workspace/data_src/aligned labels

    Masks as pictures: frugan masks export masked masks --format png
    """
    from frugan.faces.masks.applying import export_labels

    number = export_labels(source, out, form, say)
    print(f"{count(number, 'file')}: {shown(str(out))}")


def import_(
    source: Source,
    labels: Annotated[
        Path, typer.Argument(metavar="LABELS", help="folder of labelme's files or of PNGs; COCO's .json file")
    ],
    out: Out = None,
    in_place: InPlace = False,
) -> None:
    """Give faces the polygons that other programs drew: labelme, COCO, or masks as PNGs, white where the face is.

    A label "exclude" takes away from the face; any other one is the face.

    Example: frugan masks import workspace/data_src/aligned labels --in-place
    """
    from frugan.faces.masks.applying import import_labels

    with Bar("faces") as bar:
        path, number = import_labels(source, labels, _target(out, in_place), say, bar)
    print(f"{count(number, 'face')} with polygons from {shown(str(labels))}: {shown(str(path))}")
    print(f"Next: frugan train xseg --data {shlex.quote(str(path))} --out RUN")


def show(
    source: Source,
    out: Annotated[Path, typer.Option(help="picture to write, such as masks.png")],
    weights: Annotated[
        Path | None,
        typer.Option("--with", help="XSeg to draw the masks of, and to say of which faces it is least sure"),
    ] = None,
    number: Annotated[int, typer.Option("--count", help="faces on the sheet")] = 20,
    kind_known: KindKnown = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Draw a sheet of faces with labels and masks; with an XSeg, those to label next come first.

    Example: frugan masks show workspace/data_src/aligned --out masks.png --with runs/masks
    """
    from frugan.faces.masks.applying import MaskOptions
    from frugan.faces.masks.sheet import show_masks

    with Bar("masks") as bar:
        doubts = show_masks(source, out, number, weights, MaskOptions(kind_known, device=device), say, bar)
    if as_json:
        print_json({"sheet": str(out), "least_sure": [asdict(doubt) for doubt in doubts]})
        return
    print(f"Sheet: {shown(str(out))}")
    if nexts := [doubt for doubt in doubts if not doubt.labelled][:LISTED]:
        print("Least sure, to label next (bits of a pixel, 0 is sure):")
        for doubt in nexts:
            print(f"  {doubt.bits:.4f}  {shown(doubt.name)}")


def draw(
    source: Source,
    out: Annotated[Path | None, typer.Option(help="new folder, into which the faces are copied first")] = None,
    in_place: InPlace = False,
    weights: Annotated[
        Path | None, typer.Option("--with", help="XSeg: the faces of which it is least sure come first")
    ] = None,
    kind_known: KindKnown = None,
    device: Device = "auto",
    port: Annotated[
        int | None, typer.Option(help="on this machine; default: 8781, or the next free one; 0: any free one")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="show it in the browser at once")] = True,
) -> None:
    """Draw polygons around faces in a browser; each face is saved when you leave it.

    For this machine alone: the address holds a token.

    Example: frugan masks draw workspace/data_src/aligned --in-place

    The next to label, by a network: frugan masks draw workspace/data_src/aligned --out labelled --with runs/masks
    """
    listening_on = port_to_listen_on(port, 8781, say)
    from frugan.faces.masks.applying import MaskOptions
    from frugan.faces.masks.drawing import open_drawing

    for module in ("starlette", "uvicorn"):
        optional_module(module, f"the page needs {module}", "page")
    from frugan.page.labels import served_labels

    with Bar("masks") as bar:
        options = MaskOptions(kind_known, device=device)
        drawing = open_drawing(source, _target(out, in_place), weights, options, say, bar)
    with served_labels(drawing, listening_on) as (address, thread), suppress(KeyboardInterrupt):
        print(address, flush=True)
        say("Ctrl-C ends it; what you left is saved")
        if open_browser:
            webbrowser.open(address)
        thread.join()
    path = drawing.faceset.path
    print(f"{count(drawing.labelled(), 'labelled face')}: {shown(str(path))}")
    print(f"Next: frugan train xseg --data {shlex.quote(str(path))} --out RUN")


COMMANDS: tuple[Callable[..., None], ...] = (apply, remove, remove_labels, fetch, export, import_, show, draw)
