"""How many threads a step runs with on a CPU, found out by timing it: phases up to their updates, which are dropped.

More threads are not faster as such. On a machine that did something else as well, two that waited for each other took
3.7 s of wall time (1.5 s of processor time) for a step that one did in 0.3; and small networks have no work for many.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.device import available_cores
from frugan.contract.phase import MicroBatch, Phase, Terms
from frugan.engine.plan import Plan
from frugan.engine.ranks.ranks import OneRank
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.engine.step.update import Probe, Update


def rehearse(step: Step, state: TrainingState, plan: Plan, ahead: int = 0) -> float:
    """Seconds of an average step, from one micro-batch of each phase; without the update itself, which is short.

    Nothing moves before an update is committed, so a rehearsal leaves no trace in what is trained.

    Args:
        ahead: whose inputs are taken: those of the step that comes so many after the next one. Pictures that are new
            each time have to be read or made, as in training.
    """
    alone = OneRank(step.ranks.rank, step.ranks.size, step.ranks.proportions)  # the other ranks do not rehearse along
    seconds = 0.0
    for phase in step.phases:
        stopwatch = _Stopwatch(state.device)
        timed = replace(step, probe=stopwatch, ranks=alone)
        try:
            timed.update(state, plan, Update(phase, 0, state.step + ahead, count_zeros=False))
        except _Rehearsed:
            seconds += stopwatch.seconds * phase.repeats / phase.every
    return seconds


class _Rehearsed(Exception):
    """All that can be done without moving anything is done."""


class _Stopwatch(Probe):
    """Lets the first micro-batch of an update run, reckons with the others, and stops before anything moves.

    Attributes:
        seconds: of the whole update but for its commit; there once it was stopped.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds = 0.0
        self._device = device
        self._left_out = 0
        self._began = self._micro_began = self._micro_seconds = 0.0

    def phase_begins(self, phase: Phase) -> None:
        self._began = self._now()

    def shown(self, sizes: Sequence[int]) -> Sequence[int]:
        self._left_out = len(sizes) - 1
        return sizes[:1]

    def micro_batch_begins(self, state: TrainingState, phase: Phase, micro: MicroBatch) -> MicroBatch:
        self._micro_began = self._now()
        return micro

    def micro_batch_ends(self, state: TrainingState, phase: Phase, terms: Terms) -> None:
        self._micro_seconds = self._now() - self._micro_began

    def all_carried(self, state: TrainingState) -> None:
        self.seconds = self._now() - self._began + self._left_out * self._micro_seconds
        raise _Rehearsed

    def _now(self) -> float:
        """Seconds, once all that was asked of the device is done."""
        accelerator_of(self._device).synchronize()
        return time.perf_counter()


OWN_VARIABLE = "OMP_NUM_THREADS"
"""Variable by which a person sets the number of threads."""
SECONDS_EACH = 10.0
"""Time to try one number of threads; longer where two steps take longer."""
ROUNDS = 5
"""Timings of each count at most, in turn, so that what else the machine does disturbs all of them."""
HOPELESS = 3.0
"""Times the fastest: numbers that lie still further from it are not tried."""
CLOSE = 1.5
"""Times the fastest: such counts are timed again."""
GAIN = 0.95
"""More threads are taken only if a step then takes less than so much of the time: fewer are disturbed less."""
SHORT_SECONDS = 0.25
"""A step this short is run twice at each timing, and the shorter time counts: the first wakes the threads up."""


def candidates(cores: int) -> tuple[int, ...]:
    """Counts worth timing: powers of two, and all cores."""
    powers = [2**exponent for exponent in range(cores.bit_length()) if 2**exponent <= cores]
    return tuple(sorted({*powers, cores}))


def asked_for() -> str | None:
    """Return the number of threads that the user's environment sets; None: it sets none."""
    return os.environ.get(OWN_VARIABLE) or None


def machine_name() -> str:
    """Processor and cores: on another machine another number of threads may be the fastest."""
    name = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        lines = information.read_text("utf-8", errors="replace").splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {available_cores()} cores"


@contextmanager
def threads_put_back() -> Iterator[None]:
    """Inside, the number of threads may be set: a caller's own comes back afterwards."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_counts(
    time_step: Callable[[], float],
    counts: Sequence[int],
    stopped: Callable[[], bool] = lambda: False,
    rounds: int = ROUNDS,
) -> dict[int, float]:
    """Median seconds of a step by number of threads; the number in force is the last one timed.

    Args:
        time_step: runs a step that leaves no trace, and gives its seconds.
        counts: of threads.
        stopped: whether to end early, with what is known so far, if anything.
        rounds: timings of each count at most.
    """
    began = time.perf_counter()
    times: dict[int, list[float]] = {}
    for direction in _directions(counts):
        for count in direction:
            if stopped():
                return _medians(times)
            torch.set_num_threads(count)
            first = time_step()  # what the first run makes, later ones find ready: it tells only what is out of reach
            is_far = bool(times) and first > 2 * HOPELESS * _fastest(times)
            times[count] = [first if is_far else time_step()]
            if times[count][0] > HOPELESS * _fastest(times):
                break
    for _ in range(rounds - 1):
        for count in [count for count, seconds in times.items() if median(seconds) <= CLOSE * _fastest(times)]:
            if stopped() or time.perf_counter() - began > SECONDS_EACH * len(counts):
                return _medians(times)
            torch.set_num_threads(count)
            first = time_step()
            times[count].append(min(first, time_step()) if first < SHORT_SECONDS else first)
    return _medians(times)


def fastest(seconds: dict[int, float]) -> int:
    """The number of threads to take: the fewest of those that are about as fast as any."""
    least = min(seconds.values())
    return min(count for count, duration in seconds.items() if duration * GAIN <= least)


def _directions(counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Upwards from a quarter of the largest, then downwards: few threads are slow for large networks on many cores, and
    all of them far slower where something else runs."""
    start = max(counts) // 4
    return sorted(count for count in counts if count >= start), sorted((c for c in counts if c < start), reverse=True)


def _medians(times: dict[int, list[float]]) -> dict[int, float]:
    return {count: median(timed) for count, timed in times.items()}


def _fastest(times: dict[int, list[float]]) -> float:
    return min(_medians(times).values())
