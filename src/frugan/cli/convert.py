"""`frugan convert`."""

from pathlib import Path
from typing import Annotated

import typer

from frugan.cli.output import named_paths, print_json, say
from frugan.contract.formats import Conversion


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="the run, weights or model to convert")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="the new folder or file to write")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="recipe fields to override, when a run is made")
    ] = None,
    made_by: Annotated[
        str, typer.Option("--from", metavar="FORMAT", help="format of IN: leras, biggan-pytorch, stylegan-pickle …")
    ] = "frugan",
    to: Annotated[str, typer.Option(metavar="FORMAT", help="format of OUT: leras, dfm, biggan-pytorch …")] = "frugan",
    name: Annotated[str | None, typer.Option(help="which model, if the folder has several: best0, copy1 …")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="[NAME=]PATH of faces, to check the model's options against")
    ] = None,
    replace: Annotated[
        bool, typer.Option(help="write into an existing OUT; DeepFaceLab's old files are moved to a folder")
    ] = False,
    half: Annotated[bool, typer.Option(help="dfm: convolutions in half precision, for a smaller file")] = False,
    raw: Annotated[bool, typer.Option(help="take the generator as it was trained, not its EMA")] = False,
    verify: Annotated[bool, typer.Option(help="run the converted networks before anything is written")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Convert a model from or to another program: DeepFaceLab, BigGAN or StyleGAN2.

    leras is DeepFaceLab's own format: weights, optimizer state, options, iteration and loss history, both ways.

    Example: frugan convert workspace/model runs/swap --from leras

    Back: frugan convert runs/swap workspace/model --to leras --data workspace --replace

    DeepFaceLive: frugan convert runs/swap swap.dfm --to dfm

    BigGAN: frugan convert weights/EXPERIMENT runs/mine --from biggan-pytorch (and back with --to)

    BigGAN of TensorFlow Hub: frugan convert biggan-128/ biggan.safetensors --from biggan-tfhub --verify

    StyleGAN2: frugan convert network-snapshot-001000.pkl converted.safetensors --from stylegan-pickle

    Back, under the authors' names: frugan convert runs/mine states.safetensors --to stylegan-safetensors
    """
    from frugan.api.convert.formats import convert as convert_model

    asked = Conversion(
        source=source,
        out=out,
        say=say,
        overrides=overrides or (),
        name=name,
        data=named_paths(data) if data else None,
        replace=replace,
        half=half,
        raw=raw,
        verify=verify,
    )
    made = convert_model(asked, made_by, to)
    if as_json:
        print_json(dict(made.facts))
        return
    print("\n".join(made.lines))
