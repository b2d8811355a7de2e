"""What a recipe costs on several cards that share every batch: each card's part, and what they wait for."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from frugan.memory.link import Link, Sum
from frugan.memory.savers import SaverName


@dataclass(frozen=True)
class CardShare:
    """Cards that take equally much of every batch.

    Attributes:
        card: name.
        count: how many.
        samples: of a batch that each sees.
        micro_batch, accumulation, savers, peak_bytes: of its plan, as in `Rung`.
        budget_bytes: on each.
        fits: whether the plan keeps to that.
        compute_seconds: of an average step on its part.
        alone_seconds: of an average step on the whole batch, if one of them trained alone.
    """

    card: str
    count: int
    samples: int
    micro_batch: int
    accumulation: int
    savers: tuple[SaverName, ...]
    peak_bytes: int
    budget_bytes: int
    fits: bool
    compute_seconds: float
    alone_seconds: float


@dataclass(frozen=True)
class Together:
    """Several cards that share every batch; all of it predicted.

    Attributes:
        shares: in the order of ranks.
        link: between any two of them.
        sums: what they add up in an average step of the whole training.
        between_seconds: that this takes; nothing travels while a card computes.
        batch: of them all.
    """

    shares: tuple[CardShare, ...]
    link: Link
    sums: tuple[Sum, ...]
    between_seconds: float
    batch: int

    @property
    def cards(self) -> int:
        """How many."""
        return sum(each.count for each in self.shares)

    @property
    def slowest_seconds(self) -> float:
        """What the slowest card computes in an average step; all others wait for it."""
        return max(each.compute_seconds for each in self.shares)

    @property
    def step_seconds(self) -> float:
        """Of an average step."""
        return self.slowest_seconds + self.between_seconds

    @property
    def images_per_second(self) -> float:
        """Of all cards together."""
        return self.batch / self.step_seconds

    def idle_share(self, compute_seconds: float) -> float:
        """Share of a step that a card waits for the slowest one."""
        return (self.slowest_seconds - compute_seconds) / self.step_seconds

    @property
    def idle(self) -> float:
        """The same on average over all cards."""
        return sum(each.count * self.idle_share(each.compute_seconds) for each in self.shares) / self.cards

    @property
    def efficiency(self) -> float:
        """Speed beside that of as many cards that each train alone, added up."""
        return 1 / sum(each.count / each.alone_seconds for each in self.shares) / self.step_seconds

    @property
    def summed_bytes(self) -> float:
        """That are added up in an average step."""
        return sum(each.updates * each.size_bytes for each in self.sums)

    def as_json(self) -> dict[str, Any]:
        """For a program to read."""
        return {
            "cards": self.cards,
            "shares": [
                asdict(each) | {"savers": list(each.savers), "idle_share": self.idle_share(each.compute_seconds)}
                for each in self.shares
            ],
            "link": asdict(self.link),
            "sums": [asdict(each) for each in self.sums],
            "summed_bytes_per_step": self.summed_bytes,
            "sent_bytes_per_step": self.link.sent_bytes(self.summed_bytes, self.cards),
            "compute_seconds": self.slowest_seconds,
            "between_seconds": self.between_seconds,
            "step_seconds": self.step_seconds,
            "images_per_second": self.images_per_second,
            "idle_share": self.idle,
            "efficiency": self.efficiency,
        }


def shares_in_words(samples: Sequence[int], group: int) -> str:
    """How a batch is dealt to cards: "6 x 4, 5 x 8 groups of 32"."""
    counts: list[list[int]] = []
    for each in samples:
        if counts and counts[-1][0] == each:
            counts[-1][1] += 1
        else:
            counts.append([each, 1])
    words = ", ".join(f"{each // group} on {cards} card{'s' if cards > 1 else ''}" for each, cards in counts)
    return f"{words} ({f'normalisation groups of {group}' if group > 1 else 'samples'})"
