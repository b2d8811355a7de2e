"""`frugan doctor`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from frugan.cli.main import FAILED
from frugan.cli.output import print_json, say
from frugan.data.wording import count

if TYPE_CHECKING:
    from frugan.api.doctor.finding import Finding

MARKS = {"fine": ("ok", "green"), "limited": ("!", "yellow"), "impossible": ("X", "bold red")}


def doctor(
    device: Annotated[str, typer.Option(help="what training shall run on: auto, cpu, cuda or cuda:N")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="folder that runs will be written to; default: the usual one")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON for a program")] = False,
) -> None:
    """Look at this machine: card, torch, memory, disk, limits, extras; a line each, with its cure.

    Ends with 0 where training is possible, else with 1.

    Example: frugan doctor
    """
    from frugan.api.doctor.finding import Finding, training_is_possible

    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        cure = "install torch anew, by the command of PyTorch's own install selector (Get started)"
        found = [Finding("versions", "impossible", f"torch cannot be loaded: {error}", cure)]
    else:
        from frugan.api.doctor.examination import examine

        found = examine(device, out, say=say)
    possible = training_is_possible(found)
    if as_json:
        print_json({"training_is_possible": possible, "findings": [each.as_json() for each in found]})
    else:
        _print(found, possible=possible)
    if not possible:
        raise typer.Exit(FAILED)


def _print(found: "list[Finding]", *, possible: bool) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in found:
        mark, style = MARKS[each.state]
        line = Text(each.line)
        if each.cure is not None:
            line.append(f" -> {each.cure}", style="bold")
        table.add_row(Text(mark, style=style), each.name, line)
    console = Console(width=max(Console().width, 100), highlight=False)
    console.print(table)
    limited = count(sum(each.state == "limited" for each in found), "thing")
    if not possible:
        console.print("\nTraining is not possible here: see the lines marked X.")
    elif any(each.state == "limited" for each in found):
        console.print(f"\nTraining is possible here; {limited} could be better, marked !.")
    else:
        console.print("\nTraining is possible here.")
