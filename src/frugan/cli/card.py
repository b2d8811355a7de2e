"""`frugan card`."""

from pathlib import Path
from typing import Annotated

import typer

from frugan.cli.output import print_json, say


def card(
    run: Annotated[Path, typer.Argument(help="run folder, or one of its checkpoints")],
    out: Annotated[Path | None, typer.Option(help="folder to write; default: card in the run folder")] = None,
    licence: Annotated[
        str, typer.Option(help="what others may do with the weights, such as cc-by-4.0, or a sentence")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Write a folder to share: weights, recipe, samples, and a model card with scores and how they were measured.

    Example: frugan card runs/first --licence cc-by-4.0
    """
    from frugan.api.card import write_card

    folder = write_card(run, out, licence=licence, say=say)
    if as_json:
        print_json({"folder": str(folder)})
        return
    print(f"{folder}: README.md is the card; look through it before you give it away")
