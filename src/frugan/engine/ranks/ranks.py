"""The processes that share a training: which share of a batch each takes, and how they come to the same update.

Every rank holds all networks. An update's batch is cut into one run of samples a rank; gradients, losses and what was
observed are added up over the ranks, and from there on all of them do the same with the same numbers.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from torch import Tensor, nn

from frugan.contract.layers import Observer
from frugan.contract.phase import PhaseState
from frugan.engine.interrupt import StopRequest
from frugan.engine.ranks.place import Share, deal
from frugan.engine.state import TrainingState
from frugan.errors import BadInput

Terms = dict[str, Tensor]
"""Name -> each micro-batch's value [micro-batches], fp32."""
Shares = tuple[float, ...]
"""Each micro-batch's share of the update."""


class Order(IntEnum):
    """What the first rank tells the others to do next."""

    STAGE = 0
    """Open the stage of the recipe that training has come to."""
    STEP = 1
    COMPARE = 2
    """See whether all still have the same weights."""
    STOP = 3
    """Training stops before its end."""
    OVER = 4
    AGAIN = 5
    """Training begins again, from an earlier checkpoint."""
    DRAW = 6
    """Draw a part of the pictures that are scored."""


class Ranks(Protocol):
    """The processes that train together, seen from one of them.

    Attributes:
        rank: this one, from 0; the first alone writes.
        size: how many.
    """

    @property
    def rank(self) -> int:
        """This one, from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def share(self, samples: int, group: int) -> Share:
        """The samples of an update that this rank sees, of all of them; `group` stand together."""

    def add_up(
        self, phase: str, parameters: Mapping[str, nn.Parameter], terms: Terms, shares: Shares, seen: "Seen"
    ) -> tuple[Terms, Shares]:
        """Put the sum over all ranks into gradients and observations, and give the terms of the whole update."""

    def alike(self, phase: str) -> AbstractContextManager[None]:
        """Inside, every rank does the same: one alone cannot begin the update again."""

    @property
    def local_size(self) -> int:
        """How many there are on this machine."""

    def pass_on(self, stop: StopRequest) -> None:
        """Let a stop that is asked of any rank be one of the first."""

    def take_along(self, beginning: object, state: TrainingState) -> None:
        """Tell the others how to begin, and give them the state."""

    def tell(self, order: Order) -> None:
        """Say to the others what comes next."""

    def agree(self, state: TrainingState) -> bool:
        """Whether all ranks had the same state; if not, they now have that of the first."""

    def apart(self) -> "Ranks":
        """This rank with its share, without the others: what it does then, it does alone."""


@dataclass(frozen=True)
class Seen:
    """What layers and parts have observed during an update, on this rank.

    Attributes:
        observer: of the layers.
        own: of the phase.
        share: of the update's samples.
    """

    observer: Observer
    own: PhaseState
    share: Share


@dataclass(frozen=True)
class OneRank:
    """A process that trains alone, or acts for a while as if it did.

    Attributes:
        rank, size: by which it takes its share.
    """

    rank: int = 0
    size: int = 1

    def share(self, samples: int, group: int) -> Share:
        """Its samples: all of them, if it is the only one."""
        return deal(samples, group, self.size)[self.rank]

    def add_up(
        self, phase: str, parameters: Mapping[str, nn.Parameter], terms: Terms, shares: Shares, seen: Seen
    ) -> tuple[Terms, Shares]:
        """There is nothing to add."""
        return terms, shares

    def alike(self, phase: str) -> AbstractContextManager[None]:
        """It may begin again whenever it likes."""
        return nullcontext()

    @property
    def local_size(self) -> int:
        """It takes no account of others."""
        return 1

    def pass_on(self, stop: StopRequest) -> None:
        """It is asked itself."""

    def take_along(self, beginning: object, state: TrainingState) -> None:
        """There is nobody to take along."""

    def tell(self, order: Order) -> None:
        """There is nobody to tell."""

    def agree(self, state: TrainingState) -> bool:
        """It does with itself."""
        return True

    def apart(self) -> "OneRank":
        """It is already."""
        return self


def check_ranks(samples: Mapping[str, int], group: int, size: int) -> list[str]:
    """Refuse more ranks than can have work.

    Args:
        samples: phase -> samples that one update of it sees.
        group: samples that stand together.
        size: ranks.

    Returns:
        A line for each phase that leaves ranks without work.

    Raises:
        BadInput: some ranks would never have any.
    """
    groups = {phase: -(-count // group) for phase, count in samples.items()}
    most = max(groups.values())
    if most < size:
        whole = f"{most} normalisation group{'s' if most > 1 else ''} of {group}" if group > 1 else f"{most} samples"
        smaller = ", or a smaller training.normalisation_batch (both change the result)" if group > 1 else ""
        raise BadInput(
            f"{size} ranks: an update has {whole}, and each rank takes at least one; start at most {most}, or give the "
            f"recipe a larger training.batch{smaller}"
        )
    of = f"normalisation groups of {group}" if group > 1 else "samples"
    return [
        f"phase {phase}: {count} {of} for {size} ranks: {size - count} of them work in vain there"
        for phase, count in groups.items()
        if count < size
    ]
