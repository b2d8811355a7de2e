"""What is found out before the first step: with how many threads it is fastest, and how long training will take."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from frugan.api.progress import Say
from frugan.api.train.estimate import advice, in_words
from frugan.engine import threads
from frugan.engine.interrupt import StopRequest
from frugan.engine.loop import Loop, RunningStage
from frugan.engine.out_of_memory import ran_out_of_memory, release_memory
from frugan.engine.rehearsal import rehearse
from frugan.recipe.recipe import Recipe

WORTH_TIMING = 50
"""Steps for each number of threads: timing one takes up to 10."""
WORTH_AN_ESTIMATE = 20
"""Steps: fewer tell by themselves how long they take."""
WORTH_SECONDS = 120.0
"""The same for a training that ends by the clock."""
SLOW_AVERAGE = 0.2
"""Share of a run's steps from which on the average is said to be slow: it ends as a blur of networks long gone by."""
LONG_SECONDS = 2 * 24 * 3600.0
"""From here on a training is said to be long, with what would be shorter."""


@dataclass
class Opening:
    """Looks at a training before its first step, and again when it becomes slow.

    Attributes:
        recipe, name: what is trained.
        say: is given a line for every choice.
        stop: ends a measurement early.
        saved: the JSON state of the checkpoint that is resumed; empty: none is.
        kept: JSON values of every checkpoint: take the number of threads, and the machine that it was chosen on.
    """

    recipe: Recipe
    name: str
    say: Say
    stop: StopRequest
    saved: Mapping[str, Any]
    kept: dict[str, Any]
    _ahead: Callable[[], int] = field(default_factory=lambda: count().__next__)
    _looked: bool = False

    def look(self, loop: Loop, stage: RunningStage) -> None:
        """Choose the number of threads and say how long training will take, before its first stage; and let each
        stage look again."""
        # ranks that share the cores would disturb each other's timing
        on_cpu = loop.state.device.type == "cpu" and (loop.ranks.size == 1 or threads.asked_for() is not None)
        if on_cpu and threads.asked_for() is None and threads.available_cores() > 1:
            stage.look_again = lambda slower: self._look_again(loop, stage, slower)
        if self._looked:
            return
        self._looked = True
        if line := slow_average(self.recipe):
            self.say(f"warning: {line}")
        self.stop.doing = "the timing of a step"
        seconds = self._choose_threads(loop, stage) if on_cpu else None
        if _has_left(loop, WORTH_AN_ESTIMATE):
            seconds = seconds or self._timed(loop, stage)
            if seconds is not None:
                self._estimate(loop, seconds)

    def _look_again(self, loop: Loop, stage: RunningStage, slower: float) -> None:
        """Time a step anew, because steps take `slower` times as long as they did, and change the number of threads."""
        before = torch.get_num_threads()
        found = threads.time_counts(
            self._timer(loop, stage), threads.candidates(threads.available_cores()), self._stopped
        )
        if self._stopped():
            torch.set_num_threads(before)
            return
        taken = threads.fastest(found)
        self._set(taken)
        so = f"{taken} from here on" if taken != before else f"still {before}; something else is slowing this machine"
        self.say(
            f"threads at step {loop.state.step:,}: steps take {slower:.1f} times as long as they did "
            f"(timed again: {_times(found)}): {so}"
        )

    def _choose_threads(self, loop: Loop, stage: RunningStage) -> float | None:
        """Set the number of threads; the seconds of a step with them, if it was timed."""
        before: Mapping[str, Any] = self.saved.get("threads") or {}
        if (asked := threads.asked_for()) is not None:
            number = torch.get_num_threads()
            changed = before and before["number"] != number
            other = f"; the run had {before['number']}: from here on results may differ by rounding" if changed else ""
            self._set(number)
            self.say(f"threads: {number}, as {threads.OWN_VARIABLE}={asked} says{other}")
            return None
        if before and before["machine"] == threads.machine_name():
            self._set(int(before["number"]))
            self.say(f"threads: {before['number']}, as the run had here; override with {threads.OWN_VARIABLE}")
            return None
        counts = threads.candidates(threads.available_cores())
        if len(counts) == 1 or not _has_left(loop, WORTH_TIMING * len(counts)):
            return None
        number = torch.get_num_threads()
        found = threads.time_counts(self._timer(loop, stage), counts, self._stopped)
        if self._stopped():
            torch.set_num_threads(number)
            return None
        self._set(number := threads.fastest(found))
        other = f"; the run was on another machine, with {before['number']}" if before else ""
        self.say(f"threads: {number}, the fastest here ({_times(found)}){other}; override with {threads.OWN_VARIABLE}")
        return found[number]

    def _timed(self, loop: Loop, stage: RunningStage) -> float | None:
        """Seconds of a step; None: it was stopped, or memory ran out."""
        rehearsal = self._timer(loop, stage)
        try:
            rehearsal()  # what the first run makes, later ones find ready
            return None if self._stopped() else rehearsal()
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
        release_memory(loop.state.device)
        self.say("no estimate of the time: memory ran out; the first step will look for a smaller plan")
        return None

    def _estimate(self, loop: Loop, seconds: float) -> None:
        if (left := _steps_left(loop)) is None:
            self.say(f"estimate: about {in_words(seconds)} a step, for {loop.duration} in all")
            return
        line = f"estimate: about {in_words(seconds)} a step, {in_words(left * seconds)} for {left:,} steps"
        if left * seconds > LONG_SECONDS:
            line += advice(self.recipe, self.name, loop.plan, seconds, left, LONG_SECONDS)
        self.say(line)

    def _timer(self, loop: Loop, stage: RunningStage) -> Callable[[], float]:
        return lambda: rehearse(stage.step, loop.state, loop.plan, self._ahead())

    def _stopped(self) -> bool:
        return self.stop.asked

    def _set(self, number: int) -> None:
        torch.set_num_threads(number)
        self.kept["threads"] = {"number": number, "machine": threads.machine_name()}


def slow_average(recipe: Recipe) -> str | None:
    """What is wrong with an average that follows its networks too slowly for the run's length; None: nothing."""
    batch = recipe.training.batch
    steps = recipe.training.duration.known_steps(batch)
    if steps is None or steps < WORTH_AN_ESTIMATE or not recipe.kind.averaged():
        return None
    over = round(1 / (1 - recipe.ema.decay_at(steps, batch)), 3)
    if over <= SLOW_AVERAGE * steps:
        return None
    cure = (
        f"half_life_images={steps * batch * math.log(2) / 10:,.0f}".replace(",", "")
        if recipe.ema.half_life_images is not None
        else f"decay={max(0.0, 1 - 10 / steps):.6g}"
    )
    return (
        f"the average, from which samples are drawn, is over about the last {over:,.0f} steps, and the run has "
        f"{steps:,}: so samples will be older than the training is; ema.{cure} would be a tenth of the run"
    )


def _has_left(loop: Loop, steps: int) -> bool:
    """Whether so many steps are still to come; of a training that ends by the clock, whether minutes are."""
    left = _steps_left(loop)
    return loop.duration.amount - loop.seconds >= WORTH_SECONDS if left is None else left >= steps


def _steps_left(loop: Loop) -> int | None:
    """Steps of the whole training that are still to come; None: it ends by the clock, or by a person."""
    steps = loop.duration.known_steps(loop.batch)
    return None if steps is None else steps - loop.state.step


def _times(seconds: Mapping[int, float]) -> str:
    """A step's seconds by number of threads."""
    shown = [f"{in_words(seconds[number])} a step with {number}" for number in sorted(seconds)]
    return ", ".join([shown[0], *(words.replace(" a step", "") for words in shown[1:])])
