"""`frugan info`."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from frugan.cli.output import print_json

if TYPE_CHECKING:
    from frugan.api.plan.network_costs import NetworkInfo

COLUMNS = (
    "per sample",
    "parameters",
    "arithmetic",
    "memory traffic",
    "intensity",
    "bound here by",
    "activations kept",
    "latency",
)


def _rows(network: "NetworkInfo") -> tuple[str, ...]:
    seconds = network.latency_seconds
    return (
        f"{network.parameters:,}",
        f"{network.macs / 1e9:.3f} GMAC",
        f"{network.bytes_moved / 1e6:,.1f} MB",
        f"{network.intensity:.1f} MAC/byte",
        network.bound_by,
        f"{network.saved_activation_bytes / 2**20:,.1f} MiB",
        "not measured" if seconds is None else f"{seconds * 1e3:,.1f} ms",
    )


def info(
    source: Annotated[str, typer.Argument(help="recipe, run folder, checkpoint or weights file")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="recipe fields to override")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    latency: Annotated[bool, typer.Option(help="time one sample's forward pass on this machine")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Say what a recipe's networks cost: parameters, arithmetic, memory traffic, activations, latency.

    Example: frugan info biggan-imagenet-128
    """
    from frugan.api.plan.network_costs import CAVEAT
    from frugan.api.plan.network_costs import info as measure

    recipe_info = measure(source, overrides or [], device=device, latency=latency)
    if as_json:
        print_json(recipe_info.as_json())
        return
    about = recipe_info.recipe.about
    # A row for each network: names are for copying and never cut, however many there are.
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for name, network in recipe_info.networks.items():
        table.add_row(name, *_rows(network))
    console = Console(highlight=False, width=max(Console().width, 140))
    settings = f" Settings: {about.source}." if about.source else ""
    summary = about.summary or f"family {recipe_info.recipe.family}"
    console.print(f"{recipe_info.name}: {summary}.{settings} Trained: {about.trained}.", soft_wrap=True)
    console.print(table)
    peaks = f"{recipe_info.peaks.macs_per_s / 1e9:,.0f} GMAC/s and {recipe_info.peaks.bytes_per_s / 1e9:,.1f} GB/s"
    console.print(
        f"Measured on {recipe_info.device} in {recipe_info.precision}, which reaches {peaks}. {CAVEAT}", soft_wrap=True
    )
