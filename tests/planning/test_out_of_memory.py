"""Memory runs out in a step: nothing is committed, and the phase is repeated by a smaller plan on the same inputs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from contract.made_up import MadeUpFamily
from contract.rig import OPTIMIZERS, Rig, adam, assert_same, largest_difference
from engine.runs import train
from frugan.accelerator.cuda import Cuda
from frugan.accelerator.device import ran_out_of_memory
from frugan.engine.plan import Plan
from frugan.engine.run.checkpoint import newest_whole
from frugan.engine.state.optimizer import Adam
from frugan.engine.state.optimizer_settings import OptimizerSettings
from frugan.errors import TrainingFailed
from frugan.wording import MIB
from planning.ceiling import Ceiling
from stepmemory.storages import storages_bytes

BATCH = 32
AMBIGUOUS = (
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    "GET was unable to find an engine to execute this computation",
    "FIND was unable to find an engine to execute this computation",
)


def rig(micro_batch: int = BATCH, optimizers: Callable[[float], OptimizerSettings] = adam) -> Rig:
    return Rig.create(MadeUpFamily(), batch=BATCH, micro_batch=micro_batch, dtype=torch.float64, optimizers=optimizers)


def held(of: Rig) -> list[Tensor]:
    state = of.state
    networks = (*state.networks.values(), *state.ema.networks.values())
    slots = (slots for optimizer in state.optimizers.values() for slots in optimizer.state.values())
    return [t for n in networks for t in (*n.parameters(), *n.buffers())] + [v for s in slots for v in s.values()]


def peak_bytes(of: Rig) -> int:
    with Ceiling(2**40, held(of)) as card:
        of.run(1)
    return int(card.peak_bytes)


each_optimizer = pytest.mark.parametrize(
    "optimizers", [pytest.param(kind, marks=[] if kind is adam else pytest.mark.long) for kind in OPTIMIZERS]
)


@cache
def between_bytes() -> int:
    """More than a quarter of the batch takes, and less than the whole."""
    return (peak_bytes(rig(BATCH)) + peak_bytes(rig(BATCH // 4))) // 2


@each_optimizer
def test_a_phase_is_repeated_as_if_nothing_had_been(optimizers: Callable[[float], OptimizerSettings]) -> None:
    asked: list[tuple[int, str]] = []

    def halved(plan: Plan, phase: str, message: str) -> Plan:
        assert "would live" in message
        assert not asked or plan.micro_batch < asked[-1][0], "the last answer was not followed"
        asked.append((plan.micro_batch, phase))
        return replace(plan, micro_batch=plan.micro_batch // 2)

    tight, free = rig(optimizers=optimizers), rig(optimizers=optimizers)
    with Ceiling(between_bytes(), held(tight)) as card:
        results = tight.step.run(tight.state, tight.plan, next_plan=halved)
    assert card.refused >= 1
    assert asked
    free.run(1)
    difference, where = largest_difference(tight.tensors(), free.tensors())
    assert difference < 1e-5, where
    assert all(bool(result.accepted) for result in results)
    assert not any(p.grad is not None for n in tight.state.networks.values() for p in n.parameters())


@pytest.mark.long
def test_a_repetition_by_the_same_plan_is_bit_equal() -> None:
    """What was refused has left no trace at all."""
    tight, free = rig(), rig()
    room = peak_bytes(rig()) * 9 // 10
    cards: list[Ceiling] = []

    def more_room(plan: Plan, phase: str, message: str) -> Plan:
        cards[0].limit_bytes = 2**40
        return plan

    cards.append(Ceiling(room, held(tight)))
    with cards[0]:
        tight.step.run(tight.state, tight.plan, next_plan=more_room)
    assert cards[0].refused == 1
    free.run(1)
    assert_same(tight.tensors(), free.tensors())


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("CUDA error: out of memory"), False),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), True),
        (RuntimeError("CUDA driver error: out of memory"), True),
        (RuntimeError("InductorError: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), True),
        (TrainingFailed("memory ran out in phase D (CUDA error: out of memory)"), False),  # judged already
        *((RuntimeError(message), False) for message in AMBIGUOUS),  # there is no card here
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, is_memory: bool) -> None:
    assert ran_out_of_memory(error) is is_memory


@pytest.mark.parametrize("message", AMBIGUOUS)
@pytest.mark.parametrize(
    ("free", "reserved", "allocated", "capped", "is_memory"),
    [
        (100, 5000, 4950, 1.0, True),
        (3000, 2000, 1900, 1.0, False),
        (100, 5000, 2000, 1.0, False),  # its allocator holds what it does not use
        (3000, 3000, 2950, 0.5, True),  # capped at what it has
    ],
)
def test_what_may_mean_out_of_memory_does_where_little_is_free(
    message: str,
    free: int,
    reserved: int,
    allocated: int,
    capped: float,
    is_memory: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a card of 6,000 MiB."""
    monkeypatch.setattr(Cuda, "count", lambda: 1)
    monkeypatch.setattr(Cuda, "current", lambda: 0)
    values = {"free": free, "total": 6000, "reserved": reserved, "live": allocated, "limit": int(capped * 6000)}
    for name, value in values.items():
        monkeypatch.setattr(Cuda, f"{name}_bytes", value * MIB)
    assert ran_out_of_memory(RuntimeError(message)) is is_memory
    assert not ran_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_card_that_answers_no_more_has_not_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: torch.device) -> tuple[int, int]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Cuda, "count", lambda: 1)
    monkeypatch.setattr(Cuda, "current", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
    assert not ran_out_of_memory(RuntimeError(AMBIGUOUS[0]))


def test_memory_that_runs_out_by_another_name_in_an_update_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    monkeypatch.setattr(Adam, "update", full)
    with pytest.raises(TrainingFailed, match="in the midst of the update of phase critic"):
        rig().step.run(rig().state, rig().plan, next_plan=lambda plan, *_: plan)


def test_memory_that_runs_out_in_an_update_is_no_case_for_a_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Adam, "update", full)
    with pytest.raises(TrainingFailed, match="in the midst of the update of phase critic"):
        rig().step.run(rig().state, rig().plan, next_plan=lambda plan, *_: plan)


def test_without_a_next_plan_the_error_is_torchs_and_nothing_has_moved() -> None:
    tight, untouched = rig(), rig()
    room = storages_bytes(held(tight)) + 1000
    with Ceiling(room, held(tight)), pytest.raises(torch.OutOfMemoryError, match="would live"):
        tight.run(1)
    assert_same(tight.tensors(), untouched.tensors())


@each_optimizer
def test_a_plan_may_take_state_to_the_host_in_midway(optimizers: Callable[[float], OptimizerSettings]) -> None:
    moved, free = rig(optimizers=optimizers), rig(optimizers=optimizers)
    moved.run(1)
    plan = replace(moved.plan, optimizer_on_host=True, ema_on_host=True)
    moved.state.follow(plan)
    moved.step.run(moved.state, plan)
    moved.state.follow(moved.plan)
    moved.run(1)
    free.run(3)
    assert_same(moved.tensors(), free.tensors())


def test_the_plan_in_force_goes_on_and_into_the_checkpoint(tmp_path: Path) -> None:
    tight = rig()
    smaller = replace(tight.plan, micro_batch=BATCH // 4)
    with Ceiling(between_bytes(), held(tight)) as card:
        _, events, over = train(tmp_path, 4, rig=tight, next_plan=lambda *_: smaller)
    assert over
    assert card.refused == 1  # once, and not again in the steps after it
    told = [event for event in events if event["event"] == "out_of_memory"]
    assert [(e["step"], e["plan"]["micro_batch"]) for e in told] == [(0, BATCH // 4)]
    newest = newest_whole(tmp_path / "checkpoints")
    assert newest is not None
    assert Plan.from_json(newest[1]["plan"], tight.plan.precision) == smaller


def test_no_plan_left_stops_the_run_and_keeps_what_there_is(tmp_path: Path) -> None:
    tight = rig()
    train(tmp_path, 4, rig=tight)
    with Ceiling(peak_bytes(rig()) // 2, held(tight)), pytest.raises(TrainingFailed, match="would live"):
        train(tmp_path, 8, rig=tight)
    newest = newest_whole(tmp_path / "checkpoints")
    assert newest is not None
    assert newest[0].step == 4


class Refusing(TorchDispatchMode):
    """Refuses the k-th operation of a step, before it is done."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.left: int = k

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return func(*args, **(kwargs or {}))


def _little() -> Rig:
    """Of two micro-batches: a step of few operations."""
    return Rig.create(MadeUpFamily(), batch=8, micro_batch=4, dtype=torch.float64)


def _operations_of_a_step(of: Rig) -> int:
    with Refusing(0) as counting:
        of.run(1)
    count: int = -counting.left
    return count


def _refused_at(k: int, undisturbed: Mapping[str, Tensor]) -> str:
    """What comes of a step whose k-th operation finds no memory."""
    tried = _little()
    try:
        with Refusing(k):
            tried.step.run(tried.state, tried.plan, next_plan=lambda plan, _, __: plan)
    except TrainingFailed as error:
        return "told" if "in the midst of" in str(error) else str(error)
    assert_same(tried.tensors(), undisturbed)
    return "repeated"


def _sweep(stride: int) -> None:
    free = _little()
    count = _operations_of_a_step(_little())
    free.run(1)
    ends = [_refused_at(k, free.tensors()) for k in range(1, count + 1, stride)]
    assert len(ends) > 20
    assert {*ends} == {"told", "repeated"}
    assert _refused_at(count, free.tensors()) == "told"  # the last is the averages'


def test_wherever_memory_runs_out_a_step_is_repeated_or_ends_in_words() -> None:
    _sweep(stride=101)


@pytest.mark.long
def test_wherever_memory_runs_out_at_many_more_operations() -> None:
    _sweep(stride=9)
