"""Memory of a training step, by running the engine's own step under the tracker: no formula about any model.

On fake tensors nothing is computed and no memory taken: that predicts. On real ones it measures.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from frugan.engine.plan import Plan
from frugan.engine.state import TrainingState
from frugan.engine.step import PhaseResult, Step
from frugan.engine.working_weights import pending_gradient
from frugan.memory.trace import Category, Peak, Trace
from frugan.memory.tracker import Tracker
from frugan.phase import MicroBatch, Phase


@dataclass(frozen=True)
class StepMemory:
    """What a step takes.

    Attributes:
        peak: of everything.
        by_phase: phase -> its own peak.
        static: bytes that are there between steps, by what they are for.
        trace: of all of it.
    """

    peak: Peak
    by_phase: Mapping[str, Peak]
    static: Mapping[Category, int]
    trace: Trace

    @property
    def reserved_bytes(self) -> int:
        """Most that CUDA's allocator would reserve."""
        return self.trace.reserved_bytes()


def measure_step(
    step: Step, state: TrainingState, plan: Plan, blocks: Mapping[str, Sequence[str]] | None = None
) -> StepMemory:
    """Run the next step under the tracker.

    Args:
        blocks: network -> modules that places are named after; None: places are phases.

    A first step makes the optimizers' state; the one after it is what training is made of.
    """
    tracker = Tracker(_held(state))
    watched = _WatchedStep(**{each.name: getattr(step, each.name) for each in fields(step)}, tracker=tracker)
    static: dict[Category, int] = {}
    for category, size_bytes in zip(tracker.trace.categories, tracker.trace.sizes_bytes, strict=True):
        static[category] = static.get(category, 0) + size_bytes
    with tracker, tracker.saved(), _named_places(state, tracker, blocks or {}):
        watched.run(state, plan)
        tracker.mark("optimizer", _slots(state), again=True)
    trace = tracker.trace
    return StepMemory(
        peak=trace.peak(),
        by_phase={
            phase.name: trace.peak(lambda place, name=phase.name: place.split("/")[0] == name)  # type: ignore[misc]
            for phase in step.phases
        },
        static=static,
        trace=trace,
    )


@dataclass(frozen=True)
class _WatchedStep(Step):
    """A step that tells the tracker which phase it is in, and what its tensors are for."""

    tracker: Tracker = field(kw_only=True)

    def _run_phase(
        self, state: TrainingState, plan: Plan, phase: Phase, repeat: int, *, count_zeros: bool
    ) -> PhaseResult:
        self.tracker.place = phase.name
        result = super()._run_phase(state, plan, phase, repeat, count_zeros=count_zeros)
        self.tracker.mark("gradients", _gradients(state), again=True)  # still there: the caller releases them
        return result

    def _micro_batches(
        self, state: TrainingState, plan: Plan, phase: Phase, repeat: int
    ) -> Iterator[tuple[MicroBatch, float]]:
        for micro, share in super()._micro_batches(state, plan, phase, repeat):
            prepared = (p for name in phase.uses for p in state.networks[name].parameters())
            # what stands in for a master is no nn.Parameter
            standing_in = (weight for weight in prepared if not isinstance(weight, nn.Parameter))
            self.tracker.mark("working weights", standing_in, again=True)
            self.tracker.mark("batch", _tensors((micro.pictures, micro.draws)))
            yield micro, share
            self.tracker.place = phase.name
            self.tracker.mark("gradients", _gradients(state), again=True)


def _held(state: TrainingState) -> dict[Category, list[Tensor]]:
    """What lives between steps."""
    networks, averages = state.networks.values(), state.ema.networks.values()
    return {
        "parameters": [t for network in networks for t in (*network.parameters(), *network.buffers())],
        "optimizer": _slots(state),
        "averages": [t for network in averages for t in (*network.parameters(), *network.buffers())],
    }


def _slots(state: TrainingState) -> list[Tensor]:
    slots = (slots for optimizer in state.optimizers.values() for slots in optimizer.state.values())
    return [value for each in slots for value in each.values() if isinstance(value, Tensor)]


def _gradients(state: TrainingState) -> list[Tensor]:
    """Gradients of masters, and of what stands in their places while a phase runs."""
    held = {id(p): p for optimizer in state.optimizers.values() for g in optimizer.param_groups for p in g["params"]}
    placed = {id(p): p for network in state.networks.values() for p in network.parameters()}
    found = [parameter.grad for parameter in {**held, **placed}.values()]
    found += [pending_gradient(parameter) for parameter in placed.values()]
    return [gradient for gradient in found if gradient is not None]


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@contextmanager
def _named_places(state: TrainingState, tracker: Tracker, blocks: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Name places after blocks: in a forward from the block's start, in a backward from when its gradient has come."""

    def named(name: str) -> str:
        return f"{tracker.place.split('/')[0]}/{name}"

    def watch(module: nn.Module, name: str) -> None:
        def before(_: nn.Module, given: object) -> None:
            tracker.mark("gradients", _gradients(state), again=True)
            if torch.is_grad_enabled():
                tracker.mark("saved activations", _tensors(given))  # a recomputed block keeps what it is given
            tracker.place = named(name)

        def after(_: nn.Module, __: object, made: object) -> None:
            tracker.place = tracker.place.split("/")[0]
            for tensor in _tensors(made):
                if tensor.requires_grad:
                    tensor.register_hook(lambda _: setattr(tracker, "place", named(f"{name} backward")))

        undo.callback(module.register_forward_pre_hook(before).remove)
        undo.callback(module.register_forward_hook(after).remove)

    with ExitStack() as undo:
        for network, names in blocks.items():
            for name in names if network in state.networks else ():
                watch(state.networks[network].get_submodule(name), f"{network}.{name}")
        yield
