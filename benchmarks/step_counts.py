"""What a step asks of a device, counted on tensors without data: kernels started, bytes, arithmetic, waits.

Steps of every recipe that ships are counted, and of the configurations that goals were set for.

Nothing in it is noisy and nothing needs a card, so that a change that costs a few percent is seen at once.
"""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode

import frugan
from frugan.accelerator.precision import PrecisionName, resolve_precision
from frugan.contract.phase import MicroBatch, Phase, Terms
from frugan.engine.plan import Plan
from frugan.engine.run.training import Stage, Training
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.engine.step.update import Probe
from frugan.engine.streams import Streams
from frugan.planning.prediction import BlankPictures, CardPlan
from frugan.planning.step_memory import UnwatchedDraws, UnwatchedPictures
from frugan.recipe.loading import load_recipe
from frugan.recipes import built_in
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory.dataless import META, Dataless, WithoutData, fused_attention, resting_collector
from frugan.stepmemory.work import WorkCounter
from frugan.torch_internals import no_compiler

ASKED_FOR_A_VALUE = torch.ops.aten._local_scalar_dense.default
AVERAGES = "averages"
"""Stands for a phase: what follows them."""
NO_NUMBER = (1 << 64) - 1
"""What torch gives a node that makes gradients add up, instead of its number."""
CODE = f"{Path(frugan.__file__).parent}/"
RUNS_ALL = (f"{CODE}stepmemory/", f"{CODE}kernels/operation.py")
"""Where others' operations pass through: all that are run without data, and kernels'."""
MICRO_BATCHES = 2
"""Of a counted step: what the first one costs once is there, and what each further one costs."""


@dataclass(frozen=True)
class Counts:
    """What was asked of a device."""

    launches: int = 0  # operations that move something; each is about one kernel to be started
    bytes_moved: int = 0  # inputs and outputs of every operation
    flops: int = 0  # of convolutions, matrix products and attention, two for each multiply-accumulate
    syncs: int = 0  # times that the host waited for a value
    fp32_flops: int = 0  # of `flops`, those on fp32 numbers

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.launches + other.launches,
            self.bytes_moved + other.bytes_moved,
            self.flops + other.flops,
            self.syncs + other.syncs,
            self.fp32_flops + other.fp32_flops,
        )


@dataclass(frozen=True)
class StepCounts:
    """What a step asked of a device."""

    # (phase, place, operation) -> its share. A place is "network/block" in forward and backward, or what the engine
    # does: "prepare", "losses", "carry", "update"; or else a function of frugan's, "nn/fir.py:upsample2d".
    by_operation: Mapping[tuple[str, str, str], Counts]

    @property
    def total(self) -> Counts:
        """All of it."""
        return sum(self.by_operation.values(), Counts())

    def by(self, part: int) -> dict[str, Counts]:
        """Sums by phase (0), by place (1) or by operation (2)."""
        sums: dict[str, Counts] = {}
        for key, counts in self.by_operation.items():
            sums[key[part]] = sums.get(key[part], Counts()) + counts
        return sums


Named = Callable[[str, tuple[Any, ...]], str]
"""Gives an operation the name it is counted under, by its own and by its arguments."""


def count_step(
    training: Training,
    plan: Plan,
    stage: Stage,
    *,
    step: int = 0,
    by_function: bool = False,
    named: Named = lambda name, _: name,
) -> StepCounts:
    """Count one step as it would run on a card.

    Args:
        step: its number, by which lazy phases are due; all are at 0.
        by_function: places are frugan's functions that asked, and not the networks' blocks.
        named: names operations; by default they have their own names.
    """
    plan = CardPlan.of(plan)
    dataless = Dataless()
    with resting_collector(), no_compiler(), fused_attention():
        with WithoutData(dataless):
            networks = training.build("meta")
            state = training.state(plan, META, networks=networks, stage=stage)
        state.step = step
        for scale in state.loss_scales.values():
            scale.found = True  # tensors without data cannot be asked
        for optimizer in state.optimizers.values():
            optimizer.size_temporaries_for(card=True)
        counter = _Counter(dataless, _Askers() if by_function else None, named)
        pictures = UnwatchedPictures(BlankPictures(stage.sources), counter.uncounted)
        made = training.step(pictures, UnwatchedDraws(Streams(0), counter.uncounted), stage=stage)
        with counter, _watched(state, counter, training.recomputable(networks)):
            _probed(made, counter).run(state, plan)
    return StepCounts(counter.found)


def _probed(step: Step, counter: "_Counter") -> Step:
    return replace(step, probe=_Places(counter))


class _Askers:
    """Knows frugan's function that asks for an operation; for a backward of torch's own, the one of its forward.

    Torch makes an operation's node, and gives it the next number, before the operation runs.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._names: list[str] = []

    def name(self) -> str:
        """Of who asks now."""
        node: Any = torch._C._current_autograd_node()
        at = len(self._names)
        if node is not None and not isinstance(node, BackwardCFunction) and node._sequence_nr() != NO_NUMBER:
            at = bisect_left(self._numbers, node._sequence_nr() + 1)
        name = self._names[at] if at < len(self._names) else self._caller()
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._names.append(name)
        return name

    @staticmethod
    def _caller() -> str:
        frame = sys._getframe(2)
        while frame.f_back is not None:
            file = frame.f_code.co_filename
            if file.startswith(CODE) and not file.startswith(RUNS_ALL):
                return f"{file.removeprefix(CODE)}:{frame.f_code.co_qualname}"
            frame = frame.f_back
        return "torch"


class _Counter(TorchDispatchMode):
    """Counts operations by where they are asked for: those of a backward by where their forward was.

    Args:
        askers: know places; None: they are told.
        named: names operations.

    Attributes:
        found: so far.
        phase: that runs.
    """

    def __init__(self, dataless: Dataless, askers: _Askers | None, named: Named) -> None:
        super().__init__()
        self.found: dict[tuple[str, str, str], Counts] = {}
        self.phase = ""
        self._askers = askers
        self._named = named
        self._counts = True
        self._place = ""
        self._dataless = dataless
        self._work = WorkCounter()
        self._numbers: list[int] = []
        self._places: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; torch would import its compiler to make sure

    @property
    def place(self) -> str:
        """Where operations are asked for."""
        return self._place

    @place.setter
    def place(self, place: str) -> None:
        self._place = place
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._places.append(place)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What the host makes is passed over."""
        self._counts = False
        try:
            yield
        finally:
            self._counts = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it."""
        kwargs = kwargs or {}
        asker = None if self._askers is None else self._askers.name()
        if func is ASKED_FOR_A_VALUE:
            self._add(func, args, Counts(syncs=1), asker)
            return torch.ones((), dtype=args[0].dtype).item()
        out, known = self._dataless.run(func, args, kwargs)
        if known is not None and self._counts:
            if known.cost is None:
                known.cost = self._work.cost_of(func, args, kwargs, out)
            moved_bytes, macs, fp32_macs = known.cost
            counts = Counts(int(moved_bytes > 0), moved_bytes, 2 * macs, fp32_flops=2 * fp32_macs)
            self._add(func, args, counts, asker)
        return out

    def _add(self, func: Any, args: Any, counts: Counts, asker: str | None) -> None:
        operation = self._named(str(func.overloadpacket).removeprefix("aten."), args)
        key = (self.phase, asker or self._told(), operation)
        self.found[key] = self.found.get(key, Counts()) + counts

    def _told(self) -> str:
        """Where an operation is asked for, as far as one was told."""
        node = torch._C._current_autograd_node()
        number = NO_NUMBER if node is None else node._sequence_nr()
        place = self._place
        if number != NO_NUMBER and (at := bisect_right(self._numbers, number)):
            place = self._places[at - 1]
        return place


class _Places(Probe):
    """Tells the counter what the engine is doing."""

    def __init__(self, counter: _Counter) -> None:
        self._counter = counter

    def phase_begins(self, phase: Phase) -> None:
        self._counter.phase, self._counter.place = phase.name, "prepare"

    def shown(self, sizes: Sequence[int]) -> Sequence[int]:
        return sizes

    def micro_batch_begins(self, state: TrainingState, phase: Phase, micro: MicroBatch) -> MicroBatch:
        self._counter.place = "losses"
        return micro

    def micro_batch_ends(self, state: TrainingState, phase: Phase, terms: Terms) -> None:
        self._counter.place = "carry"

    def all_carried(self, state: TrainingState) -> None:
        self._counter.place = "update"

    def phase_ends(self, phase: Phase) -> None:
        self._counter.phase, self._counter.place = AVERAGES, AVERAGES


@contextmanager
def _watched(state: TrainingState, counter: _Counter, blocks: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Name places after networks and their blocks while these run forward."""
    before: list[str] = []

    def watch(module: nn.Module, name: str) -> None:
        def enter(_: nn.Module, __: object) -> None:
            before.append(counter.place)
            counter.place = name

        def leave(_: nn.Module, __: object, ___: object) -> None:
            counter.place = before.pop()

        undo.callback(module.register_forward_pre_hook(enter).remove)
        undo.callback(module.register_forward_hook(leave).remove)

    with ExitStack() as undo:
        for network, module in state.networks.items():
            watch(module, network)
            for name in blocks.get(network, ()):
                watch(module.get_submodule(name), f"{network}/{name}")
        yield


@dataclass(frozen=True)
class Case:
    """A recipe whose step is counted."""

    recipe: str  # built-in name
    overrides: tuple[str, ...] = ()  # key=value words
    micro_batch: int | None = None  # samples; None: one normalisation group, or half the batch where there are none
    precision: PrecisionName = "bf16"  # of the working weights


def shipped_cases() -> Mapping[str, Case]:
    """Name -> case: every recipe that ships, and BigGAN-128 small, in two precisions."""
    small = ("networks.generator_channels=16", "networks.discriminator_channels=16", "training.normalisation_batch=8")
    return {
        **{name: Case(name) for name in built_in()},
        "biggan-imagenet-128, 16 channels": Case("biggan-imagenet-128", small),
        "biggan-imagenet-128, 16 channels, fp32": Case("biggan-imagenet-128", small, precision="fp32"),
    }


def count_case(case: Case) -> dict[str, StepCounts]:
    """Count the steps of a case: name -> what it asks of a card.

    There is one for every stage of training; where phases are not always due, one with all of them and a usual one.
    """
    training = training_of(load_recipe(case.recipe, list(case.overrides)))
    micro_batch = case.micro_batch or training.micro_batch
    training = training.with_batch(MICRO_BATCHES * micro_batch)
    plan = Plan(micro_batch, resolve_precision(case.precision, torch.device("cpu")))
    counts: dict[str, StepCounts] = {}
    for stage in training.distinct_stages:
        lazy = any(phase.every > 1 for phase in stage.phases)
        counts[f"{stage.name}, all due" if lazy else stage.name] = count_step(training, plan, stage)
        if lazy:
            counts[stage.name] = count_step(training, plan, stage, step=1)
    return counts
