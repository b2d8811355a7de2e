"""Memory and work of a training step, by running the engine's own step: no formula about any model.

On tensors without data nothing is computed and no memory taken: that predicts. On real ones it measures.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from frugan.accelerator.host_memory import Away, Blocks, HostCopies, pinned_bytes, rounded_bytes
from frugan.contract.phase import MicroBatch, Phase, Terms
from frugan.engine.plan import Plan
from frugan.engine.state.state import TrainingState
from frugan.engine.state.working_weights import pending_gradient
from frugan.engine.step.step import Step
from frugan.engine.step.update import DrawFeed, PictureFeed, Probe
from frugan.stepmemory.dataless import Dataless
from frugan.stepmemory.measurement import Measurement, StepMemory
from frugan.stepmemory.tracker import Category, Tracker, tensors_of
from frugan.stepmemory.work import Work, WorkCounter

OutOfSight = Callable[[], AbstractContextManager[object]]
"""While it is open, nothing that is made counts as on the card."""


@dataclass(frozen=True)
class UnwatchedPictures:
    """Pictures in host memory: they are made out of sight of what watches the card."""

    feed: PictureFeed
    out_of_sight: OutOfSight

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        with self.out_of_sight():
            return self.feed.take(source, stream, position, count)


@dataclass(frozen=True)
class UnwatchedDraws:
    """Small random inputs in host memory, and large ones on the card."""

    feed: DrawFeed
    out_of_sight: OutOfSight

    def batch(self, phase: Phase, step: int, repeat: int, count: int) -> Mapping[str, Tensor]:
        with self.out_of_sight():
            return self.feed.batch(phase, step, repeat, count)

    def micro_batch(
        self, phase: Phase, step: int, repeat: int, first: int, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        return self.feed.micro_batch(phase, step, repeat, first, count, device)

    def update_seed(self, phase: Phase, step: int, repeat: int) -> int:
        return self.feed.update_seed(phase, step, repeat)


class HostBeside(TorchFunctionMode):
    """Tells host memory from a card's where nothing has data, for code that moves tensors between them as grids do.

    What is made without a device, or of nothing but tensors on the host, is on the host.

    Args:
        tracker: leaves out what lies on the host.
    """

    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self._tracker = tracker

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch's, where its result would lie."""
        kwargs = kwargs or {}
        tensors = tensors_of((args, kwargs))
        on_host = all(self._tracker.ignores(tensor) for tensor in tensors)
        target = self._target(func, args, kwargs)
        to_host = on_host if target is None else target.type == "cpu"
        if tensors and to_host != on_host:  # nothing without data moves: torch would give the same tensor
            func, args, kwargs = Tensor.clone, tensors[:1], {}
        with self._tracker.elsewhere() if to_host else nullcontext():
            return func(*args, **kwargs)

    @staticmethod
    def _target(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.device | None:
        """Where a result is asked for; None: wherever the operands are."""
        if func is Tensor.cpu:
            return torch.device("cpu")
        named = [kwargs.get("device"), *(args[1:2] if func is Tensor.to else ())]
        return next((torch.device(device) for device in named if isinstance(device, str | torch.device)), None)


SHEETS = "sheets"
"""Place of what is made while grids of samples are."""


def measure_step(
    step: Step,
    state: TrainingState,
    plan: Plan,
    blocks: Mapping[str, Sequence[str]] | None = None,
    *,
    as_card: bool = False,
    grids: Callable[[], object] | None = None,
    micro_batches: int | None = None,
    count_zeros: bool = False,
    dataless: Dataless | None = None,
) -> StepMemory:
    """Run the next step under the tracker.

    Args:
        blocks: network -> modules that places are named after; None: places are phases.
        as_card: count what would lie on a card, though everything is in one memory: not the pictures and draws on the
            host but their copies, and no state that the plan keeps on the host.
        grids: makes grids of samples; watched after the step.
        micro_batches: how many of each update are run; with more than one, also a smaller last one. The rest is
            extrapolated. None: all are run.
        count_zeros: as a step does whose gradients are reported. That takes room, but no part of an average step's
            work: such steps are few.
        dataless: runs operations where the state has no data.
    """
    on_host = _on_host(state, plan) if as_card else []
    measurement = Measurement(_held(state, plan, as_card=as_card), elsewhere=on_host, dataless=dataless)
    tracker = measurement.tracker
    if as_card:
        for optimizer in state.optimizers.values():
            optimizer.size_temporaries_for(card=True)
    probe = _MemoryProbe(tracker, measurement.counter, micro_batches, as_card=as_card)
    watched = replace(step, probe=probe)
    if as_card:
        watched = replace(
            watched,
            pictures=UnwatchedPictures(step.pictures, tracker.elsewhere),
            draws=UnwatchedDraws(step.draws, tracker.elsewhere),
        )
    host_work, host_bytes = _host_work(state, plan, step.phases), _kept_on_host_bytes(state, plan)
    with measurement, named_places(state, tracker, blocks or {}):
        watched.run(state, plan, count_zeros=count_zeros)
        tracker.mark("optimizer", _slots(state), again=True)
        if grids is not None:
            tracker.place = SHEETS
            with HostBeside(tracker) if as_card and dataless is not None else nullcontext():
                grids()
    return measurement.memory(
        [*(phase.name for phase in step.phases), *([SHEETS] if grids is not None else [])],
        work=sum(probe.found, host_work),
        host_bytes=host_bytes + probe.sent.blocks.total_bytes if as_card else 0,
        stayed_bytes=probe.sent.most_stayed_bytes,
    )


@dataclass
class _Sent:
    """Pinned host memory of offloaded activations, in the allocator's blocks, and bytes too small to be offloaded."""

    blocks: Blocks[None] = field(default_factory=Blocks)
    stayed_bytes: int = 0  # of this micro-batch
    most_stayed_bytes: int = 0  # of any so far

    def stays(self, tensor: Tensor) -> None:
        """Count what is not sent."""
        self.stayed_bytes += tensor.nbytes
        self.most_stayed_bytes = max(self.most_stayed_bytes, self.stayed_bytes)

    def watch(self, copy: Tensor) -> None:
        """Give a copy a block until it is freed."""
        block = self.blocks.take(rounded_bytes(copy.nbytes), lambda: None)
        weakref.finalize(copy, self.blocks.give_back, block).atexit = False


class _MemoryProbe(Probe):
    """Tells the tracker which phase a step is in, and what its tensors are for.

    Attributes:
        found: work of each update, by its share of an average step.
        sent: host memory that copies of activations take, and which got none.
    """

    def __init__(self, tracker: Tracker, counter: WorkCounter, micro_batches: int | None, *, as_card: bool) -> None:
        self.found: list[Work] = []
        self.sent = _Sent()
        self._tracker = tracker
        self._counter = counter
        self._most = micro_batches
        self._as_card = as_card
        self._left_out = 0
        self._before = Work()
        self._laps: list[Work] = []  # work at the beginning of each micro-batch
        self._done = Work()  # and at the end of the last
        self._first_end = (0, 0)  # events so far and bytes that live at the end of the first

    def phase_begins(self, phase: Phase) -> None:
        self._tracker.place = phase.name
        self._laps.clear()
        self._before = self._counter.work

    def shown(self, sizes: Sequence[int]) -> Sequence[int]:
        if self._most is None or len(sizes) <= self._most:
            self._left_out = 0
            return sizes
        rest = [size for size in sizes[-1:] if size != sizes[0] and self._most > 1]
        run = [*sizes[: self._most], *rest]
        self._left_out = len(sizes) - len(run)
        return run

    def micro_batch_begins(self, state: TrainingState, phase: Phase, micro: MicroBatch) -> MicroBatch:
        here = self._on_card(micro) if self._as_card else micro
        prepared = (p for name in phase.uses for p in state.networks[name].parameters())
        # what stands in for a master is no nn.Parameter
        standing_in = (weight for weight in prepared if not isinstance(weight, nn.Parameter))
        self._tracker.mark("working weights", standing_in, again=True)
        self._tracker.mark("batch", tensors_of((here.pictures, here.draws)))
        self._laps.append(self._counter.work)
        self.sent.stayed_bytes = 0
        return here

    def micro_batch_ends(self, state: TrainingState, phase: Phase, terms: Terms) -> None:
        if len(self._laps) == 1:
            self._first_end = len(self._tracker.trace.events), self._tracker.live_bytes
        elif len(self._laps) == 2 and self._left_out:
            self._grow_to_the_last(phase, terms)
        self._done = self._counter.work
        self._tracker.place = phase.name
        self._tracker.mark("gradients", _gradients(state), again=True)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        before = self._counter.work
        yield
        self._before += self._counter.work - before  # as if it had been done before the update

    def all_carried(self, state: TrainingState) -> None:
        self._tracker.mark("gradients", _gradients(state), again=True)  # still there: released after the update

    def phase_ends(self, phase: Phase) -> None:
        self._tracker.place = "between phases"
        # Each micro-batch that was left out counts as the second: the first one makes the sums that others add to.
        laps = [*self._laps, self._done]
        like = laps[2] - laps[1] if len(laps) > 2 else laps[-1] - laps[-2]
        self.found.append((self._counter.work - self._before + like * self._left_out) * (1 / phase.every))

    def _grow_to_the_last(self, phase: Phase, terms: Terms) -> None:
        """Add to the second micro-batch the memory that the last one would find in use.

        The first micro-batch left out adds all that the second left behind, each further one its own loss terms.
        """
        (begins, first_bytes), ends = self._first_end, len(self._tracker.trace.events)
        left_bytes = self._tracker.live_bytes - first_bytes
        own_bytes = self._tracker.repeat(list(terms.values()), self._left_out)
        more_bytes = left_bytes + (self._left_out - 1) * own_bytes
        if more_bytes > 0:
            self._tracker.trace.insert(more_bytes, phase.name, begins, ends)

    def host_copies(self) -> HostCopies:
        return _WatchedCopies(self._tracker if self._as_card else None, self._counter, self.sent)

    def _on_card(self, micro: MicroBatch) -> MicroBatch:
        """Copies of what lies in host memory."""

        def here(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {k: t.clone() if self._tracker.ignores(t) else t for k, t in tensors.items()}

        pictures = {source: here(named) for source, named in micro.pictures.items()}
        return replace(micro, pictures=pictures, draws=here(micro.draws))


@dataclass
class _WatchedCopies(HostCopies):
    """Copies that lie in host memory, though everything is in one memory; their way is counted."""

    tracker: Tracker | None  # of the card; None: host and device are one, and copies count
    counter: WorkCounter  # of work
    sent: _Sent  # how much of them there is at once

    def is_worth_it(self, tensor: Tensor) -> bool:
        is_sent = super().is_worth_it(tensor)
        if not is_sent:
            self.sent.stays(tensor)
        return is_sent

    def has_queue(self, device: torch.device) -> bool:
        return self.tracker is not None or super().has_queue(device)

    def send(self, tensor: Tensor) -> Away:
        self.counter.beside_bytes += tensor.nbytes
        with self.tracker.elsewhere() if self.tracker is not None else nullcontext():
            away = super().send(tensor)
        self.sent.watch(away.there)
        return away

    def bring(self, away: Away) -> None:
        self.counter.host_bytes += away.there.nbytes
        super().bring(away)

    def bring_ahead(self, away: Away) -> None:
        self.counter.beside_bytes += away.there.nbytes
        super().bring(away)


def _held(state: TrainingState, plan: Plan, *, as_card: bool) -> dict[Category, list[Tensor]]:
    """Return the tensors that live between steps, by what they are for."""
    tensors: dict[Category, list[Tensor]] = {
        "parameters": [t for network in state.networks.values() for t in (*network.parameters(), *network.buffers())]
    }
    on_host = _statistics(state) if as_card and plan.optimizer_on_host else []
    kept = {id(statistic) for statistic in on_host}
    tensors["optimizer"] = [tensor for tensor in (*_slots(state), *_numbers(state)) if id(tensor) not in kept]
    if not (as_card and plan.ema_on_host):
        tensors["averages"] = _averages(state)
    return tensors


def _on_host(state: TrainingState, plan: Plan) -> list[Tensor]:
    """Return the tensors that a plan keeps in host memory."""
    landings = [tensor for landing in state.ema.landings.values() for tensor in landing.values()]
    averages = [*_averages(state), *landings] if plan.ema_on_host else []
    return [*(_statistics(state) if plan.optimizer_on_host else ()), *averages]


def _kept_on_host_bytes(state: TrainingState, plan: Plan) -> int:
    """Return the bytes that a plan keeps in host memory between steps."""
    kept = 0
    if plan.ema_on_host:
        for network in state.ema.networks.values():
            sizes = [t.nbytes for t in network.state_dict().values()]
            kept += sum(sizes) + pinned_bytes(sizes)  # the average, and where the network's own weights come over to
    if plan.optimizer_on_host:
        for optimizer in state.optimizers.values():
            kept += pinned_bytes([slots[name].nbytes for slots in optimizer.state.values() for name in optimizer.slots])
    return kept


def _host_work(state: TrainingState, plan: Plan, phases: Sequence[Phase]) -> Work:
    """Return the traffic of a plan between host and device in an average step."""
    moved = 0.0
    for phase in phases if plan.optimizer_on_host else ():
        moved += _passing_bytes(state, phase) * phase.repeats / phase.every
    for phase in phases if plan.shard_optimizer else ():
        moved += _gathered_bytes(state, phase) * phase.repeats / phase.every
    beside = float(sum(t.nbytes for t in _averages(state))) if plan.ema_on_host else 0.0
    return Work(host_bytes=moved, beside_bytes=beside)


def _passing_bytes(state: TrainingState, phase: Phase) -> int:
    """Return how many bytes one way take as long as moving the statistics to the card and back.

    Both directions overlap, but for one piece, the largest.
    """
    optimizer = state.optimizers[phase.optimizer]
    parameters = (p for name in phase.trainable for p in state.networks[name].parameters() if p.requires_grad)
    sizes = [sum(kept[slot].nbytes for slot in optimizer.slots) for kept in map(optimizer.state_for, parameters)]
    if optimizer.piece is None:
        return sum(sizes) + max(sizes, default=0)
    return sum(sizes) + min(sum(sizes), optimizer.piece * len(optimizer.slots) * torch.float32.itemsize)


def _gathered_bytes(state: TrainingState, phase: Phase) -> int:
    """Return the bytes gathered from other cards; they count as the host's, by which cards of one machine exchange."""
    shards = state.optimizers[phase.optimizer].shards
    if shards is None:
        return 0
    trained = {id(p) for name in phase.trainable for p in state.networks[name].parameters()}
    return sum(e.master.nbytes - e.own.nbytes for e in shards.slices if id(e.master) in trained)


def _averages(state: TrainingState) -> list[Tensor]:
    return [t for network in state.ema.networks.values() for t in (*network.parameters(), *network.buffers())]


def _slots(state: TrainingState) -> list[Tensor]:
    slots = (slots for optimizer in state.optimizers.values() for slots in optimizer.state.values())
    return [value for named in slots for value in named.values() if isinstance(value, Tensor)]


def _numbers(state: TrainingState) -> list[Tensor]:
    """Return scalar tensors (counts, loss scales): each takes a whole block, which shows in small trainings."""
    scales = (number for scale in state.loss_scales.values() for number in (scale.scale, scale.good))
    counts = (count for optimizer in state.optimizers.values() for count in optimizer.counts.values())
    return [*scales, *counts, *state.skipped.values(), *state.carried.values()]


def _statistics(state: TrainingState) -> list[Tensor]:
    """Slots that may lie on the host: all but counters."""
    return [
        slots[name]
        for optimizer in state.optimizers.values()
        for slots in optimizer.state.values()
        for name in optimizer.slots
    ]


def _gradients(state: TrainingState) -> list[Tensor]:
    """Gradients of masters, and of what stands in their places while a phase runs."""
    held = {id(p): p for optimizer in state.optimizers.values() for g in optimizer.param_groups for p in g["params"]}
    placed = {id(p): p for network in state.networks.values() for p in network.parameters()}
    gradients = [parameter.grad for parameter in {**held, **placed}.values()]
    gradients += [pending_gradient(parameter) for parameter in placed.values()]
    return [gradient for gradient in gradients if gradient is not None]


@contextmanager
def named_places(state: TrainingState, tracker: Tracker, blocks: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Name places after blocks: in a forward from the block's start, in a backward from when its gradient has come."""

    def named(name: str) -> str:
        return f"{tracker.place.split('/')[0]}/{name}"

    def watch(module: nn.Module, name: str) -> None:
        def before(_: nn.Module, inputs: object) -> None:
            if torch.is_grad_enabled():
                tracker.mark("saved activations", tensors_of(inputs))  # a recomputed block keeps what it is given
            tracker.place = named(name)

        def after(_: nn.Module, __: object, outputs: object) -> None:
            tracker.place = tracker.place.split("/")[0]
            for tensor in tensors_of(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(lambda _: setattr(tracker, "place", named(f"{name} backward")))

        undo.callback(module.register_forward_pre_hook(before).remove)
        undo.callback(module.register_forward_hook(after).remove)

    with ExitStack() as undo:
        for network, names in blocks.items():
            for name in names if network in state.networks else ():
                watch(state.networks[network].get_submodule(name), f"{network}.{name}")
        yield
