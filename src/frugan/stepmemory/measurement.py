"""Measures what a step of any PyTorch code takes: memory by category and place, and work."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from torch import Tensor

from frugan.stepmemory.dataless import Dataless, running_without_data
from frugan.stepmemory.tracker import Category, Peak, Replay, Trace, Tracker
from frugan.stepmemory.work import Work, WorkCounter

STEPS = 2
"""Replayed in the allocator's model: what the fragments of one step leave no room for, the next one reserves anew."""


@dataclass(frozen=True)
class StepMemory:
    """Memory and work of one step."""

    peak: Peak  # the moment at which most lives
    static: Mapping[Category, int]  # bytes that are there between steps, by what they are for
    trace: Trace  # every storage that was made or freed
    begins: int  # number of the event with which the step begins
    work: Work  # of an average step
    by_phase: Mapping[str, Peak] = field(default_factory=dict)  # part of the step, where it was named -> its own peak
    host_bytes: int = 0  # most that is kept in host memory beside the card, pinned memory as torch allocates it
    stayed_bytes: int = 0  # of what could be offloaded, most that stayed on the card at once for being small

    @cached_property
    def on_card(self) -> Replay:
        """CUDA's allocator over a first and a second step, without a limit."""
        return self.trace.replay(STEPS, self.begins)

    @property
    def live_on_card_bytes(self) -> int:
        """Most that lives at once as a card counts it: a block larger than what was asked for counts whole."""
        return max(self.peak.size_bytes, self.on_card.taken_bytes)

    @cached_property
    def needed_on_card_bytes(self) -> int:
        """The least that CUDA's allocator must be allowed to reserve for a first and a second step."""
        return max(self.peak.size_bytes, self.trace.needed_bytes(self.on_card, STEPS, self.begins))


class Measurement:
    """Watches the operations inside its `with` block; whoever runs the step may tell its tracker what tensors are for.

    Args:
        held: tensors that are there before the step, by what they are for.
        elsewhere: tensors that do not lie on the device that is asked about.
        dataless: runs the operations, on tensors without data; None: torch does, on real ones.

    Attributes:
        tracker: notes every storage; `place` and `mark` name what it sees.
        counter: adds up the work.
    """

    def __init__(
        self,
        held: Mapping[Category, Iterable[Tensor]],
        *,
        elsewhere: Iterable[Tensor] = (),
        dataless: Dataless | None = None,
    ) -> None:
        self.counter = WorkCounter()
        self.tracker = Tracker(held, self.counter, dataless)
        self.tracker.ignore(elsewhere)
        trace = self.tracker.trace
        self._begins = len(trace.events)
        self._static: dict[Category, int] = {}
        for category, size_bytes in zip(trace.categories, trace.sizes_bytes, strict=True):
            self._static[category] = self._static.get(category, 0) + size_bytes
        self._inside = ExitStack()

    def __enter__(self) -> Self:
        self._inside.enter_context(self.tracker)
        self._inside.enter_context(self.tracker.saved())
        return self

    def __exit__(self, *error: object) -> None:
        self._inside.close()

    def memory(
        self, phases: Iterable[str] = (), *, work: Work | None = None, host_bytes: int = 0, stayed_bytes: int = 0
    ) -> StepMemory:
        """Sum up what was seen.

        Args:
            phases: places, without what follows their "/", whose own peaks are wanted.
            work: of an average step, where it differs from what was run.
            host_bytes, stayed_bytes: of `StepMemory`, which a trace does not know.
        """
        trace = self.tracker.trace
        by_phase = {name: _peak_in(trace, name) for name in phases}
        return StepMemory(
            peak=max((trace.peak(), *by_phase.values()), key=lambda peak: peak.size_bytes),
            static=self._static,
            trace=trace,
            begins=self._begins,
            work=self.counter.work if work is None else work,
            by_phase=by_phase,
            host_bytes=host_bytes,
            stayed_bytes=stayed_bytes,
        )


def _peak_in(trace: Trace, phase: str) -> Peak:
    return trace.peak(lambda place: place.split("/")[0] == phase)


def measure(
    step: Callable[[], object],
    held: Mapping[Category, Iterable[Tensor]] | None = None,
    *,
    dataless: Dataless | None = None,
) -> StepMemory:
    """Run a step once and say what it takes.

    Args:
        step: forward, backward and update, on tensors of one device. Without data, on tensors of the device "meta".
        held: tensors that are there before it, by what they are for: {"parameters": model.parameters()}.
        dataless: runs the operations where tensors have no data. Kept from one call to the next, it is faster; None:
            the step is really run.

    Raises:
        RuntimeError: torch refuses the step without data, or the step looks at a tensor's value.
    """
    with ExitStack() as inside:
        if dataless is not None:
            inside.enter_context(running_without_data())
        measurement = inside.enter_context(Measurement(held or {}, dataless=dataless))
        step()
    return measurement.memory()
