"""`frugan recipes`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from frugan.cli.output import print_json
from frugan.errors import BadInput
from frugan.recipes import shipped_recipes


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="show the fields of this recipe: a built-in name, TOML file or run")
    ] = None,
    fields: Annotated[bool, typer.Option("--fields", help="show every field of NAME (as NAME alone does)")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """List the built-in recipes, with the smallest card for each; or all fields of one recipe.

    Example: frugan recipes

    Fields: frugan recipes biggan-small-32
    """
    if fields and name is None:
        raise BadInput("--fields goes with the name of a recipe, such as frugan recipes biggan-small-32 --fields")
    if name is not None:
        _show_fields(name, as_json=as_json)
        return
    rows = shipped_recipes()
    if as_json:
        print_json(rows)
        return
    longest = max(len(str(row["name"])) for row in rows)
    table = Table(
        Column("recipe", no_wrap=True, min_width=longest),  # names are for copying
        "pixels",
        "parameters",
        "batch",
        "groups",
        "duration",
        "card",
        "fp32 card",
        "trained",
        box=None,
        pad_edge=False,
    )
    for row in rows:
        table.add_row(
            str(row["name"]),
            str(row["resolution"]),
            f"{row['parameters'] / 1e6:.1f}M",
            str(row["batch"]),
            str(row["normalisation_batch"] or "-"),
            str(row["duration"]),
            _gib(row["smallest_card_gib"]),
            _gib(row["smallest_fp32_card_gib"]),
            str(row["trained"]),
        )
    # Names are for copying: never cut them, whatever the width of the terminal.
    console = Console(width=max(Console().width, 106))
    console.print(table)
    console.print(
        "\ntrained: who has trained it to its end: we, its authors (with the original program), or nobody we know of.\n"
        "groups: samples that are normalised together (batch norm, minibatch stddev); no micro-batch is smaller.\n"
        "card: memory of the smallest common card that it fits (predicted); frugan plan NAME --memory 6GiB: how.\n"
        "fp32 card: the same for cards without half-precision units (GTX 10xx, 16xx); -: none, or not predicted.\n"
        "Next: frugan info NAME, or frugan train NAME --data PICTURES --out RUN",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _gib(size: int | None) -> str:
    return f"{size} GiB" if size else "-"


def _show_fields(name: str, *, as_json: bool) -> None:
    from frugan.recipe.fields import recipe_fields
    from frugan.recipe.loading import load_recipe

    fields = recipe_fields(load_recipe(name))
    if as_json:
        print_json([asdict(field) for field in fields])
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("field", no_wrap=True)  # names are for copying
    for title in ("", "here", "may be", "what it does"):
        table.add_column(title)
    for field in fields:
        row = (field.key, "" if field.changeable else "*", field.value, field.values, field.description)
        table.add_row(*map(Text, row))
    console = Console(width=max(Console().width, 160), highlight=False)
    console.print(table)
    console.print(
        "\n*: cannot change once a run has begun. Override a field on the command line, such as "
        "training.duration='3000 steps', or in a TOML file of your own.",
        markup=False,
        soft_wrap=True,
    )
