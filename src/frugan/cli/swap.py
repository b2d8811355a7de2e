"""The `frugan swap` command."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from frugan.cli.options import Device, WeightsFrom
from frugan.cli.output import Bar, print_json, say
from frugan.errors import BadInput
from frugan.wording import count, first_names


def swap(
    run: WeightsFrom,
    frames: Annotated[Path, typer.Argument(help="folder of frames, such as WORKSPACE/data_dst")],
    aligned: Annotated[Path, typer.Argument(help="faces that were cut from them, such as WORKSPACE/data_dst/aligned")],
    out: Annotated[Path, typer.Argument(help="folder for the swapped frames; of one that was begun, the rest is made")],
    mask: Annotated[
        Literal["learned", "learned-prd", "learned-dst", "xseg", "xseg-prd", "xseg-dst", "all"],
        typer.Option(
            help="the model's mask of the swapped face (-prd), of the destination's (-dst), or both multiplied; of the "
            "model (learned), of XSeg, or of both (all)"
        ),
    ] = "learned",
    xseg: Annotated[
        Path | None, typer.Option(help="run, checkpoint or weights of XSeg, for the masks that ask for it")
    ] = None,
    erode: Annotated[
        int, typer.Option(help="pixels of the model's square to take off the mask's edge; below 0: to put on")
    ] = 0,
    blur: Annotated[
        int, typer.Option(min=0, help="pixels of the model's square over which the mask's edge falls off")
    ] = 0,
    colours: Annotated[
        Literal["none", "rct", "lct", "mkl", "idt", "sot"],
        typer.Option(help="give swapped faces the destination's colours, as objective.ct_mode does in training"),
    ] = "none",
    seamless: Annotated[
        bool, typer.Option("--seamless", help="fit colours at the mask's edge to the frame's (Poisson's equation)")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="make frames of another model or other settings in OUT anew")
    ] = False,
    workers: Annotated[int, typer.Option(help="threads that read, lay on and write frames")] = 2,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print the counts as JSON")] = False,
) -> None:
    """Replace the faces of a film's frames by those of a trained face model.

    Example: frugan swap runs/swap workspace/data_dst workspace/data_dst/aligned swapped --erode 4 --blur 6

    With XSeg: frugan swap runs/swap FRAMES ALIGNED swapped --mask xseg --xseg runs/xseg --colours rct
    """
    from dataclasses import asdict

    from frugan.faces.swapping.composing import Look
    from frugan.faces.swapping.swap import swap_frames

    look = Look(mask, erode, blur, colours, "seamless" if seamless else "overlay")
    with Bar("frames") as bar:
        result = swap_frames(
            run,
            frames,
            aligned,
            out,
            look,
            xseg=xseg,
            replace_files=replace,
            device=device,
            workers=workers,
            say=say,
            progress=bar,
        )
    if as_json:
        print_json(asdict(result))
    else:
        anew = f"; {result.anew:,} anew, as picture, faces, model or settings have changed" if result.anew else ""
        print(f"{out}: {result.swapped:,} swapped, {result.copied:,} copied, {result.kept:,} there already{anew}")
    if result.damaged:
        raise BadInput(
            f"{count(len(result.damaged), 'frame')} not made, all others are: {first_names([*result.damaged])}; once "
            f"mended, the same command makes them. The first: {next(iter(result.damaged.values()))}"
        )
