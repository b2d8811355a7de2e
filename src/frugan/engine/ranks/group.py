"""Ranks over torch.distributed: gloo between processors, NCCL between cards; started by torchrun."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from frugan.contract.layers import SharedGroup
from frugan.engine.interrupt import StopRequest
from frugan.engine.layout import memory_of
from frugan.engine.optimizer_shards import Shard
from frugan.engine.out_of_memory import ran_out_of_memory
from frugan.engine.plan import Plan
from frugan.engine.ranks.place import Place, Share, deal
from frugan.engine.ranks.ranks import Seen, Sent, Shares, Terms
from frugan.engine.ranks.shards import collect, forget_whole, hand_out, is_shared_out, read_whole
from frugan.engine.ranks.shared_groups import LonePart, TeamGroup
from frugan.engine.ranks.state import checksum, state_tensors
from frugan.engine.ranks.sums import add_up
from frugan.engine.ranks.team import Team, forwards_of
from frugan.engine.ranks.watch import RankWatch
from frugan.engine.retries import no_way_back
from frugan.engine.state import TrainingState
from frugan.errors import TrainingFailed


@dataclass
class RankGroup:
    """Several processes that train together, seen from one of them; see `Ranks`.

    Attributes:
        place: of this process.
        device: that it trains on.
        watch: notices who is lost.
        orders: gloo's group, by which the first rank says what comes next.
        devices: what each rank trains on, in words.
        proportions: in which samples are dealt to ranks; None: alike.
        summed_bytes: that were added up over the ranks so far.
    """

    place: Place
    device: torch.device
    watch: RankWatch
    orders: Any
    devices: tuple[str, ...] = ()
    proportions: Sequence[float] | None = None
    summed_bytes: int = 0
    _known: set[str] = field(default_factory=set)
    _teams: dict[range, Team] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """This one, from 0."""
        return self.place.rank

    @property
    def name(self) -> str:
        """What this one is called in messages."""
        return self.watch.names[self.rank]

    @property
    def size(self) -> int:
        """How many there are."""
        return self.place.size

    def share(self, samples: int, group: int) -> Share:
        """The samples of an update that this rank sees."""
        return deal(samples, group, self.size, self.proportions)[self.rank]

    def shard(self) -> Shard | None:
        """Which slices of parameters this rank moves, where optimizers' state is shared out."""

        # torch 2.13 calls it otherwise, and warns of the older name
        by_torch = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

        def all_gather(out: Tensor, own: Tensor) -> None:
            with _talking(self.watch, "gathering what each rank has moved"):
                by_torch(out, own)
            self.summed_bytes += out.nbytes

        return Shard(self.rank, self.size, all_gather)

    @contextmanager
    def collected(self, state: TrainingState) -> Iterator[None]:
        """Inside, the first rank has whole what of the optimizers' state is shared out; the others give theirs."""
        if not is_shared_out(state):
            yield
            return
        try:
            with _talking(self.watch, "collecting the optimizers' state"):
                collect(state, self.orders)
            yield
        finally:
            forget_whole(state)

    def deal_by(self, proportions: Sequence[float] | None) -> None:
        """Deal samples in these proportions from here on."""
        self.proportions = proportions

    def gather(self, value: Sent) -> list[Sent]:
        """Every rank's value, in order; all of them call it."""
        found: list[Any] = [None] * self.size
        with _talking(self.watch, "waiting for all ranks"):
            dist.all_gather_object(found, value, group=self.orders)
        return found

    def any_parts(self, samples: int, group: int) -> bool:
        """Whether any rank's share is a part of a group."""
        return -(-samples // group) < self.size and group > 1

    def sharing(self, share: Share, phase: str, plan: Plan) -> SharedGroup | None:
        """The normalisation group that this rank's share is a part of, with those who have the rest of it.

        Raises:
            TrainingFailed: by their plans they would not recompute the same, and wait for each other.
        """
        if share.team is None:
            return LonePart(len(share.samples), share.group) if share.parts else None
        with _talking(self.watch, f"sharing normalisation groups of phase {phase}"):
            if share.team not in self._teams:
                self._teams[share.team] = Team.of(share.team, self.size, self.device, self.orders)
            team = self._teams[share.team]
            plans = team.gather(forwards_of(plan))
        other = [self.watch.names[rank] for rank, theirs in zip(share.team, plans, strict=True) if theirs != plans[0]]
        if other:
            raise TrainingFailed(
                f"phase {phase}: {', '.join(other)} and {self.watch.names[share.team[0]]} share a normalisation group, "
                "and their plans recompute different blocks; resume with a --memory that all of them have"
            )

        def add_up(tensor: Tensor) -> None:
            with _talking(self.watch, f"sharing normalisation groups of phase {phase}"):
                dist.all_reduce(tensor, group=team.sums)

        return TeamGroup(len(share.samples), share.group, add_up)

    def add_up(
        self, phase: str, parameters: Mapping[str, nn.Parameter], terms: Terms, shares: Shares, seen: Seen
    ) -> tuple[Terms, Shares]:
        """Add up gradients, terms and observations over all ranks: one message, or a few where there is much.

        A number that is not finite on one rank makes the sum so, and all of them judge the same sums.
        """
        weights = torch.tensor(shares).to(self.device, non_blocking=True)  # [micro-batches]
        own = torch.stack([(values.float() * weights).sum() for values in terms.values()])  # [terms]
        observed, carried = seen.observer.sums(self.device), seen.own.sums()
        if not seen.share.counts:
            torch._foreach_mul_([*observed, *carried], 0.0)
        gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        tensors = [*gradients.values(), own, *observed, *carried]
        self._check_alike(phase, [*gradients, *terms], tensors)
        with _talking(self.watch, f"adding up phase {phase}"):
            self.summed_bytes += add_up(tensors, dist.all_reduce)
        seen.observer.replace_sums(observed)
        seen.own.replace_sums(carried, seen.share.part)
        return {name: value.reshape(1) for name, value in zip(terms, own, strict=True)}, (1.0,)

    def alike(self, phase: str) -> AbstractContextManager[None]:
        """Inside, every rank does the same: one alone cannot begin the update again."""
        return no_way_back(phase)

    @property
    def local_size(self) -> int:
        """How many there are on this machine."""
        return self.place.local_size

    def pass_on(self, stop: StopRequest) -> None:
        """Let a stop that is asked of any rank be one of the first."""
        self.watch.stop = stop

    def broadcast_number(self, number: int = 0) -> int:
        """The first rank's number, on all ranks; the others' do not count."""
        value = torch.tensor([number], dtype=torch.int64)
        with _talking(self.watch, "waiting for what comes next"):
            dist.broadcast(value, src=0, group=self.orders)
        return int(value)

    def broadcast(self, value: Sent) -> Sent:
        """The first rank's value, on all ranks; the others' do not count."""
        values: list[Any] = [value if self.rank == 0 else None]
        with _talking(self.watch, "being told how to begin"):
            dist.broadcast_object_list(values, src=0, group=self.orders)
        return values[0]  # type: ignore[no-any-return]

    def to_first(self, value: Sent) -> list[Sent]:
        """On the first rank what every one has, in their order; on the others nothing."""
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with _talking(self.watch, "gathering what the ranks have found"):
            dist.gather_object(value, values, dst=0, group=self.orders)
        return values or []

    def pass_rows(self, rows: Iterable[Tensor], dimensions: int) -> Iterator[Tensor]:
        """On the first rank the rows of all others [n, dimensions], in the order of ranks; the others give theirs.

        Args:
            rows: of this rank, fp32 on the host, in pieces; the first rank's own stay where they are.
        """
        with _talking(self.watch, "passing on features"):
            if self.rank != 0:
                for piece in rows:
                    dist.send(torch.tensor([len(piece)]), 0, group=self.orders)
                    dist.send(piece.float().contiguous(), 0, group=self.orders)
                dist.send(torch.tensor([0]), 0, group=self.orders)
                return
            for rank in range(1, self.size):
                while True:
                    count = torch.zeros(1, dtype=torch.int64)
                    dist.recv(count, rank, group=self.orders)
                    if not count:
                        break
                    piece = torch.empty(int(count), dimensions)
                    dist.recv(piece, rank, group=self.orders)
                    yield piece

    def barrier(self) -> None:
        """Go on once all ranks have come here."""
        with _talking(self.watch, "waiting for all ranks"):
            dist.barrier(group=self.orders)

    def give_state(self, state: TrainingState) -> None:
        """Put the first rank's state into that of all others."""
        numbers = (state.step, {name: scale.found for name, scale in state.loss_scales.items()})
        state.step, found = self.broadcast(numbers)
        for name, scale in state.loss_scales.items():
            scale.found = found[name]
        with _talking(self.watch, "being given the state"), torch.no_grad():
            for tensor in state_tensors(state):
                group = self.orders if tensor.device.type == "cpu" else None
                dist.broadcast(memory_of(tensor.detach()), src=0, group=group)
        given = self.broadcast(read_whole(state))
        with _talking(self.watch, "being given the state"):
            hand_out(state, self.orders, given)

    def agree(self, state: TrainingState) -> bool:
        """Whether all ranks had the same state; if not, they now have that of the first."""
        sums = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _talking(self.watch, "comparing states"):
            dist.all_gather(sums, checksum(state), group=self.orders)
        same = all(bool(one == sums[0]) for one in sums)
        if not same:
            self.give_state(state)
        return same

    def _check_alike(self, phase: str, names: list[str], tensors: list[Tensor]) -> None:
        """Refuse to add up what does not belong together: else it would be added up wrongly, or wait for ever."""
        if phase in self._known:
            return
        self._known.add(phase)
        shown = repr((names, [(tuple(t.shape), t.stride(), str(t.dtype)) for t in tensors]))
        digests: list[Any] = [None] * self.size
        with _talking(self.watch, f"comparing phase {phase}"):
            dist.all_gather_object(digests, hashlib.sha256(shown.encode()).hexdigest(), group=self.orders)
        others = [self.watch.names[rank] for rank, digest in enumerate(digests) if digest != digests[0]]
        if others:
            raise TrainingFailed(
                f"phase {phase}: {', '.join(others)} did not get gradients and terms of the same names and shapes as "
                f"{self.watch.names[0]}; do all run the same frugan, torch and recipe, in the same precision?"
            )


@contextmanager
def _talking(watch: RankWatch, what: str) -> Iterator[None]:
    """Say which rank is lost, where a message to the others fails.

    Raises:
        TrainingFailed: it did.
    """
    try:
        yield
    except RuntimeError as error:
        if ran_out_of_memory(error):
            raise
        reason = watch.lost()
        if reason is not None and watch.told:
            raise TrainingFailed(f"{reason}; this rank ends as well") from error
        reason = reason or f"the ranks lost each other ({str(error).partition(chr(10))[0]})"
        raise TrainingFailed(
            f"{reason}; noticed while {what}. The run is whole up to its last checkpoint: the same command goes on "
            "from there, and `torchrun --max-restarts=3` gives it by itself"
        ) from error
