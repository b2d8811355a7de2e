"""`frugan convert`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frugan.cli.output import named_paths, print_json, say
from frugan.errors import BadInput

if TYPE_CHECKING:
    from frugan.api.convert.export_leras import ExportedModel


class Format(StrEnum):
    """What a model can be."""

    LERAS = "leras"
    FRUGAN = "frugan"
    DFM = "dfm"
    STYLEGAN_PICKLE = "stylegan-pickle"
    STYLEGAN_SAFETENSORS = "stylegan-safetensors"


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="run or weights; what to bring in")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="what to write: a new folder or file, as FORMAT has it")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="--from leras: recipe fields")
    ] = None,
    made_by: Annotated[Format, typer.Option("--from", help="format of IN")] = Format.FRUGAN,
    to: Annotated[Format, typer.Option(help="format of OUT")] = Format.FRUGAN,
    name: Annotated[str | None, typer.Option(help="of the model in DeepFaceLab's folder")] = None,
    data: Annotated[list[str] | None, typer.Option(help="[NAME=]PATH of faces, to compare with the options")] = None,
    replace: Annotated[bool, typer.Option(help="OUT may be there; DeepFaceLab's files are kept in a folder")] = False,
    half: Annotated[bool, typer.Option(help="dfm: convolutions in half precision: a smaller file")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON for a program")] = False,
) -> None:
    """Carry a model over from another program, or to it: faces and DeepFaceLab, StyleGAN2 and its authors' programs.

    leras is DeepFaceLab's own: weights, optimizer state, options, iteration and loss history, in both directions.

    Example: frugan convert workspace/model runs/swap --from leras

    Back: frugan convert runs/swap workspace/model --to leras --data workspace --replace

    DeepFaceLive: frugan convert runs/swap swap.dfm --to dfm

    StyleGAN2: frugan convert network-snapshot-001000.pkl converted.safetensors --from stylegan-pickle

    Back, under the authors' names: frugan convert runs/mine states.safetensors --to stylegan-safetensors
    """
    from frugan.api.convert.export_dfm import to_dfm
    from frugan.api.convert.export_leras import to_leras

    faces, words = named_paths(data) if data else None, overrides or []
    face_options: dict[str, object] = {"--name": name, "--data": data, "--half": half}
    match made_by, to:
        case Format.LERAS, Format.FRUGAN:
            _refuse("is for --to leras and --to dfm", {"--data": data, "--replace": replace, "--half": half})
            found, lines = _import(source, out, name, words)
        case Format.FRUGAN, Format.LERAS:
            _refuse("is for --to dfm", {"--half": half})
            _refuse("is for --from leras", dict.fromkeys(words, True))
            found, lines = _export(to_leras(source, out, name=name, replace=replace, data=faces, say=say))
        case Format.FRUGAN, Format.DFM:
            _refuse("is for DeepFaceLab's folders, --from leras and --to leras", {"--name": name})
            _refuse("is for --from leras", dict.fromkeys(words, True))
            dfm = to_dfm(source, out, half=half, replace=replace, data=faces, say=say)
            found = {"file": str(out), "iteration": dfm.step, "difference": dfm.difference}
            lines = [
                f"{out}: iteration {dfm.step:,}; at most {dfm.difference:.1g} of 1 away from the networks' pictures"
            ]
        case Format.STYLEGAN_PICKLE, Format.FRUGAN:
            _refuse("is not for --from stylegan-pickle", {"--replace": replace, **face_options})
            _refuse("is for --from leras", dict.fromkeys(words, True))
            found, lines = _import_snapshot(source, out)
        case Format.FRUGAN, Format.STYLEGAN_SAFETENSORS:
            _refuse("is not for --to stylegan-safetensors", face_options)
            _refuse("is for --from leras", dict.fromkeys(words, True))
            found, lines = _export_states(source, out, replace=replace)
        case _:
            given = f"--from {made_by} --to {to}"
            raise BadInput(
                f"{given if made_by != to else 'neither --from nor --to'}: say --from leras to go on here with a model "
                "of DeepFaceLab's, --to leras to give a run back to it, or --to dfm to write one for DeepFaceLive; "
                "--from stylegan-pickle for a snapshot of StyleGAN2, --to stylegan-safetensors for its parameter names"
            )
    if as_json:
        print_json(found)
        return
    print("\n".join(lines))


def _import(source: Path, out: Path, name: str | None, words: list[str]) -> tuple[dict[str, Any], list[str]]:
    from frugan.api.convert.import_leras import from_leras

    made = from_leras(source, out, name=name, overrides=words, say=say)
    found = {"run": str(made.run), "recipe": str(made.recipe), "name": made.name, "iteration": made.step}
    return found, [
        f"{made.run}: model {made.name!r} at iteration {made.step:,}",
        f"Next: frugan train {made.recipe} --data WORKSPACE --out {made.run}",
    ]


def _export(model: "ExportedModel") -> tuple[dict[str, Any], list[str]]:
    replaced = str(model.backup) if model.backup else None
    found = {"folder": str(model.folder), "name": model.name, "iteration": model.iteration, "replaced": replaced}
    lines = [f"{model.folder}: model {model.name!r} at iteration {model.iteration:,}"]
    return found, lines + ([f"The files that it replaced: {replaced}"] if replaced else [])


def _import_snapshot(source: Path, out: Path) -> tuple[dict[str, Any], list[str]]:
    from frugan.api.convert.import_stylegan import RECIPE_FILE, from_stylegan_pickle

    made = from_stylegan_pickle(source, out, say=say)
    resolution = made.recipe.networks.model_dump()["resolution"]
    found = {"path": str(made.path), "resolution": resolution, "networks": list(made.networks)}
    recipe = str(out / RECIPE_FILE) if out.is_dir() else f"stylegan2-finetune-{resolution}"
    return found, [
        f"{made.path}: StyleGAN2 at {resolution} pixels",
        f"Next: frugan sample {out} --out sheets",
        f"Or: frugan train {recipe} --init {out} --data PICTURES",
    ]


def _export_states(source: Path, out: Path, *, replace: bool) -> tuple[dict[str, Any], list[str]]:
    from frugan.api.convert.export_stylegan import to_stylegan_safetensors

    made = to_stylegan_safetensors(source, out, replace=replace, say=say)
    return {"file": str(made.path), "networks": list(made.networks)}, [
        f"{made.path}: {', '.join(made.networks)} under the authors' names"
    ]


def _refuse(where: str, given: dict[str, object]) -> None:
    for word, value in given.items():
        if value:
            raise BadInput(f"{word} {where}; leave it out")
