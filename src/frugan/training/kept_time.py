"""A run that keeps a time: from which point on, what is said when its length changes, and changes by hand."""

import math
import shlex
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from frugan.engine.durations import ENDLESS, UNDECIDED_STEPS, Duration
from frugan.engine.run.checkpoint import list_checkpoints
from frugan.engine.run.kept_time import TOLERANCE, KeptTime, NewLength
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadFields
from frugan.progress import Say
from frugan.recipe.loading import load_recipe, recipe_with
from frugan.recipe.overrides import in_our_words
from frugan.recipe.recipe import Recipe
from frugan.reporting.standing import NOTICEABLE
from frugan.setup.networks import weights_metadata
from frugan.training.candidates import THRESHOLDS
from frugan.training.run import TrainRun
from frugan.wording import clock, duration

SETUP = "setup_seconds"
"""Key in a checkpoint's JSON state: seconds from the command to the first training of a run that keeps a time."""
PROMISED = "promised_seconds"
"""Key beside it: the time that the checkpoint's recipe keeps; None: it kept none."""
MOST_FOR_SETUP = 0.5
"""Share of its time that a training's setup may take; what it takes beyond puts the end off."""
UNKNOWN = 5.0
"""Change of a step's seconds from which on they were not known before, as those of a recipe that is named."""
FASTEST_STEP_SECONDS = 1e-3
"""A step that was never timed is thought to take this long: too many steps are left out once some were timed."""


def with_time(
    recipe: str | Recipe, overrides: Sequence[str], for_time: str, say: Say
) -> tuple[str | Recipe, Sequence[str]]:
    """Return a recipe and its overrides such that training takes a time, unless they give it a number of steps.

    What the recipe does every so many steps is then done by the length that is decided: a named recipe's thousand steps
    may be more than there is time for.

    Raises:
        BadInput: it is no time, or the recipe cannot keep one.
    """
    seconds = Duration.parse_seconds(for_time, "--for")
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
    given = named_fields(loaded, overrides)
    if "training.duration" in given and loaded.training.duration != ENDLESS:
        return recipe, overrides
    following = [word for word in _following(loaded, seconds) if word.partition("=")[0] not in given]
    if following:
        say(
            f"with --for {for_time}, what comes between steps goes by it too: {', '.join(following)}; override with one"
        )
    words = [f"training.time={for_time}", *following]
    if isinstance(recipe, Recipe):
        return recipe_with(recipe.model_dump(mode="json"), words, f"--for {for_time}"), overrides
    return recipe, (*overrides, *words)


def named_fields(recipe: Recipe, overrides: Sequence[str]) -> set[str]:
    """Return the fields that were given, also by the options of the family's original program."""
    ours = in_our_words({"family": recipe.family}, overrides).values()
    return {word.partition("=")[0] for words in ours for word in words}


def _following(recipe: Recipe, seconds: float) -> Iterator[str]:
    """Overrides by which a recipe's intervals follow a training's length, for those that do not fit into a time."""
    saved, scored = THRESHOLDS.intervals(seconds)
    for key, every, instead in (
        ("saving.checkpoint_every", recipe.saving.checkpoint_every, saved),
        ("saving.snapshot_every", recipe.saving.snapshot_every, saved),
        ("evaluation.every", recipe.evaluation.every, scored),
    ):
        if isinstance(every, Duration) and (every.unit != "seconds" or every.amount > seconds):
            yield f"{key}={instead}"


def keep_time(run: TrainRun, step: int, saved: Mapping[str, Any], kept: dict[str, Any]) -> KeptTime | None:
    """Return what keeps the run's time, and say when it ends; None: it trains a number of steps.

    A run that had come to its end, and is given another time, gets more steps. In the same time it has none: its last
    step ended where another one would have come too late.

    Args:
        step: steps done.
        saved: JSON state of the checkpoint that is resumed; empty: none is.
        kept: JSON values of every checkpoint; take the seconds of the setup.
    """
    promised, length = run.recipe.training.time, run.training.course.length
    if promised is None or length is None:
        return None
    setup = saved.get(SETUP)
    if not isinstance(setup, int | float):
        took = time.perf_counter() - run.began
        setup = min(took, MOST_FOR_SETUP * promised.amount)
        if setup < took:
            run.choose(f"the start took {duration(took)} of {promised}: the end is put off by {duration(took - setup)}")
    kept[SETUP] = round(setup, 3)
    trained = float(saved.get("seconds", 0.0))
    left = max(0.0, promised.amount - setup - trained)
    is_other = saved.get(PROMISED) != promised.amount
    if step >= length.steps and step and is_other and left > TOLERANCE * promised.amount:
        # an imported model's steps took no time here
        length.decide(step, step + max(1, int(left / (trained / step or FASTEST_STEP_SECONDS))))
        run.folder.write_recipe(run.recipe_now.model_dump(mode="json"))
    if step >= length.steps:
        run.choose(finished_line(run.folder, run.recipe, step, run.command))
    else:
        # after how many steps, the estimate says, which times one here and now
        run.choose(
            f"ends at about {_clock_in(left)}: steps are added or left out when they turn out faster or slower "
            f"than thought (training.time={promised})"
        )
    cycle = math.lcm(*(phase.every for phase in run.training.phases))
    return KeptTime(promised.amount, length, setup, cycle)  # with the length that was told just now


def finished_line(folder: RunFolder, recipe: Recipe, step: int, command: str | None) -> str:
    """Say that a run has come to its end, and what to type to train it longer.

    Args:
        command: see `TrainRun`.
    """
    training, done = recipe.training, f"{folder.path} is finished: step {step:,}"
    if training.time is not None:
        minutes = round(training.time.amount / 30)  # of twice the time
        words = f"--for {minutes}min" if minutes > 1 else f"--for {math.ceil(2 * training.time.amount)}s"
        done = f"{done}, and its {training.time} are over"
    else:
        steps = training.duration.steps(training.batch)
        words = shlex.quote(f"training.duration={step + steps} steps")
        done = f"{done} of {steps:,}"
    return f"{done}. To train longer: {words if command is None else f'{command} {words}'}"


def report_new_length(run: TrainRun, new: NewLength) -> Mapping[str, str]:
    """Log and tell a new length, write the recipe with it, and return the metadata of weights files for it."""
    recipe = run.recipe_now
    run.folder.write_recipe(recipe.model_dump(mode="json"))
    at = recipe.training.earlier_lengths[-1][0] if recipe.training.earlier_lengths else 0
    before = {} if new.before == UNDECIDED_STEPS else {"before": new.before, "slowdown": round(new.slowdown, 3)}
    run.log.write("length", step=at, steps=new.steps, **before)
    if new.told is not None and run.is_first:  # the event is in the log already
        end = f"the end stays {_clock_in(new.seconds_left)}" if new.seconds_left > 0 else "the time is over"
        instead = f" in place of {new.told:,}" if new.told < UNDECIDED_STEPS else ""
        run.say(f"{_why(new, new.told)}: {new.steps:,} steps{instead}; {end}")
    return weights_metadata(recipe, run.class_names)


def _why(new: NewLength, told: int) -> str:
    """Give the reason for a length in place of the one that was told last."""
    if not 1 / UNKNOWN < new.told_slowdown < UNKNOWN:
        return f"steps take about {duration(new.step_seconds)}"
    if abs(new.told_slowdown - 1) >= NOTICEABLE and (new.told_slowdown > 1) == (new.steps < told):
        return "slower than thought" if new.told_slowdown > 1 else "faster than thought"
    return f"grids and scores take {'less' if new.steps > told else 'more'} time than was kept for them"


def _clock_in(seconds: float) -> str:
    """Time of day in so many seconds, with the date if that is another day."""
    now = datetime.now().astimezone()
    end = now + timedelta(seconds=seconds)
    return end.strftime("%H:%M" if end.date() == now.date() else "%Y-%m-%d %H:%M")


def with_length_by_hand(recipe: Recipe, run: RunFolder, overrides: Sequence[str], say: Say) -> Recipe:
    """Return the recipe of a run that goes on, or of one like another, with lengths and times that are consistent.

    A number of steps given by hand ends the keeping of a time, and holds from where the run is. A new run by the recipe
    of one that kept a time trains as many steps as that did, with the same changes of its length.

    Args:
        recipe: with the overrides applied.
        run: folder that is trained in.
        overrides: `key.sub=value` words that were given.
    """
    training = recipe.training
    keys = named_fields(recipe, overrides)
    by_hand = "training.duration" in keys and (training.time is None or training.duration != ENDLESS)
    if training.time is not None and not by_hand and run.exists:
        before = load_recipe(str(run.path)).training
        if before.time is not None and before.length is not None:  # another time goes on from the length that it had
            update: dict[str, Any] = {"duration": before.duration, "earlier_lengths": before.earlier_lengths}
            return recipe.model_copy(update={"training": training.model_copy(update=update)})
    if "training.time" in keys or (training.time is None and not training.earlier_lengths):
        return recipe
    if not by_hand and (run.exists or not training.earlier_lengths):
        return recipe
    if not by_hand:
        say(f"length: {training.duration}, as that run came to; training.time={training.time} keeps the time instead")
        update = {"time": None}
    elif run.exists:
        say(f"length: {training.duration}, whatever time they take; training.time keeps a time")
        update = {"time": None, "earlier_lengths": _earlier(run)}
    else:
        update = {"time": None, "earlier_lengths": ()}
    return recipe.model_copy(update={"training": training.model_copy(update=update)})


def _earlier(run: RunFolder) -> tuple[tuple[int, int], ...]:
    """Return the lengths of a run up to its newest checkpoint, from where another one holds."""
    length = load_recipe(str(run.path)).training.length
    checkpoints = list_checkpoints(run.checkpoints)
    if length is None or not checkpoints:
        return ()
    length.decide(max(checkpoints[-1].step, length.decided[-1][0]), length.steps)
    return length.earlier


def refuse_spent_length(run: Path, recipe: Recipe, changed: Collection[str], step: int, seconds: float) -> None:
    """Refuse another length that a run is beyond: it counts from the run's beginning, not from where it goes on.

    Args:
        run: its folder.
        recipe: with that length.
        changed: fields in which it differs from the recipe before.
        step, seconds: as far as the run is.

    Raises:
        BadFields: it is beyond it.
    """
    training = recipe.training
    if training.time is not None and "training.time" in changed and training.time.amount <= seconds:
        reason = f"has trained for {clock(seconds)} already; give a longer time, as it counts from the run's beginning"
        raise BadFields(f"--for {training.time}: {run} {reason}", {"training.time": f"the run {reason}"})
    steps = training.duration.known_steps(training.batch)
    if steps is not None and "training.duration" in changed and steps < step:
        reason = (
            f"is at step {step:,} already; expected more, as steps count from the beginning: "
            f"'training.duration={step + steps} steps' trains {steps:,} more"
        )
        raise BadFields(
            f"training.duration={training.duration}: {run} {reason}", {"training.duration": f"the run {reason}"}
        )
