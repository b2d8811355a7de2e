"""`frugan recipes`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from frugan.api.plan.shipped_recipes import shipped_recipes
from frugan.cli.output import print_json
from frugan.errors import BadInput


def recipes(
    name: Annotated[str | None, typer.Argument(help="built-in recipe, TOML file or run: its fields")] = None,
    fields: Annotated[bool, typer.Option("--fields", help="every field of recipe NAME (as with NAME alone)")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON for a program")] = False,
) -> None:
    """List the recipes that ship, and who has trained each to its end; or the fields of one.

    Example: frugan recipes

    One: frugan recipes biggan-small-32
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
        "\ntrained: by us, by its authors (with the original program), or never to its end by anyone we know of.\n"
        "groups: samples that batch normalisation sees together; no micro-batch is smaller.\n"
        "card: the smallest common one that it is predicted to fit; frugan plan NAME --memory 6GiB says how.\n"
        "fp32 card: the same of those without half-precision units (GTX 10xx and 16xx); -: none, or not predicted.\n"
        "Next: frugan info NAME, or frugan train NAME --data PICTURES --out RUN",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _gib(size: int | None) -> str:
    return f"{size} GiB" if size else "-"


def _show_fields(name: str, *, as_json: bool) -> None:
    from frugan.recipe_fields import recipe_fields
    from frugan.recipe_loading import load_recipe

    found = recipe_fields(load_recipe(name))
    if as_json:
        print_json([asdict(field) for field in found])
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("field", no_wrap=True)  # names are for copying
    for title in ("", "here", "may be", "what it does"):
        table.add_column(title)
    for field in found:
        row = (field.key, "" if field.changeable else "*", field.value, field.values, field.description)
        table.add_row(*map(Text, row))
    console = Console(width=max(Console().width, 160), highlight=False)
    console.print(table)
    console.print(
        "\n* is fixed once a run has begun. Change a field for one command by a word such as "
        f"{found[0].key}=VALUE, or in a TOML file of your own.",
        markup=False,
        soft_wrap=True,
    )
