"""`frugan convert`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from frugan.api.from_leras import from_leras
from frugan.api.to_dfm import to_dfm
from frugan.api.to_leras import to_leras
from frugan.cli.output import named_paths, print_json, say
from frugan.errors import BadInput


class Format(StrEnum):
    """What a model can be."""

    LERAS = "leras"
    FRUGAN = "frugan"
    DFM = "dfm"


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="run or checkpoint; DeepFaceLab's folder for models")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="new run folder; folder for a model; a .dfm file")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="--from leras: recipe fields")
    ] = None,
    made_by: Annotated[Format, typer.Option("--from", help="format of IN")] = Format.FRUGAN,
    to: Annotated[Format, typer.Option(help="format of OUT")] = Format.FRUGAN,
    name: Annotated[str | None, typer.Option(help="of the model in DeepFaceLab's folder")] = None,
    data: Annotated[list[str] | None, typer.Option(help="[NAME=]PATH of faces, to compare with the options")] = None,
    replace: Annotated[bool, typer.Option(help="OUT may hold such a model; its files are kept in a folder")] = False,
    half: Annotated[bool, typer.Option(help="dfm: convolutions in half precision; half the size")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON for a program")] = False,
) -> None:
    """Carry a face model over from DeepFaceLab, back to it, or to DeepFaceLive.

    leras is DeepFaceLab's own: weights, optimizer state, options, iteration and loss history, in both directions.

    Example: frugan convert workspace/model runs/swap --from leras

    Back: frugan convert runs/swap workspace/model --to leras --data workspace --replace

    DeepFaceLive: frugan convert runs/swap swap.dfm --to dfm
    """
    faces = named_paths(data) if data else None
    match made_by, to:
        case Format.LERAS, Format.FRUGAN:
            _refuse("is for --to leras and --to dfm", {"--data": data, "--replace": replace, "--half": half})
            _from_leras(source, out, name, overrides or [], as_json=as_json)
        case Format.FRUGAN, Format.LERAS:
            _refuse("is for --to dfm", {"--half": half})
            _refuse("is for --from leras", dict.fromkeys(overrides or [], True))
            model = to_leras(source, out, name=name, replace=replace, data=faces, say=say)
            backup = str(model.backup) if model.backup else None
            if as_json:
                print_json(
                    {"folder": str(out), "name": model.name, "iteration": model.iteration, "replaced": backup},
                )
                return
            print(f"{out}: model {model.name!r} at iteration {model.iteration:,}")
            if backup:
                print(f"The files that it replaced: {backup}")
        case Format.FRUGAN, Format.DFM:
            _refuse("is for DeepFaceLab's folders, --from leras and --to leras", {"--name": name})
            _refuse("is for --from leras", dict.fromkeys(overrides or [], True))
            dfm = to_dfm(source, out, half=half, replace=replace, data=faces, say=say)
            if as_json:
                print_json({"file": str(dfm.path), "iteration": dfm.step, "difference": dfm.difference})
                return
            print(f"{dfm.path}: iteration {dfm.step:,}; differs from the networks by at most {dfm.difference:.1g} of 1")
        case _:
            raise BadInput(
                f"--from {made_by} --to {to}: expected --from leras, --to leras or --to dfm, one of them; "
                "the other side is a run"
            )


def _from_leras(source: Path, out: Path, name: str | None, overrides: list[str], *, as_json: bool) -> None:
    made = from_leras(source, out, name=name, overrides=overrides, say=say)
    if as_json:
        print_json({"run": str(made.run), "recipe": str(made.recipe), "name": made.name, "iteration": made.step})
        return
    print(f"{made.run}: model {made.name!r} at iteration {made.step:,}")
    print(f"Next: frugan train {made.recipe} --data WORKSPACE --out {made.run}")


def _refuse(where: str, given: dict[str, object]) -> None:
    for word, value in given.items():
        if value:
            raise BadInput(f"{word} {where}; leave it out")
