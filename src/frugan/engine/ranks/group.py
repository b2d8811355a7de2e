"""Ranks over torch.distributed: gloo between processors, NCCL between cards; started by torchrun."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.device import no_retry, ran_out_of_memory
from frugan.contract.layers import SharedGroup
from frugan.engine.plan import Plan
from frugan.engine.ranks.place import Place, Share, deal
from frugan.engine.ranks.ranks import LonePart, ObservedShare, Shares, TeamGroup, Terms, Value
from frugan.engine.ranks.watch import Heartbeat
from frugan.engine.requests import StopRequest
from frugan.engine.state.optimizer_shards import BUCKET_BYTES, OptimizerShards, Shard, Slice, in_memory_order, in_shape
from frugan.engine.state.state import TrainingState
from frugan.engine.state.working_weights import memory_of
from frugan.errors import TrainingFailed
from frugan.torch_internals import foreach_copy_, foreach_mul_
from frugan.wording import first_line


def state_tensors(state: TrainingState) -> Iterator[Tensor]:
    """Every tensor that training moves, in the same order on every rank."""
    for network in (*state.networks.values(), *state.ema.networks.values()):
        yield from network.state_dict().values()
    for optimizer in state.optimizers.values():
        yield from optimizer.counts.values()
        for parameter, moved in zip(optimizer.parameters(), optimizer.moved(), strict=True):
            kept = optimizer.state[moved]
            # of what is shared out, every rank has another slice
            yield from (kept[name] for name in (*(optimizer.slots if moved is parameter else ()), *optimizer.steps))
    for scale in state.loss_scales.values():
        yield from (scale.scale, scale.good)
    yield from state.carried.values()
    yield from state.skipped.values()


_BITS: Mapping[int, torch.dtype] = MappingProxyType({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64})
"""Bytes of an element -> integers of as many."""


@torch.no_grad()
def checksum(state: TrainingState) -> Tensor:
    """A number that almost surely differs where any bit does; int64 [1], on the host.

    The last step's copies of optimizer state to the host are waited for first.
    """
    accelerator_of(state.device).synchronize()
    bits = (memory_of(tensor.detach()).view(_BITS[tensor.element_size()]) for tensor in state_tensors(state))
    sums = torch.stack([words.sum(dtype=torch.int64).to(state.device) for words in bits]).cpu()
    return (sums * torch.arange(1, len(sums) + 1)).sum().reshape(1)


@torch.no_grad()
def add_up(tensors: Sequence[Tensor], all_reduce: Callable[[Tensor], None], bucket_bytes: int = BUCKET_BYTES) -> int:
    """Replace each tensor by its sum over all ranks, in place.

    Args:
        tensors: floating point, on one device; of the same shapes, layouts and order on every rank.
        all_reduce: replaces a one-dimensional tensor by its sum over all ranks.

    Returns:
        Bytes that were added up.
    """
    flat = [memory_of(tensor) for tensor in tensors]
    for bucket in _buckets(flat, bucket_bytes):
        if len(bucket) == 1:
            all_reduce(bucket[0])
            continue
        together = torch.cat(bucket)
        all_reduce(together)
        foreach_copy_(bucket, list(together.split([one.numel() for one in bucket])))
    return sum(one.nbytes for one in flat)


def _buckets(flat: Sequence[Tensor], bucket_bytes: int) -> Iterator[list[Tensor]]:
    for dtype in dict.fromkeys(one.dtype for one in flat):
        bucket: list[Tensor] = []
        room = bucket_bytes
        for one in flat:
            if one.dtype != dtype:
                continue
            if one.nbytes >= bucket_bytes:
                yield [one]
                continue
            if one.nbytes > room:
                yield bucket
                bucket, room = [], bucket_bytes
            bucket.append(one)
            room -= one.nbytes
        if bucket:
            yield bucket


@torch.no_grad()
def collect(state: TrainingState, orders: Any) -> None:
    """Give the first rank every statistic whole, in host memory; every rank calls it.

    Args:
        orders: gloo's group of all ranks.
    """
    for shards, number, piece, slot, statistic in _shared_out(state):
        rank, size = shards.shard.rank, shards.shard.size
        there = torch.zeros(piece.length, dtype=statistic.dtype)
        there[: statistic.numel()].copy_(statistic)
        parts = [torch.empty_like(there) for _ in range(size)] if rank == 0 else None
        dist.gather(there, parts, dst=0, group=orders)
        if parts is not None:
            master = piece.master.detach()
            shards.whole[number, slot] = in_shape(master, torch.cat(parts)[: master.numel()])


@torch.no_grad()
def scatter_statistics(state: TrainingState, orders: Any, sent: set[tuple[str, int, str]]) -> None:
    """Give every rank its slices of what the first one has read of a checkpoint; every rank calls it.

    Args:
        orders: gloo's group of all ranks.
        sent: the statistics to send, from `read_whole` on the first rank.
    """
    names = {id(optimizer.shards): name for name, optimizer in state.optimizers.items()}
    for shards, number, piece, slot, statistic in _shared_out(state):
        if (names[id(shards)], number, slot) not in sent:
            continue
        master = piece.master.detach()
        if (whole := shards.whole.pop((number, slot), None)) is not None:
            flat = in_memory_order(master, whole)
        else:
            flat = torch.empty(master.numel(), dtype=statistic.dtype)
        dist.broadcast(flat, src=0, group=orders)
        statistic.copy_(flat[piece.first : piece.first + statistic.numel()])


def read_whole(state: TrainingState) -> set[tuple[str, int, str]]:
    """Optimizer, number of a parameter, and slot of all that this rank has whole."""
    shards = {name: optimizer.shards for name, optimizer in state.optimizers.items() if optimizer.shards is not None}
    return {(name, number, slot) for name, shard in shards.items() for number, slot in shard.whole}


def forget_whole(state: TrainingState) -> None:
    """Free the collected statistics."""
    for optimizer in state.optimizers.values():
        if optimizer.shards is not None:
            optimizer.shards.whole.clear()


def is_shared_out(state: TrainingState) -> bool:
    """Return whether any optimizer's state is sharded over the ranks."""
    return any(True for _ in _shared_out(state))


def _shared_out(state: TrainingState) -> Iterator[tuple[OptimizerShards, int, Slice, str, Tensor]]:
    """Shards, number of the parameter, its slice, slot, and the statistic of that slice; in one order on all ranks."""
    for optimizer in state.optimizers.values():
        for number, piece in enumerate(optimizer.shards.slices if optimizer.shards is not None else ()):
            for slot in optimizer.slots if not piece.is_whole else ():
                assert optimizer.shards is not None
                yield optimizer.shards, number, piece, slot, optimizer.state[piece.own][slot]


@dataclass(frozen=True)
class Team:
    """Ranks that share normalisation groups."""

    ranks: range  # numbers of the ranks
    sums: Any  # process group of their devices; None: all ranks are in it
    words: Any  # gloo's process group, between hosts
    watch: Heartbeat  # notices who is lost

    @classmethod
    def of(cls, team: range, watch: Heartbeat, device: torch.device, orders: Any) -> "Team":
        """Create the process groups of a team; only its ranks call it.

        Args:
            orders: gloo's group of all ranks.
        """
        if len(team) == len(watch.names):
            return cls(team, None, orders, watch)

        def new_group(backend: str) -> Any:
            return dist.new_group(list(team), backend=backend, use_local_synchronization=True)

        with _name_lost_rank(watch, "coming together to share normalisation groups", team):
            words = new_group("gloo")
            sums = new_group(backend) if (backend := accelerator_of(device).collectives) != "gloo" else words
        return cls(team, sums, words, watch)

    def gather(self, number: int, phase: str) -> list[int]:
        """Return the number of each rank in the team, in order."""
        numbers = [torch.zeros(1, dtype=torch.int64) for _ in self.ranks]
        with _name_lost_rank(self.watch, f"comparing plans of phase {phase}", self.ranks):
            dist.all_gather(numbers, torch.tensor([number]), group=self.words)
        return [int(value) for value in numbers]

    def add_up(self, phase: str, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the team."""
        with _name_lost_rank(self.watch, f"sharing normalisation groups of phase {phase}", self.ranks):
            dist.all_reduce(tensor, group=self.sums)


def forwards_of(plan: Plan) -> int:
    """A number that differs where plans run other forwards, or in another order: every one of them sums over ranks."""
    values = plan.as_json()
    alike = {name: values[name] for name in ("precision", "recompute", "keep_products", "offload", "parts_in_sequence")}
    return int.from_bytes(hashlib.sha256(json.dumps(alike, sort_keys=True).encode()).digest()[:7], "big")


@dataclass
class RankGroup:
    """Several processes that train together, seen from one of them; see `Ranks`."""

    place: Place  # place of this process
    device: torch.device  # device that this process trains on
    watch: Heartbeat  # notices who is lost
    orders: Any  # gloo's group, by which the first rank says what comes next
    devices: tuple[str, ...] = ()  # device of each rank, in words
    proportions: Sequence[float] | None = None  # in which samples are dealt to ranks; None: alike
    summed_bytes: int = 0  # bytes that were summed over the ranks so far
    _known: set[str] = field(default_factory=set)
    _teams: dict[range, Team] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        return self.place.rank

    @property
    def name(self) -> str:
        """Name of this rank in messages."""
        return self.watch.names[self.rank]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.place.size

    def share(self, samples: int, group: int) -> Share:
        """The samples of an update that this rank sees."""
        return deal(samples, group, self.size, self.proportions)[self.rank]

    def shard(self) -> Shard | None:
        """Which slices of parameters this rank moves, where optimizers' state is shared out."""

        # torch 2.13 calls it otherwise, and warns of the older name
        by_torch = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

        def all_gather(out: Tensor, values: Tensor) -> None:
            with _name_lost_rank(self.watch, "gathering what each rank has moved"):
                by_torch(out, values)
            self.summed_bytes += out.nbytes

        return Shard(self.rank, self.size, all_gather)

    @contextmanager
    def collected(self, state: TrainingState) -> Iterator[None]:
        """Inside, the first rank has whole what of the optimizers' state is shared out; the others give theirs."""
        if not is_shared_out(state):
            yield
            return
        try:
            with _name_lost_rank(self.watch, "collecting the optimizers' state"):
                collect(state, self.orders)
            yield
        finally:
            forget_whole(state)

    def set_shares(self, proportions: Sequence[float] | None) -> None:
        """Deal samples in these proportions from here on."""
        self.proportions = proportions

    def gather(self, value: Value) -> list[Value]:
        """Return every rank's value, in order; all ranks call it."""
        values: list[Any] = [None] * self.size
        with _name_lost_rank(self.watch, "telling all ranks"):
            dist.all_gather_object(values, value, group=self.orders)
        return values

    def any_parts(self, samples: int, group: int) -> bool:
        """Return whether any rank's share is a part of a group."""
        return -(-samples // group) < self.size and group > 1

    def sharing(self, share: Share, phase: str, plan: Plan) -> SharedGroup | None:
        """The normalisation group that this rank's share is a part of, with those who have the rest of it.

        Raises:
            TrainingFailed: by their plans they would not recompute the same, and wait for each other.
        """
        if share.team is None:
            return LonePart(len(share.samples), share.group) if share.parts else None
        if share.team not in self._teams:
            self._teams[share.team] = Team.of(share.team, self.watch, self.device, self.orders)
        team = self._teams[share.team]
        plans = team.gather(forwards_of(plan), phase)
        other = [self.watch.names[rank] for rank, theirs in zip(share.team, plans, strict=True) if theirs != plans[0]]
        if other:
            raise TrainingFailed(
                f"phase {phase}: {', '.join(other)} and {self.watch.names[share.team[0]]} share a normalisation group, "
                "and their plans recompute different blocks; resume with a --memory that all of them have"
            )
        return TeamGroup(len(share.samples), share.group, partial(team.add_up, phase))

    def add_up(
        self, phase: str, parameters: Mapping[str, nn.Parameter], terms: Terms, shares: Shares, seen: ObservedShare
    ) -> tuple[Terms, Shares]:
        """Add up gradients, terms and observations over all ranks: one message, or a few where there is much.

        A number that is not finite on one rank makes the sum so, and all of them judge the same sums.
        """
        weights = torch.tensor(shares).to(self.device, non_blocking=True)  # [micro-batches]
        sums = torch.stack([(values.float() * weights).sum() for values in terms.values()])  # [terms]
        observed, carried = seen.observer.sums(self.device), seen.phase_state.sums()
        if not seen.share.counts:
            foreach_mul_([*observed, *carried], 0.0)
        gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        tensors = [*gradients.values(), sums, *observed, *carried]
        self._check_alike(phase, [*gradients, *terms], tensors)
        with _name_lost_rank(self.watch, f"adding up phase {phase}"):
            self.summed_bytes += add_up(tensors, dist.all_reduce)
        seen.observer.replace_sums(observed)
        seen.phase_state.replace_sums(carried, seen.share.part)
        return {name: value.reshape(1) for name, value in zip(terms, sums, strict=True)}, (1.0,)

    def alike(self, phase: str) -> AbstractContextManager[None]:
        """Inside, all ranks act together: one alone cannot repeat the update."""
        return no_retry(f"the update of phase {phase}")

    @property
    def local_size(self) -> int:
        """Number of ranks on this machine."""
        return self.place.local_size

    def forward_stop(self, stop: StopRequest) -> None:
        """Forward a stop requested of any rank to the first."""
        self.watch.stop = stop

    def broadcast_number(self, number: int = 0) -> int:
        """Return the first rank's number on all ranks; the others' are ignored."""
        value = torch.tensor([number], dtype=torch.int64)
        with _name_lost_rank(self.watch, "waiting for what comes next"):
            dist.broadcast(value, src=0, group=self.orders)
        return int(value)

    def broadcast(self, value: Value) -> Value:
        """Return the first rank's value on all ranks; the others' are ignored."""
        values: list[Any] = [value if self.rank == 0 else None]
        with _name_lost_rank(self.watch, "being told how to begin"):
            dist.broadcast_object_list(values, src=0, group=self.orders)
        return values[0]  # type: ignore[no-any-return]

    def to_first(self, value: Value) -> list[Value]:
        """Return every rank's value, in order, on the first rank; an empty list on the others."""
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with _name_lost_rank(self.watch, "gathering what the ranks have found"):
            dist.gather_object(value, values, dst=0, group=self.orders)
        return values or []

    def pass_rows(self, rows: Iterable[Tensor], dimensions: int) -> Iterator[Tensor]:
        """On the first rank the rows of all others [n, dimensions], in the order of ranks; the others give theirs.

        Args:
            rows: of this rank, fp32 on the host, in pieces; the first rank's own stay where they are.
        """
        with _name_lost_rank(self.watch, "passing on features"):
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
        """Wait until all ranks have called this."""
        with _name_lost_rank(self.watch, "waiting for all ranks"):
            dist.barrier(group=self.orders)

    def broadcast_state(self, state: TrainingState) -> None:
        """Copy the first rank's state to all others."""
        numbers = (state.step, {name: scale.found for name, scale in state.loss_scales.items()})
        state.step, scale_found = self.broadcast(numbers)
        for name, scale in state.loss_scales.items():
            scale.found = scale_found[name]
        with _name_lost_rank(self.watch, "being given the state"), torch.no_grad():
            for tensor in state_tensors(state):
                group = self.orders if tensor.device.type == "cpu" else None
                dist.broadcast(memory_of(tensor.detach()), src=0, group=group)
        sent = self.broadcast(read_whole(state))
        with _name_lost_rank(self.watch, "being given the state"):
            scatter_statistics(state, self.orders, sent)

    def agree(self, state: TrainingState) -> bool:
        """Return whether all ranks had the same state; if not, all are given that of the first."""
        sums = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _name_lost_rank(self.watch, "comparing states"):
            dist.all_gather(sums, checksum(state), group=self.orders)
        same = all(bool(one == sums[0]) for one in sums)
        if not same:
            self.broadcast_state(state)
        return same

    def _check_alike(self, phase: str, names: list[str], tensors: list[Tensor]) -> None:
        """Refuse tensors that differ between ranks: their sum would be wrong, or the ranks would wait for ever."""
        if phase in self._known:
            return
        self._known.add(phase)
        shown = repr((names, [(tuple(t.shape), t.stride(), str(t.dtype)) for t in tensors]))
        digests: list[Any] = [None] * self.size
        with _name_lost_rank(self.watch, f"comparing phase {phase}"):
            dist.all_gather_object(digests, hashlib.sha256(shown.encode()).hexdigest(), group=self.orders)
        others = [self.watch.names[rank] for rank, digest in enumerate(digests) if digest != digests[0]]
        if others:
            raise TrainingFailed(
                f"phase {phase}: {', '.join(others)} did not get gradients and terms of the same names and shapes as "
                f"{self.watch.names[0]}; do all run the same frugan, torch and recipe, in the same precision?"
            )


@contextmanager
def _name_lost_rank(watch: Heartbeat, what: str, ranks: range | None = None) -> Iterator[None]:
    """Name the lost rank if a message to the others fails.

    Args:
        what: describes what the ranks do here.
        ranks: take part; None: all.

    Raises:
        TrainingFailed: a message failed.
    """
    watch.comes_to(what, ranks)
    try:
        yield
    except RuntimeError as error:
        if ran_out_of_memory(error):
            raise
        reason = watch.lost()
        if reason is not None and watch.told:
            raise TrainingFailed(f"{reason}; this rank ends as well") from error
        reason = reason or f"the ranks lost each other ({first_line(error)})"
        raise TrainingFailed(
            f"{reason}; noticed while {what}. The run is whole up to its last checkpoint: the same command goes on "
            "from there, and `torchrun --max-restarts=3` gives it by itself"
        ) from error
