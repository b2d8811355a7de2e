"""What `frugan plan` prints of several cards that share every batch."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from frugan.api.plan.together import Together

GIB = 2**30


def print_together(console: Console, together: "Together", *, timed: bool) -> None:
    """Print each card's part, and what all of them cost.

    Args:
        timed: whether the cards' speed is known: times mean nothing without.
    """
    table = Table("cards", "samples on each", "micro-batch", "memory savings", "peak", "of", box=None, pad_edge=False)
    if timed:
        table.add_column("computes")
        table.add_column("waits")
    for each in together.shares:
        row = [
            f"{each.count} x {each.card}",
            str(each.samples),
            f"{each.micro_batch} x {each.accumulation}",
            ", ".join(saver for saver in each.savers if saver != "micro-batch") or "-",
            f"{each.peak_bytes / GIB:.2f} GiB",
            f"{each.budget_bytes / GIB:.2f} GiB" if each.fits else f"{each.budget_bytes / GIB:.2f} GiB: too little",
        ]
        waits = f"{together.idle_share(each.compute_seconds):.1%}"
        table.add_row(*row, *([_seconds(each.compute_seconds), waits] if timed else []))
    console.print()
    console.print(table)
    sums = ", ".join(f"{each.phase} {_megabytes(each.size_bytes)}" for each in together.sums)
    sent = together.link.sent_bytes(together.summed_bytes, together.cards)
    console.print(
        f"\ngradients summed in each update: {sums}; on average {_megabytes(together.summed_bytes)} a step, for "
        f"which {_megabytes(sent)} go through each card's link",
        markup=False,
    )
    if not timed:
        return
    console.print(
        f"a step: {_seconds(together.step_seconds)}, of which {_seconds(together.between_seconds)} summing gradients "
        f"({together.between_seconds / together.step_seconds:.1%}); cards wait for the slowest {together.idle:.1%} of "
        f"the time; {together.images_per_second:.3g} images/s, {together.efficiency:.0%} of what the cards would do "
        "separately",
        markup=False,
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.3g} MB"
