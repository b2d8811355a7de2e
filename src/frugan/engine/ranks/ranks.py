"""The processes that share a training: which share of a batch each takes, and how they come to the same update."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from frugan.contract.layers import GroupNormalised, Observer, SharedGroup
from frugan.contract.phase import Phase, PhaseState
from frugan.engine.plan import Plan
from frugan.engine.ranks.place import Share, check_shares, deal, parse_shares
from frugan.engine.requests import StopRequest
from frugan.engine.state.optimizer_shards import Shard
from frugan.engine.state.state import TrainingState
from frugan.errors import BadInput


@dataclass(frozen=True)
class TeamGroup:
    """A group that a team of ranks shares; see `SharedGroup`."""

    part: int  # samples of the group that this rank holds
    samples: int  # samples of the whole group
    all_reduce: Callable[[Tensor], None]  # replaces a contiguous tensor by its sum over the team

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the team."""
        summed: Tensor = _Sum.apply(values, self.all_reduce)
        return summed


@dataclass(frozen=True)
class LonePart:
    """A part of a group without the other ranks, which are assumed to hold equal values; for timing a step."""

    part: int  # samples that this process holds
    samples: int  # samples of the whole group

    def sum(self, values: Tensor) -> Tensor:
        """Scale to the whole group, as if all other ranks held the same values."""
        return values * (self.samples / self.part)


class _Sum(torch.autograd.Function):
    """Sum over processes. A process's gradient is the sum of all processes' gradients: it is its own transpose."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, all_reduce: Callable[[Tensor], None]) -> Tensor:
        ctx.all_reduce = all_reduce
        summed = values.detach().clone(memory_format=torch.contiguous_format)
        all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return _Sum.apply(gradient, ctx.all_reduce), None


@contextmanager
def sharing(networks: Mapping[str, nn.Module], shared: SharedGroup | None) -> Iterator[None]:
    """Let layers that normalise over samples know that they see parts of groups, while this is open.

    Raises:
        BadInput: one of them would not heed it.
    """
    layers = [m for network in networks.values() for m in network.modules() if isinstance(m, GroupNormalised)]
    if shared is not None and (wrong := [layer for layer in layers if not layer.can_share]):
        raise BadInput(
            f"{type(wrong[0]).__name__} looks at a whole normalisation group of {shared.samples}, and ranks would "
            "share one: start no more ranks than a batch has groups"
        )
    for layer in layers:
        layer.shared = shared
    try:
        yield
    finally:
        for layer in layers:
            layer.shared = None


Value = TypeVar("Value")

Terms = dict[str, Tensor]
"""Name -> each micro-batch's value [micro-batches], fp32."""
Shares = tuple[float, ...]
"""Each micro-batch's share of the update."""


class Ranks(Protocol):
    """The processes that train together, seen from one of them.

    Every rank holds all networks, and all run the same program, of which the first alone writes. An update's batch is
    cut into one run of samples a rank; gradients, losses and what was observed are added up over the ranks, and from
    there on all of them do the same with the same numbers.

    Attributes:
        rank: this one, from 0; the first alone writes.
        size: how many.
    """

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def name(self) -> str:
        """Name of this rank in messages."""

    @property
    def proportions(self) -> Sequence[float] | None:
        """Each rank's proportion of the samples; None: equal."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Description of each rank's device; empty: there is only this rank."""

    def set_shares(self, proportions: Sequence[float] | None) -> None:
        """Deal samples in these proportions from here on, on this rank: all others must do so too."""

    def gather(self, value: Value) -> list[Value]:
        """Return every rank's value, in order; all ranks call it."""

    def shard(self) -> Shard | None:
        """Which slices of parameters this rank moves, where optimizers' state is shared out; None: it is alone."""

    def collected(self, state: TrainingState) -> AbstractContextManager[None]:
        """Inside, the first rank has whole what of the optimizers' state is shared out, for a checkpoint."""

    def share(self, samples: int, group: int) -> Share:
        """The samples of an update that this rank sees, of all of them; `group` stand together."""

    def any_parts(self, samples: int, group: int) -> bool:
        """Return whether any rank's share is a part of a group."""

    def sharing(self, share: Share, phase: str, plan: Plan) -> SharedGroup | None:
        """The normalisation group that this rank's share is a part of; None: its groups are whole.

        Raises:
            TrainingFailed: ranks that share a group would not run the same by their plans.
        """

    def add_up(
        self, phase: str, parameters: Mapping[str, nn.Parameter], terms: Terms, shares: Shares, seen: "ObservedShare"
    ) -> tuple[Terms, Shares]:
        """Put the sum over all ranks into gradients and observations, and give the terms of the whole update."""

    def alike(self, phase: str) -> AbstractContextManager[None]:
        """Inside, all ranks act together: one alone cannot repeat the update."""

    @property
    def local_size(self) -> int:
        """Number of ranks on this machine."""

    def forward_stop(self, stop: StopRequest) -> None:
        """Forward a stop requested of any rank to the first."""

    def broadcast_number(self, number: int = 0) -> int:
        """Return the first rank's number on all ranks; the others' are ignored."""

    def broadcast(self, value: Value) -> Value:
        """Return the first rank's value on all ranks; the others' are ignored."""

    def barrier(self) -> None:
        """Wait until all ranks have called this."""

    def broadcast_state(self, state: TrainingState) -> None:
        """Copy the first rank's state to all others."""

    def agree(self, state: TrainingState) -> bool:
        """Return whether all ranks had the same state; if not, all are given that of the first."""


@dataclass(frozen=True)
class ObservedShare:
    """Observations of layers and parts during an update, on this rank."""

    observer: Observer  # observations of layers
    phase_state: PhaseState  # observations of the phase's parts
    share: Share  # this rank's samples of the update


@dataclass(frozen=True)
class OneRank:
    """A process that trains alone, or acts for a while as if it did."""

    rank: int = 0  # rank whose share it takes
    size: int = 1  # number of ranks
    proportions: Sequence[float] | None = None  # in which samples are dealt; None: equal
    devices: tuple[str, ...] = ()
    in_parts: bool = False  # treats groups as parts of groups that others share, to see what that takes
    name: str = "this process"

    def set_shares(self, proportions: Sequence[float] | None) -> None:
        """Do nothing: there are no other ranks."""

    def gather(self, value: Value) -> list[Value]:
        return [value]

    def shard(self) -> Shard | None:
        """Return the slices of this rank; those of the missing ranks stay as they are."""
        return Shard(self.rank, self.size) if self.size > 1 else None

    def collected(self, state: TrainingState) -> AbstractContextManager[None]:
        return nullcontext()

    def share(self, samples: int, group: int) -> Share:
        """Return the samples of this rank, which are all if it is the only one."""
        share = deal(samples, group, self.size, self.proportions)[self.rank]
        return replace(share, parts=(len(share.samples),)) if self.in_parts and group > 1 else share

    def any_parts(self, samples: int, group: int) -> bool:
        """Return whether any rank's share is a part of a group."""
        return -(-samples // group) < self.size and group > 1

    def sharing(self, share: Share, phase: str, plan: Plan) -> SharedGroup | None:
        """Return this process's part of a group, as if the other parts were equal to it."""
        return LonePart(len(share.samples), share.group) if share.parts else None

    def add_up(
        self, phase: str, parameters: Mapping[str, nn.Parameter], terms: Terms, shares: Shares, seen: ObservedShare
    ) -> tuple[Terms, Shares]:
        return terms, shares

    def alike(self, phase: str) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def local_size(self) -> int:
        return 1

    def forward_stop(self, stop: StopRequest) -> None:
        """Do nothing: this process takes the request itself."""

    def broadcast_number(self, number: int = 0) -> int:
        return number

    def broadcast(self, value: Value) -> Value:
        return value

    def barrier(self) -> None:
        """Return at once."""

    def broadcast_state(self, state: TrainingState) -> None:
        """Do nothing: there are no other ranks."""

    def agree(self, state: TrainingState) -> bool:
        return True


def check_ranks(
    phases: Sequence[Phase], batch: int, group: int, size: int, proportions: Sequence[float] | None = None
) -> list[str]:
    """Refuse more ranks than can have work.

    Args:
        batch: samples per update.
        group: samples that stand together.
        size: ranks.
        proportions: in which samples are dealt; None: alike.

    Returns:
        A line for each phase that leaves ranks without work, and one where ranks share groups.

    Raises:
        BadInput: some ranks would never have any.
    """
    samples = {phase.name: phase.samples(batch) for phase in phases}
    most = max(samples.values())
    if most < size:
        raise BadInput(
            f"{size} ranks: an update has {most} samples, and each rank takes at least one; start at most {most}, or "
            "give the recipe a larger training.batch (which changes the result)"
        )
    dealt = {phase.name: deal(samples[phase.name], phase.group(group), size, proportions) for phase in phases}
    sharing = [phase for phase, shares in dealt.items() if any(share.team for share in shares)]
    lines = [
        f"phase {phase}: {samples[phase]} samples for {size} ranks: {idle} of them work in vain there"
        for phase, shares in dealt.items()
        if (idle := sum(not share.counts for share in shares))
    ]
    if sharing:
        lines.append(
            f"normalisation groups of {group} are shared by ranks in phase{'s' if len(sharing) > 1 else ''} "
            f"{', '.join(sharing)}: fewer groups than ranks, so layers add up their sums over ranks in each forward; "
            "memory that runs out there ends the training"
        )
    return lines


SHARES = "shares"
"""Key of the shares in a checkpoint's JSON state."""


@dataclass
class ShareChoice:
    """The shares of a run's ranks."""

    samples: tuple[int, ...] | None = None  # samples of each rank; None: all equal
    # plan of each rank, as JSON; empty: all have the plan of the first rank
    plans: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        words: str | None,
        batch: int,
        group: int,
        ranks: Ranks,
        saved: Mapping[str, Any],
        say: Callable[[str], object],
    ) -> "ShareChoice":
        """Choose the shares by `--shares`, or as the run had them.

        Args:
            words: the value of `--shares`: "equal" or a number for each rank; None: as the run had it.
            batch: samples of a step.
            group: samples that are normalised together.
            ranks: the ranks.
            saved: the JSON state of the checkpoint that is resumed.
            say: is given a line for what was chosen.

        Raises:
            BadInput: what is asked for does not come out in whole groups.
        """
        requested = None if words is None else parse_shares(words, ranks.size)
        kept = saved.get(SHARES)
        if ranks.size == 1:
            if words is not None:
                say(f"--shares {words} is ignored: this process trains alone")
            return cls()
        if isinstance(requested, tuple):
            check_shares(requested, batch, group)
            samples = tuple(share * batch // sum(requested) for share in requested)
            say(f"shares: {_shown(samples)} samples, as asked for")
            same = kept is not None and kept["samples"] == list(samples) and kept["devices"] == list(ranks.devices)
            return cls(samples, kept["plans"] if kept is not None and same else [])
        if requested == "equal":
            return cls()
        if kept is not None and kept["devices"] == list(ranks.devices) and sum(kept["samples"]) == batch:
            say(f"shares: {_shown(kept['samples'])} samples, as the run had them here; override with --shares equal")
            return cls(tuple(kept["samples"]), kept["plans"])
        if kept is not None:
            say("shares: the run had another batch, other cards or other ranks, and its shares were for those")
        return cls()

    def matches_checkpoint(self, saved: Mapping[str, Any]) -> bool:
        """Return whether the checkpoint with this JSON state was written with the same shares."""
        return bool(list(self.samples or ()) == saved.get(SHARES, {}).get("samples", []))

    def forget_plans_unless_same(self, plan: Plan) -> None:
        """Forget the ranks' plans if the first rank's plan has changed: all others then plan anew too."""
        if self.plans and self.plans[0] != plan.as_json():
            self.plans = []

    def kept(self, ranks: Ranks) -> dict[str, Any]:
        """Return the entry for a checkpoint's JSON state."""
        if self.samples is None:
            return {}
        return {SHARES: {"samples": list(self.samples), "plans": self.plans, "devices": list(ranks.devices)}}


def _shown(samples: Sequence[int]) -> str:
    return ", ".join(map(str, samples))
