"""`frugan recipes`."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from frugan.api.plan.shipped_recipes import shipped_recipes
from frugan.cli.output import print_json


def recipes(as_json: Annotated[bool, typer.Option("--json", help="print JSON for a program")] = False) -> None:
    """List the recipes that ship, and who has trained each to its end.

    Example: frugan recipes
    """
    rows = shipped_recipes()
    if as_json:
        print_json(rows)
        return
    table = Table(
        "recipe", "pixels", "parameters", "batch", "groups", "duration", "card", "trained", box=None, pad_edge=False
    )
    for row in rows:
        table.add_row(
            str(row["name"]),
            str(row["resolution"]),
            f"{row['parameters'] / 1e6:.1f}M",
            str(row["batch"]),
            str(row["normalisation_batch"] or "-"),
            str(row["duration"]),
            f"{row['smallest_card_gib']} GiB" if row["smallest_card_gib"] else "-",
            str(row["trained"]),
        )
    # Names are for copying: never cut them, whatever the width of the terminal.
    console = Console(width=max(Console().width, 96))
    console.print(table)
    console.print(
        "\ntrained: by us, by its authors (with the original program), or never to its end by anyone we know of.\n"
        "groups: samples that batch normalisation sees together; no micro-batch is smaller.\n"
        "card: the smallest common one that it is predicted to fit; frugan plan NAME --memory 6GiB says how.\n"
        "Next: frugan info NAME, or frugan train NAME --data PICTURES --out RUN",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
