"""Results of steps: read while the next one runs, timed, written as events, and checked for divergence."""

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from frugan.accelerator.base import Event
from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.host_memory import host_like
from frugan.accelerator.sensors import CardWatch
from frugan.engine.durations import Duration, Length
from frugan.engine.plan import Plan
from frugan.engine.run.checkpoint import DIVERGED, STATE_FILE, Checkpoint, list_checkpoints, set_aside_newer
from frugan.engine.run.events import EventLog
from frugan.engine.run.kept_time import KeptTime
from frugan.engine.state.loss_scale import LEAST_SCALE
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.engine.step.update import PhaseResult
from frugan.errors import TrainingFailed
from frugan.files import read_json

Place = tuple[str, int, str, str]
"""Key of a number: (phase, repeat, kind, name)."""


@dataclass(frozen=True)
class Readout:
    """Numbers of one step, copied to the host together: started when the step is queued, read a step later."""

    step: int  # steps done, this one included
    results: Sequence[PhaseResult]  # kept until read, so that a bad update's tensors can be named
    places: tuple[Place, ...]
    values: Tensor
    arrived: Event

    @classmethod
    def start(cls, step: int, results: Sequence[PhaseResult], extra: Mapping[str, Tensor]) -> "Readout":
        """Start the copy of a step's numbers and of `extra` named scalars."""
        numbers: dict[Place, Tensor] = {}
        for r in results:
            here = (r.phase, r.repeat)
            for name, values in r.terms.items():
                weights = torch.tensor(r.weights, dtype=values.dtype).to(values.device, non_blocking=True)
                numbers[*here, "terms", name] = (values * weights).sum()
            numbers[*here, "gradient_norm", ""] = r.gradients.norm
            numbers[*here, "accepted", ""] = r.accepted
            numbers[*here, "loss_scale", ""] = r.loss_scale
            if r.gradients.zeros is not None:
                for i, name in enumerate(r.gradients.names):
                    numbers[*here, "table", name] = r.gradients.norms[i]
                    numbers[*here, "zeros", name] = r.gradients.zeros[i]
        for name, value in extra.items():
            numbers["", 0, "extra", name] = value
        packed = torch.stack([value.detach().double().reshape(()) for value in numbers.values()])
        device = accelerator_of(packed.device)
        if device.is_card:
            packed = host_like(packed, "a step's numbers").copy_(packed, non_blocking=True)
        return cls(step, results, tuple(numbers), packed, device.queued_so_far())

    def read(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Wait for the copy; numbers by phase (repeats averaged), and the extra ones.

        A phase's entry holds `terms`, `gradient_norm`, `loss_scale` and `skipped` (of this step's repeats); in reported
        steps also `gradients` (parameter -> norm), `zero_share` (parameter -> share of exact zeros) and
        `without_gradient` (names).
        """
        self.arrived.synchronize()
        phases: dict[str, Any] = {}
        extra: dict[str, float] = {}
        repeats = {name: sum(r.phase == name for r in self.results) for name in {r.phase for r in self.results}}
        for (phase, repeat, kind, name), value in zip(self.places, self.values.tolist(), strict=True):
            if kind == "extra":
                extra[name] = value
                continue
            entry = phases.setdefault(phase, {"terms": {}, "gradient_norm": 0.0, "loss_scale": 1.0, "skipped": 0})
            if kind == "terms":
                entry["terms"][name] = entry["terms"].get(name, 0.0) + value / repeats[phase]
            elif kind == "gradient_norm":
                entry["gradient_norm"] += value / repeats[phase]
            elif kind == "accepted":
                entry["skipped"] += int(not value)
            elif kind == "loss_scale":
                entry["loss_scale"] = value
            elif repeat == 0:
                entry.setdefault({"table": "gradients", "zeros": "zero_share"}[kind], {})[name] = value
        for r in self.results:
            if r.gradients.zeros is not None and r.gradients.missing:
                phases[r.phase]["without_gradient"] = list(r.gradients.missing)
        return phases, extra

    def skipped(self) -> list[PhaseResult]:
        """Return the updates that were not committed; waits for the device, so call it only if `read` found some."""
        return [r for r in self.results if not bool(r.accepted)]


def first_bad(result: PhaseResult) -> str:
    """Name the first non-finite term and gradient of a skipped update."""
    terms = [name for name, values in result.terms.items() if not bool(torch.isfinite(values).all())]
    bad = (~torch.isfinite(result.gradients.norms)).nonzero().flatten().tolist()
    term = f"term {terms[0]!r} is not finite" if terms else "all terms are finite"
    gradient = f"first bad gradient: {result.gradients.names[bad[0]]}" if bad else "every gradient's norm is finite"
    return f"{term}; {gradient}"


WINDOW = 100
"""Steps from which the remaining time is estimated."""
RECENT = 8
"""Steps whose median is compared with the usual pace; phases that are due now and then do not move it."""
SLOWED = 3.0
"""Slowdown, times the usual pace, that is worth looking into."""
LEAST_SECONDS = 5.0
"""Total time of the recent steps below which a slowdown does not matter."""
FIRST_WAIT_SECONDS = 60.0
"""Wait between two looks at a slowdown; doubled after each."""


@dataclass
class StepTimer:
    """Times of the steps of one stage, from the beginning of each to that of the next.

    The very first is forgotten once there is another: it includes one-time initialisation.
    """

    _times: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _steps: int = 0
    _usual: float = float("inf")
    _looks: int = 0
    _since_look: float = 0.0

    def add(self, seconds: float) -> None:
        """Record the time of the next step."""
        if self._steps == 1:
            self._times.clear()
        self._steps += 1
        self._times.append(seconds)
        self._since_look += seconds
        if len(self._times) >= RECENT:
            self._usual = min(self._usual, self._recent())

    @property
    def seconds_per_step(self) -> float | None:
        """Mean of the last steps, with what was written between them; None: the very first alone says too little."""
        return sum(self._times) / len(self._times) if self._steps > 1 else None

    def slowed(self) -> float | None:
        """How many times as long as usual steps take now; None: not many, or it was looked into a short while ago."""
        if len(self._times) < RECENT or RECENT * self._recent() < LEAST_SECONDS:
            return None
        if self._looks and self._since_look < FIRST_WAIT_SECONDS * 2 ** (self._looks - 1):
            return None
        factor = self._recent() / self._usual
        return factor if factor >= SLOWED else None

    def looked(self) -> None:
        """Take the present pace as the usual one from here on."""
        self._times.clear()
        self._usual, self._since_look = float("inf"), 0.0
        self._looks += 1

    def _recent(self) -> float:
        return median(list(self._times)[-RECENT:])


LONG = 100
"""Steps without a skipped update that make a checkpoint sound: fp16 skips one now and then, and goes on."""
MOST_SKIPS = 20
"""Updates of one phase skipped in a row before the run goes back to a sound checkpoint, or stops: halvings enough for
any loss scale that fp16 reaches."""
FINITE_STEPS = "finite_steps"
"""Key in a checkpoint's JSON state: steps in a row before it without a skipped update."""


class Diverged(TrainingFailed):
    """Updates were skipped too often in a row.

    Args:
        message: for people, with what to do.
        phase: whose updates.
        step: steps done.
        reason: what was not finite.
        out_of_range: whether fp16 overflowed though its loss scale was at its least.
    """

    def __init__(self, message: str, *, phase: str, step: int, reason: str, out_of_range: bool) -> None:
        super().__init__(message)
        self.phase = phase
        self.step = step
        self.reason = reason
        self.out_of_range = out_of_range


@dataclass
class DivergenceWatch:
    """Counts skipped updates, to detect divergence and to find sound checkpoints."""

    finite_steps: int = 0  # steps since an update was last skipped
    in_a_row: dict[str, int] = field(default_factory=dict)  # phase -> updates skipped in a row
    trouble: int | None = None  # step at which updates began to be skipped; None: that is long past, or none was

    @classmethod
    def of(cls, saved: Mapping[str, Any], step: int) -> "DivergenceWatch":
        """Restore the counts from a checkpoint's JSON state; without an entry all steps count as finite."""
        finite_steps = int(saved.get(FINITE_STEPS, step))
        return cls(finite_steps, trouble=None if finite_steps >= min(LONG, step) else step - finite_steps)

    def count(self, step: int, ran: Mapping[str, int], skipped: Mapping[str, int]) -> None:
        """Take in a step.

        Args:
            ran: phase -> its updates in this step.
            skipped: phase -> those that were skipped.
        """
        for phase, updates in ran.items():
            self.in_a_row[phase] = self.in_a_row.get(phase, 0) + updates if skipped[phase] == updates else 0
        if not any(skipped.values()):
            self.finite_steps += 1
            if self.finite_steps >= LONG:
                self.trouble = None
            return
        self.finite_steps = 0
        if self.trouble is None:
            self.trouble = step

    def kept(self, folder: Path, step: int) -> set[int]:
        """Steps of the checkpoints that are kept for what may come, besides the newest ones.

        The newest sound one that is long before the trouble, or before now; and the oldest sound one after it, which
        becomes that in time.
        """
        sound = [checkpoint.step for checkpoint in sound_checkpoints(folder)]
        until = (step if self.trouble is None else self.trouble) - LONG
        before = max((checkpoint_step for checkpoint_step in sound if checkpoint_step <= until), default=-1)
        after = min((checkpoint_step for checkpoint_step in sound if checkpoint_step > before), default=before)
        return {before, after}


def sound_checkpoints(folder: Path) -> list[Checkpoint]:
    """Checkpoints before which all updates were finite for long (or from the start), oldest first."""
    return [one for one in list_checkpoints(folder) if finite_steps(one) >= min(LONG, one.step)]


def finite_steps(checkpoint: Checkpoint) -> int:
    """Steps before a checkpoint without a skipped update, all of them where it does not say; -1: it is damaged."""
    state = read_json(checkpoint.path / STATE_FILE)
    finite = state.get(FINITE_STEPS, checkpoint.step)
    return finite if state and isinstance(finite, int) else -1


def divergence_advice(folder: Path, command: str | None, rates: Mapping[str, float], precision: str) -> str:
    """Advise what to do after divergence, and set aside the checkpoints from after its beginning.

    Args:
        folder: holds the checkpoints.
        command: resumes the run; None: there is none.
        rates: learning rates of the optimizers whose updates were skipped, first and final ones, by field.
        precision: by name.
    """
    anew = "" if precision == "fp32" else "; or begin a new run with training.precision=fp32"
    sound = sound_checkpoints(folder)
    if not sound:
        return f"No checkpoint is older than that: begin a new run with a smaller learning rate{anew}"
    words = " ".join(f"optimizers.{name}={rate / 2:g}" for name, rate in rates.items())
    newest = sound[-1]
    aside = set_aside_newer(folder, newest, DIVERGED)
    lines = [
        f"{newest.path} is from before that, after {finite_steps(newest):,} good steps in a row"
        + (f" (newer ones were set aside: {', '.join(path.name for path in aside)})" if aside else "")
        + ". Resume from it with a smaller learning rate"
        + (f":\n  {command} {words}" if command else anew)
    ]
    if command:
        next_one = f"delete it, and the same command resumes from step {sound[-2].step:,}" if len(sound) > 1 else ""
        others = [part for part in (next_one, anew.removeprefix("; or ")) if part]
        lines += [f"If it diverges again: {', or '.join(others)}"] if others else []
    return "\n".join(lines)


CARRIED = "carried: "
"""Prefix that marks carried state among a readout's extra numbers."""


@dataclass
class _Pending:
    """A step whose numbers have not been read yet."""

    step: Step  # the step of its stage
    readout: Readout  # its numbers
    plan: Plan  # the plan by which it ran
    began: float  # when the step was begun, by the performance counter
    seconds: float  # of training at its end
    images: int  # seen by then
    # seconds until the next step began: on a busy card that is the step's duration; 0: there was no next step
    took: float = 0.0


@dataclass
class StepLog:
    """Reads each step's numbers once the next one has been begun, so that a card never waits for the host."""

    log: EventLog  # receives the events
    checkpoints: Path  # folder of the checkpoints to go back to
    device: torch.device  # that trains
    duration: Duration  # of the whole training, for the time left
    command: str | None = None  # resumes the run, for messages; None: there is none
    divergence: DivergenceWatch = field(default_factory=DivergenceWatch)  # counts skipped updates
    timer: StepTimer = field(default_factory=StepTimer)  # how long steps take
    card: CardWatch = field(default_factory=CardWatch)  # reads the card's sensors meanwhile
    length: Length | None = None  # of the training in steps, which may be decided again; None: as `duration` says
    kept_time: KeptTime | None = None  # knows the time left of a training that keeps a time; None: it keeps none
    _pending: list[_Pending] = field(default_factory=list)

    @property
    def finite_steps(self) -> int:
        """Finite steps in a row, including those not read yet: if one of these was not, it committed nothing."""
        return self.divergence.finite_steps + len(self._pending)

    def begins(self, began: float) -> None:
        """Note that a step begins, which ends the time of the one before it."""
        for pending in self._pending:
            pending.took = began - pending.began

    def ran(self, step: Step, plan: Plan, readout: Readout, *, began: float, seconds: float, images: int) -> None:
        """Note that a step has been queued on the device, and the copy of its numbers started.

        Args:
            began: when the step was begun, by the performance counter.
            seconds: of training at its end.
            images: seen by then.
        """
        self._pending.append(_Pending(step, readout, plan, began, seconds, images))

    def read(self) -> None:
        """Read all pending steps.

        Raises:
            Diverged: updates were skipped MOST_SKIPS times in a row.
        """
        while self._pending:
            self._read(self._pending.pop(0))

    def _read(self, pending: _Pending) -> None:
        readout, step = pending.readout, pending.step
        phases, extra = readout.read()
        carried = {name.removeprefix(CARRIED): value for name, value in extra.items() if name.startswith(CARRIED)}
        singular_values = {name: value for name, value in extra.items() if not name.startswith(CARRIED)}
        for phase in step.phases:
            if phase.name in phases:
                rate = step.settings[phase.optimizer].rate_at(step.course_at(readout.step - 1))
                phases[phase.name]["learning_rate"] = rate
        took = pending.took or time.perf_counter() - pending.began
        self.timer.add(took)
        card = self.card.taken()
        self.log.write(
            "step",
            step=readout.step,
            images=pending.images,
            seconds=round(pending.seconds, 3),
            took_seconds=round(took, 4),
            data_seconds=round(sum(result.data_seconds for result in readout.results), 4),
            images_per_second=step.pictures_at(readout.step - 1) / took,
            eta_seconds=self._eta(step, readout.step, pending.seconds),
            memory_bytes=accelerator_of(self.device).peak_bytes,
            phases=phases,
            **({"card": dict(card)} if card is not None else {}),
            **({"carried": carried} if carried else {}),
            **({"singular_values": singular_values} if singular_values else {}),
        )
        self._judge(pending, phases)

    def _eta(self, step: Step, number: int, seconds: float) -> float | None:
        """Estimate the remaining seconds; None: there is no end, or only one step was timed."""
        if self.kept_time is not None:
            return self.kept_time.left(seconds)
        steps = self.duration.known_steps(step.batch) if self.length is None else self.length.steps
        if steps is not None:
            step_seconds = self.timer.seconds_per_step
            return None if step_seconds is None else (steps - number) * step_seconds
        return max(0.0, self.duration.amount - seconds) if math.isfinite(self.duration.amount) else None

    def _judge(self, pending: _Pending, phases: Mapping[str, Any]) -> None:
        """Count skipped updates, and stop a training that has diverged."""
        readout = pending.readout
        ran = {name: sum(result.phase == name for result in readout.results) for name in phases}
        self.divergence.count(readout.step, ran, {name: entry["skipped"] for name, entry in phases.items()})
        for name, in_a_row in self.divergence.in_a_row.items():
            if name not in phases or not in_a_row:
                continue
            bad = next(result for result in readout.skipped() if result.phase == name)
            reason = first_bad(bad)
            self.log.write("skipped", step=readout.step, phase=name, in_a_row=in_a_row, reason=reason)
            if in_a_row >= MOST_SKIPS:
                raise self._diverged(pending, name, in_a_row, reason, float(bad.loss_scale))

    def _diverged(self, pending: _Pending, name: str, in_a_row: int, reason: str, loss_scale: float) -> Diverged:
        """Return the error of a phase whose updates were skipped too often in a row."""
        number, step, precision = pending.readout.step, pending.step, pending.plan.precision.name
        failing = {phase.optimizer for phase in step.phases if self.divergence.in_a_row.get(phase.name)}
        rates = {
            f"{optimizer}.{field}": rate
            for optimizer in sorted(failing)
            for field in ("learning_rate", "final_learning_rate")
            if (rate := getattr(step.settings[optimizer], field)) is not None
        }
        out_of_range = precision == "fp16" and loss_scale <= LEAST_SCALE
        range_ = ", with the loss scale at its least: fp16 has not the range for it" if out_of_range else ""
        return Diverged(
            f"phase {name}: {in_a_row} updates in a row were skipped at step {number:,} because they were not finite "
            f"({reason}{range_}). Nothing of them was committed. "
            + divergence_advice(self.checkpoints, self.command, rates, precision),
            phase=name,
            step=number,
            reason=reason,
            out_of_range=out_of_range,
        )


def shown_state(step: Step, state: TrainingState) -> dict[str, torch.Tensor]:
    """Return the first number [1] of each carried statistic that is shown to people."""
    carried = {name: statistic for phase in step.phases for name, statistic in phase.carried.items() if statistic.shown}
    return {f"{CARRIED}{statistic.shown}": state.carried[name].reshape(-1)[:1] for name, statistic in carried.items()}
