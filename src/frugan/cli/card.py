"""`frugan card` and `frugan pull`."""

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
    push: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="publish it on the Hugging Face hub, with your login")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="with --push: visible to you only")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Write a folder to share: weights, recipe, samples, and a model card with scores and how they were measured.

    Example: frugan card runs/first --licence cc-by-4.0 --push me/flowers
    """
    from frugan.api.model_card.card_folder import write_card
    from frugan.api.model_card.hub import push as publish
    from frugan.errors import BadInput

    if private and push is None:
        raise BadInput("--private: goes with --push OWNER/NAME")
    folder = write_card(run, out, licence=licence, say=say)
    there = publish(folder, push, private=private) if push is not None else None
    if as_json:
        print_json({"folder": str(folder), "published": there})
        return
    print(f"{folder}: README.md is the card; look through it before you give it away")
    if there is not None:
        print(f"published: {there}")


def pull(
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="the model's name on the Hugging Face hub")],
    out: Annotated[Path, typer.Argument(help="folder to make")],
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Fetch weights that somebody published with `frugan card --push`, with their model card.

    Example: frugan pull me/flowers flowers
    """
    from frugan.api.model_card.hub import pull as fetch

    file = fetch(name, out)
    if as_json:
        print_json({"weights": str(file)})
        return
    print(f"{file}: {file.parent / 'README.md'} says what it is, and what you may do with it")
    print(f"Next: frugan sample {file} --out samples")
