"""Measurements before the first step: the fastest number of threads and the expected training time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from frugan.accelerator.device import available_cores, catch_out_of_memory, release_memory
from frugan.data.picture_needs import PictureNeeds
from frugan.engine.durations import Duration
from frugan.engine.run import threads
from frugan.engine.run.loop import Loop, RunningStage
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.recipes import shipped_recipes
from frugan.training.run import NoStepFits, TrainRun
from frugan.wording import count as count_of
from frugan.wording import duration

WORTH_TIMING = 50
"""Steps for each number of threads: timing one takes up to 10."""
WORTH_AN_ESTIMATE = 20
"""Smallest number of steps for an estimate; fewer are over soon."""
WORTH_SECONDS = 120.0
"""Smallest duration for an estimate, of a training that ends by the clock."""
LEAST_STEPS = 100
"""Steps from random weights before which no recipe makes anything to look at."""
LONG_SECONDS = 2 * 24 * 3600.0
"""Duration from which on a training is reported as long, with shorter alternatives."""


@dataclass
class Opening:
    """Measures a training before its first step, and again when it becomes slow."""

    run: TrainRun  # is given a line for every choice; its stop ends a measurement early
    saved: Mapping[str, Any]  # the JSON state of the checkpoint that is resumed; empty: none is
    # JSON values of every checkpoint: take the number of threads, and the machine that it was chosen on
    kept: dict[str, Any]
    _ahead: Callable[[], int] = field(default_factory=lambda: count().__next__)
    _looked: bool = False

    def look(self, loop: Loop, stage: RunningStage) -> None:
        """Choose the number of threads and say how long training will take, before its first stage; and let each
        stage look again."""
        # ranks that share the cores would disturb each other's timing
        on_cpu = loop.state.device.type == "cpu" and (loop.ranks.size == 1 or threads.asked_for() is not None)
        if on_cpu and threads.asked_for() is None and available_cores() > 1:
            stage.on_slowdown = lambda slower: self._on_slowdown(loop, stage, slower)
        if self._looked:
            return
        self._looked = True
        if loop.kept_time is None:
            self._warn_of_length(self.run.recipe)
        self.run.stop.doing = "the timing of a step"
        seconds = self._choose_threads(loop, stage) if on_cpu else None
        if _has_left(loop, WORTH_AN_ESTIMATE):
            seconds = seconds or self._timed(loop, stage)
            if seconds is not None:
                self._estimate(loop, seconds)

    def _on_slowdown(self, loop: Loop, stage: RunningStage, slower: float) -> None:
        """Time a step anew, because steps take `slower` times as long as they did, and change the number of threads."""
        before = torch.get_num_threads()
        seconds_of = threads.time_counts(self._timer(loop, stage), threads.candidates(available_cores()), self._stopped)
        if self._stopped():
            torch.set_num_threads(before)
            return
        taken = threads.fastest(seconds_of)
        self._set(taken)
        so = f"{taken} from here on" if taken != before else f"still {before}; something else is slowing this machine"
        self.run.choose(
            f"threads at step {loop.state.step:,}: steps take {slower:.1f} times as long as they did "
            f"(timed again: {_times(seconds_of)}): {so}"
        )

    def _choose_threads(self, loop: Loop, stage: RunningStage) -> float | None:
        """Set the number of threads, and return the seconds of a step with them if it was timed."""
        before: Mapping[str, Any] = self.saved.get("threads") or {}
        if (requested := threads.asked_for()) is not None:
            number = torch.get_num_threads()
            changed = before and before["number"] != number
            other = f"; the run had {before['number']}: from here on results may differ by rounding" if changed else ""
            self._set(number)
            self.run.choose(f"threads: {number}, as {threads.OWN_VARIABLE}={requested} says{other}")
            return None
        if before and before["machine"] == threads.machine_name():
            self._set(int(before["number"]))
            self.run.choose(f"threads: {before['number']}, as the run had here; override with {threads.OWN_VARIABLE}")
            return None
        counts = threads.candidates(available_cores())
        if len(counts) == 1 or not _has_left(loop, WORTH_TIMING * len(counts)):
            return None
        number = torch.get_num_threads()
        seconds_of = threads.time_counts(self._timer(loop, stage), counts, self._stopped)
        if self._stopped():
            torch.set_num_threads(number)
            return None
        self._set(number := threads.fastest(seconds_of))
        other = f"; the run was on another machine, with {before['number']}" if before else ""
        self.run.choose(
            f"threads: {number}, the fastest here ({_times(seconds_of)}){other}; override with {threads.OWN_VARIABLE}"
        )
        return seconds_of[number]

    def _timed(self, loop: Loop, stage: RunningStage) -> float | None:
        """Return the seconds of a step; None: it was stopped, or memory ran out."""
        rehearsal = self._timer(loop, stage)
        seconds = None
        with catch_out_of_memory() as messages:
            rehearsal()  # what the first run makes, later ones find ready
            seconds = None if self._stopped() else rehearsal()
        if messages:
            release_memory(loop.state.device)
            self.run.choose("no estimate of the time: memory ran out; the first step will look for a smaller plan")
        return seconds

    def _estimate(self, loop: Loop, seconds: float) -> None:
        if (left := _steps_left(loop)) is None:
            self.run.choose(f"estimate: about {duration(seconds)} a step, for {loop.duration} in all")
            return
        if loop.kept_time is not None:  # the number of steps follows the time, and not the other way round
            time_left = loop.kept_time.left(loop.seconds)
            if seconds > time_left and not loop.seconds:
                raise NoStepFits(
                    f"one step alone takes about {duration(seconds)}, and of the {duration(loop.kept_time.seconds)} of "
                    f"--for (training.time) {duration(time_left)} are left: give a longer time"
                    + smaller_recipe(self.run.recipe)
                )
            coming = max(1, int(time_left / seconds))
            self.run.choose(
                f"estimate: about {duration(seconds)} a step: {coming:,} in the {duration(time_left)} that are left, "
                "less what grids and scores take"
            )
            in_all = loop.state.step + coming
            self._warn_of_length(_of_steps(self.run.recipe, in_all))
            if in_all < LEAST_STEPS and self.run.start is None and not self.saved:
                self.run.choose(
                    f"warning: {count_of(in_all, 'step')} from random weights make nothing to look at yet: "
                    f"give a longer time (--for){smaller_recipe(self.run.recipe)}"
                )
            return
        line = f"estimate: about {duration(seconds)} a step, {duration(left * seconds)} for {left:,} steps"
        if left * seconds > LONG_SECONDS:
            from frugan.training.shorter_training import advice  # noqa: PLC0415  (loads the planner)

            line += advice(self.run.recipe, self.run.name, loop.plan, seconds, left, LONG_SECONDS)
        self.run.choose(line)

    def _warn_of_length(self, recipe: Recipe) -> None:
        for line in (short_course(recipe), slow_average(recipe), no_score(recipe)):
            if line is not None:
                self.run.choose(f"warning: {line}")

    def _timer(self, loop: Loop, stage: RunningStage) -> Callable[[], float]:
        """Return a function that times a step, a later one in each call."""
        return lambda: threads.rehearse(stage.step, loop.state, loop.plan, self._ahead())

    def _stopped(self) -> bool:
        return self.run.stop.asked

    def _set(self, number: int) -> None:
        torch.set_num_threads(number)
        self.kept["threads"] = {"number": number, "machine": threads.machine_name()}


def smaller_recipe(recipe: Recipe) -> str:
    """End of a message: how to come to a smaller recipe for the same kind of data; empty: it is the smallest."""
    specs = _specs(recipe)
    if PictureNeeds in specs.values():
        return ", or a smaller recipe: `frugan train --data ... --for ...` without one chooses"
    rows = {str(row["name"]): row for row in shipped_recipes()}
    like = [name for name in rows if _specs(other := load_recipe(name)) == specs and _size(other) < _size(recipe)]
    if not like:
        return ""
    nearest = min(like, key=lambda name: (rows[name]["family"] != recipe.family, rows[name]["parameters"]))
    return f", or a smaller recipe: {nearest}"


def _specs(recipe: Recipe) -> Mapping[str, type]:
    """Data source -> what kind of data it must hold."""
    return {name: type(spec) for name, spec in recipe.kind.sources(recipe.networks, recipe.objective).items()}


def _size(recipe: Recipe) -> int:
    return int(recipe.networks.resolution)  # type: ignore[attr-defined]


def _of_steps(recipe: Recipe, steps: int) -> Recipe:
    """Return a recipe as if it had been given the number of steps that a time comes to."""
    update = {"duration": Duration.parse(f"{steps} steps"), "earlier_lengths": ()}
    return recipe.model_copy(update={"training": recipe.training.model_copy(update=update)})


def no_score(recipe: Recipe) -> str | None:
    """Return a warning if the run is over before its first score is due; None: it is not, or it asks for none."""
    every, training = recipe.evaluation.every, recipe.training
    steps = training.duration.known_steps(training.batch)
    if not isinstance(every, Duration) or (steps is not None and steps < WORTH_AN_ESTIMATE):
        return None
    if every.unit == "seconds":
        end = training.time or (training.duration if steps is None else None)
        if end is None or every.amount <= end.amount:
            return None
        length = str(end)
    elif steps is None or every.steps(training.batch) <= steps:
        return None
    else:
        length = f"{steps:,} steps"
    at_end = "evaluation.every=1.0" if steps is not None else f"evaluation.every={length}"
    return (
        f"evaluation.every {every} is longer than the run, {length}: no score is taken; {at_end} takes one at the end, "
        "and `frugan evaluate RUN --data PICTURES` takes one afterwards"
    )


def short_course(recipe: Recipe) -> str | None:
    """Return a warning if the run ends before the recipe's burn-in does; None: it does not."""
    training = recipe.training
    steps, course = training.duration.known_steps(training.batch), training.course
    if training.burn_in is None or steps is None or (reached := course.at(steps * training.batch)) >= 1:
        return None
    return (
        f"training.burn_in {training.burn_in} is longer than the run, {training.duration}: what changes during it "
        f"(learning rates, gamma, the average's half-life) gets {reached:.1%} of its way; "
        "training.burn_in=0.5 is half of the run, however long"
    )


def slow_average(recipe: Recipe) -> str | None:
    """Return a warning if the average follows its networks too slowly for the run's length; None: it does not."""
    batch = recipe.training.batch
    steps = recipe.training.duration.known_steps(batch)
    if steps is None or steps < WORTH_AN_ESTIMATE or not recipe.kind.averaged():
        return None
    over = recipe.ema.slow_over(steps, batch, recipe.training.course.at((steps - 1) * batch))
    if over is None:
        return None
    return (
        f"the average, from which samples are drawn, is over about the last {over:,.0f} steps, and the run has "
        f"{steps:,}: so samples will be older than the training is; ema.run_share=0.1 would be a tenth of the run"
    )


def _has_left(loop: Loop, steps: int) -> bool:
    """Return whether that many steps remain, or, for a training with a time limit, whether minutes do."""
    left = _steps_left(loop)
    return loop.duration.amount - loop.seconds >= WORTH_SECONDS if left is None else left >= steps


def _steps_left(loop: Loop) -> int | None:
    """Return the remaining steps of the whole training; None: it ends by time or by hand."""
    steps = loop.duration.known_steps(loop.batch) if loop.length is None else loop.length.steps
    return None if steps is None else steps - loop.state.step


def _times(seconds: Mapping[int, float]) -> str:
    """Format the seconds of a step by number of threads."""
    shown = [f"{duration(seconds[number])} a step with {number}" for number in sorted(seconds)]
    return ", ".join([shown[0], *(words.replace(" a step", "") for words in shown[1:])])
