"""One plan and what it costs, on a card alone and beside a desktop, and what is said of the memory that it is for."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from frugan.planning.plan_space import SaverName
from frugan.stepmemory.cards import DESKTOP_BYTES, PUBLISHED, Card
from frugan.wording import show_size, typed_size


@dataclass(frozen=True)
class Rung:
    """One plan and what it costs."""

    micro_batch: int  # samples in one forward
    accumulation: int  # forwards for one update
    savers: tuple[SaverName, ...]  # savings that it uses
    peak_bytes: int  # on the card in all: what the allocator reserves, CUDA's context and its libraries' workspaces
    host_bytes: int  # most that it keeps in the host's memory: averages, optimizer state, what blocks are given
    extra_compute: float  # multiply-accumulates beyond those without recompute, as a share
    extra_time: float  # predicted time beyond the fastest plan's, as a share
    step_seconds: float  # predicted, in the stage that takes most memory; what it may be is `Card.times` of that


@dataclass(frozen=True)
class BesideDesktop:
    """The memory that a named card has left while it draws a desktop, and the plan that fits it."""

    budget_bytes: int
    rung: Rung | None  # None: no plan fits

    def as_json(self) -> dict[str, Any]:
        """For a program to read."""
        return {"budget_bytes": self.budget_bytes, "plan": None if self.rung is None else asdict(self.rung)}


def about_memory(
    card: Card, budget_bytes: int | None, rung: Rung, beside_desktop: BesideDesktop | None
) -> Iterator[str]:
    """A line for what is planned with, and one for what is left of it beside a desktop."""
    if budget_bytes is not None and card.memory_bytes is not None and budget_bytes > card.memory_bytes:
        has = f"{card.name} has {show_size(card.memory_bytes)} for programs"
        yield f"memory: {show_size(budget_bytes)} as asked, although {has}"
    if budget_bytes is not None and budget_bytes == card.memory_bytes and card.name in PUBLISHED:
        known = "as people have shown it" if PUBLISHED[card.name].left_mib is not None else "predicted"
        yield (
            f"memory: {show_size(budget_bytes)}, what the driver leaves of {card.name}'s {PUBLISHED[card.name].gib} GB "
            f"under Linux ({known}); override with --memory"
        )
    if beside_desktop is not None:
        yield (
            f"desktop: if one is drawn by this card, with a browser, about {show_size(DESKTOP_BYTES)} less is left, "
            f"{show_size(beside_desktop.budget_bytes)}: {_there(beside_desktop.rung, rung)}"
        )


def _there(rung: Rung | None, alone: Rung) -> str:
    """Say whether a plan also fits beside a desktop, and which one does if not."""
    if rung is None:
        return "no plan fits there"
    if rung == alone:
        return "this plan fits there too"
    savers = ", ".join(saver for saver in rung.savers if saver != "micro-batch") or "no other savings"
    return (
        f"this plan does not fit there, but one of {show_size(rung.peak_bytes)} does: micro-batch {rung.micro_batch}, "
        f"{savers}, extra time {rung.extra_time:.0%} (--memory {typed_size(rung.peak_bytes)})"
    )
