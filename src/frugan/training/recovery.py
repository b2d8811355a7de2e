"""Resuming of a run from its newest checkpoint, or from its last sound one once it has diverged."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from frugan.accelerator.base import card_has_tf32
from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.device import disable_reduced_precision, tf32_decision
from frugan.accelerator.precision import (
    Precision,
    PrecisionName,
    continued_precision,
    refuse_tf32,
    resolve_precision,
    wider_precision,
)
from frugan.data.run_data import other_pictures, read_run_data, spoilt_by_change
from frugan.engine.run.checkpoint import (
    DIVERGED,
    EMA_FILE,
    NETWORKS_FILE,
    OPTIMIZERS_FILE,
    UNFINISHED,
    Checkpoint,
    DamagedCheckpoint,
    list_checkpoints,
    newest_whole,
    restore,
    set_aside,
    set_aside_newer,
    verify,
)
from frugan.engine.run.events import read_events
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.run.step_log import FINITE_STEPS, Diverged, sound_checkpoints
from frugan.engine.run.tensor_files import read_tensors
from frugan.engine.state.state import TrainingState
from frugan.engine.streams import derive_seed
from frugan.errors import BadInput
from frugan.progress import Say
from frugan.recipe.loading import parse_recipe, read_run_recipe
from frugan.recipe.overrides import Difference, differences
from frugan.recipe.recipe import Recipe
from frugan.setup.networks import recipe_of
from frugan.training.kept_time import PROMISED, finished_line, refuse_spent_length
from frugan.training.run import TrainingResult, TrainRun
from frugan.training.starting_weights import Start

NOTED = "training.earlier_lengths"
"""Field of a recipe that a run notes itself, and nobody types."""
ROLLBACKS = "rollbacks"
"""Key in a checkpoint's JSON state for its run's rollbacks, which determine the order of data."""


@dataclass(frozen=True)
class Recovery:
    """Rollbacks of a run so far, and the precision that it continues in."""

    rollbacks: int = 0  # over all resumptions
    precision: Precision | None = None  # None: unchanged


NO_RECOVERY = Recovery()


def rollbacks_before(saved: Mapping[str, Any]) -> int:
    """Return the number of rollbacks before a checkpoint, from its JSON state."""
    number = saved.get(ROLLBACKS, 0)
    return number if isinstance(number, int) else 0


def seed_after(seed: int, rollbacks: int) -> int:
    """Return the seed for the order of data and the draws after that many rollbacks."""
    return derive_seed(seed, "rollback", rollbacks) if rollbacks else seed


def recover(run: TrainRun, error: Diverged, before: Recovery, device: torch.device) -> Recovery:
    """Decide how a diverged run continues, and report and log the decision.

    Where fp16 has not the range and the recipe leaves the precision open, in a wider one; else in another order of
    data. Checkpoints from within the trouble have been set aside already; those with values that are not finite are
    set aside here.

    Raises:
        Diverged: as given: no sound checkpoint is left, or the recipe lets it go back no more.
    """
    # no checkpoint was written, and none was set aside
    untouched = not any(not path.name.startswith(UNFINISHED) for path in run.folder.checkpoints.glob("*"))
    newest = _newest_finite(run.folder.checkpoints)
    may_widen = error.out_of_range and before.precision is None and run.recipe.training.precision == "auto"
    if newest is None and untouched and may_widen:
        return _widened(run, error, before, device, to=0)
    if newest is None:
        run.log.write("diverged", step=error.step, phase=error.phase, reason=error.reason, rollbacks=before.rollbacks)
        raise error
    checkpoint, saved = newest
    set_aside_newer(run.folder.backups, checkpoint, DIVERGED)
    if may_widen:
        return _widened(run, error, before, device, to=checkpoint.step)
    facts = {"phase": error.phase, "reason": error.reason, "to": checkpoint.step}
    done, most = max(before.rollbacks, rollbacks_before(saved)), run.recipe.training.rollbacks
    if done >= most:
        run.log.write("diverged", step=error.step, rollbacks=done, **facts)
        raise error
    run.log.write("rollback", step=error.step, number=done + 1, most=most, **facts)
    run.warn(
        error.step,
        f"phase {error.phase}: updates stay not finite ({error.reason}); back to step {checkpoint.step:,} and on in "
        f"another order of data ({done + 1} of training.rollbacks={most})",
    )
    return replace(before, rollbacks=done + 1)


def _widened(run: TrainRun, error: Diverged, before: Recovery, device: torch.device, *, to: int) -> Recovery:
    wider = wider_precision(device)
    facts = {"phase": error.phase, "reason": error.reason, "to": to}
    run.log.write("precision", step=error.step, before="fp16", now=wider.name, **facts)
    run.warn(
        error.step,
        f"phase {error.phase}: fp16 overflows even at its least loss scale ({error.reason}); the run goes on in "
        f"{wider.name} from step {to:,}, as training.precision is auto",
    )
    return replace(before, precision=wider)


BATCH = "batch"
"""Key in a checkpoint's JSON state for the samples of a step."""
CHOSEN = "recipe chosen"
"""Name of the event that records an automatically chosen recipe."""


def init_of(start: Start | None) -> dict[str, str]:
    """Return the event fields that name the starting weights; empty: there are none."""
    if start is None:
        return {}
    classes = {} if start.classes is None else {"init_classes": str(start.classes)}
    return {"init": str(start.path if start.shipped else start.path.resolve()), **classes}


def init_words(run: RunFolder) -> tuple[str | None, str | None]:
    """Return the `--init` and `--init-classes` values in a run's event log; None: it has none."""
    init = classes = None
    for event in read_events(run.events) if run.events.is_file() else ():
        if event.get("event") == CHOSEN or (event.get("event") == "start" and "init" in event):
            init, classes = event.get("init"), event.get("init_classes")
    return init, classes


def began_from(run: RunFolder) -> Start | None:
    """Return the starting weights that a run's event log names; None: random ones.

    Raises:
        BadInput: it is there no more.
    """
    init, classes = init_words(run)
    return Start.of(init, classes, ships=init is not None and not Path(init).is_absolute())


def choice_of(events: Path) -> Mapping[str, Any]:
    """Return the last logged inputs of a run's recipe choice; empty: its recipe was not chosen."""
    choice: Mapping[str, Any] = {}
    for event in read_events(events):
        if event.get("event") == "step":
            break
        if event.get("event") == CHOSEN:
            choice = event
    return choice


def _newest_finite(folder: Path) -> tuple[Checkpoint, dict[str, Any]] | None:
    """The newest whole checkpoint, if it is sound and every number in it is finite; others are set aside until it is.

    A weight that went bad in memory is in the next checkpoint before the update that it spoils is known.
    """
    while list_checkpoints(folder):
        try:
            newest = newest_whole(folder)
        except BadInput:  # none is
            return None
        if newest is None or newest[0].step not in {checkpoint.step for checkpoint in sound_checkpoints(folder)}:
            return None
        if _finite(newest[0].path):
            return newest[0], newest[1]
        set_aside(newest[0], DIVERGED)
    return None


def _finite(path: Path) -> bool:
    files = [path / name for name in (NETWORKS_FILE, EMA_FILE, OPTIMIZERS_FILE) if (path / name).is_file()]
    return all(
        bool(torch.isfinite(tensor).all())
        for file in files
        for tensor in read_tensors(file)[0].values()
        if tensor.is_floating_point()
    )


@dataclass(frozen=True)
class Resumed:
    """The checkpoint that a run is resumed from."""

    checkpoint: Checkpoint  # the newest whole one
    saved: Mapping[str, Any]  # its JSON state
    damage: Sequence[str]  # faults of newer checkpoints
    before: Recipe  # recipe in the checkpoint
    restarts: Collection[
        str
    ]  # networks that start anew with their optimizer state, because fields of the recipe changed
    # a preliminary training that is over: its name, and the networks whose weights start anew; None: none is
    over: tuple[str, Collection[str]] | None = None

    @property
    def step(self) -> int:
        """Step to go on from."""
        return self.checkpoint.step if self.over is None else 0

    @classmethod
    def of(cls, run: TrainRun) -> "Resumed | None":
        """Read the newest checkpoint; None: the run is new.

        Raises:
            BadInput: this recipe or these pictures may not go on with it; or no checkpoint is whole.
        """
        newest = newest_whole(run.folder.checkpoints)
        if newest is None:
            return None
        checkpoint, saved, damage = newest
        # The checkpoint's recipe counts, not recipe.json: that is changed already if a run died before it saved.
        before = recipe_of(checkpoint.path / NETWORKS_FILE)
        changed = changed_fields(before, run.recipe, run.folder.path)
        if before.preliminary is None and (early := run.recipe.preliminary) is not None:
            raise BadInput(
                f"{run.folder.path} is past its {early.name}, which comes first: go on without it "
                "(objective.pretrain=false), or begin it anew with another --out"
            )
        over = preliminary_that_is_over(before, run.recipe)
        if over is not None:  # what counts from the beginning counts anew
            saved = {key: value for key, value in saved.items() if key not in ("seconds", "images", FINITE_STEPS)}
        else:
            seconds = float(saved.get("seconds", 0.0))
            refuse_spent_length(run.folder.path, run.recipe, changed, checkpoint.step, seconds)
        _refuse_swapped(run, {name: known.digest for name, known in read_run_data(saved).items()})
        restarts = {name for change in changed.values() for name in change.restarts}
        promised = before.training.time
        of_recipe = {BATCH: before.training.batch, PROMISED: None if promised is None else promised.amount}
        return cls(checkpoint, {**of_recipe, **saved}, damage, before, restarts, over)

    def restore(self, state: TrainingState) -> list[str]:
        """Put the checkpoint into a freshly created state, and return a line for everything that does not simply go on.

        Raises:
            BadInput: the checkpoint is of another network or objective.
        """
        anew = () if self.over is None else self.over[1]
        lines = restore(self.checkpoint, self.saved, state, self.restarts, reinitialised=anew)
        state.step = self.step
        return lines

    def tell(self, run: TrainRun) -> None:
        """Report and log the step to resume from and what has changed; set newer checkpoints aside."""
        step = self.step
        for fault in self.damage:
            run.choose(f"damaged checkpoint skipped: {fault}")
        for folder in (run.folder.checkpoints, run.folder.backups):
            for moved in set_aside_newer(folder, self.checkpoint):
                run.choose(f"set aside as {moved}; delete it when it is of no more use")
        if self.over is None:
            run.log.write("resume", step=step)
            run.choose(f"resuming {run.folder.path} at step {step:,}")
        else:
            name, at = self.over[0], self.checkpoint.step
            run.log.write("resume", step=step, over=name, after=at)
            run.choose(f"{name} is over at its step {at:,}: {run.folder.path} begins anew at step 0 with its weights")
        for key, change in differences(self.before.at_step(step), run.recipe.at_step(step)).items():
            if key in ("stages", NOTED):
                continue  # told below, or by the new length
            run.log.write("changed", step=step, field=key, before=str(change.before), now=str(change.after))
            run.choose(f"changed from step {step:,} on: {key}: {change.before} -> {change.after}")
        if self.before.stages != run.recipe.stages:
            run.log.write(
                "changed", step=step, field="stages", before=str(self.before.stages), now=str(run.recipe.stages)
            )
            run.choose(f"changed from step {step:,} on: the recipe's stages")
        for name, known in read_run_data(self.saved).items():
            digest = run.sources[name].digest if name in run.sources else known.digest
            if digest != known.digest:
                run.log.write("changed", step=step, field=f"data.{name}", before=known.digest, now=digest)
            if self.over is None and name in run.sources and (line := other_pictures(name, known, run.sources[name])):
                run.choose(line)
            if known.held_out is not None and name in run.data and run.data[name].held_out != known.held_out:
                _tell_other_test_pictures(run, name)
        _tell_finished(run, step)


def _tell_other_test_pictures(run: TrainRun, name: str) -> None:
    """Say that a source has other test pictures than before, and whether they may have been trained on."""
    run.choose(f"the test pictures of {name!r} have changed: scores before and after do not compare")
    spoilt = spoilt_by_change(run.recipe.data.holdout, [run.data[name]])
    if spoilt is not None:
        run.choose(f"warning: {spoilt}")


def finished_before(folder: RunFolder, recipe: Recipe, command: str | None, say: Say) -> TrainingResult | None:
    """A run that has come to its end, and is asked for just as it was: it is said how to train it longer.

    None: something is left to be done, mended or refused, for which pictures and networks are opened.

    Args:
        command: see `TrainRun`.
    """
    steps = recipe.training.duration.known_steps(recipe.training.batch)
    if steps is None or not folder.exists:
        return None
    with folder.locked(say):
        newest = list_checkpoints(folder.checkpoints)[-1:]
        drawn = {step for step, _, _ in folder.grids()}
        if not newest or newest[0].step < steps or newest[0].step not in drawn:
            return None
        try:
            saved, before = verify(newest[0]), recipe_of(newest[0].path / NETWORKS_FILE)
        except (DamagedCheckpoint, BadInput):
            return None
    if differences(before, recipe):
        return None
    say(finished_line(folder, recipe, newest[0].step, command))
    seconds = float(saved.get("seconds", 0.0))
    return TrainingResult(folder.path, newest[0].step, True, seconds, torch.get_num_threads())


def _tell_finished(run: TrainRun, step: int) -> None:
    """Say how to train longer a run that has already finished."""
    steps = run.recipe.training.duration.known_steps(run.recipe.training.batch)
    if steps is not None and step >= steps and run.recipe.training.time is None:
        run.choose(finished_line(run.folder, run.recipe, step, run.command))


def _refuse_swapped(run: TrainRun, saved: Mapping[str, str]) -> None:
    """Refuse swapped sources, which would train a model in the wrong direction."""
    now = {name: source.digest for name, source in run.sources.items()}
    for a, b in combinations(sorted(set(now) & set(saved)), 2):
        if now[a] != now[b] and (now[a], now[b]) == (saved[b], saved[a]):
            raise BadInput(
                f"--data {a}=... and --data {b}=... are swapped: {a} is what the run was trained with as {b}, and "
                "the other way round; swap them back, or choose another --out"
            )


def preliminary_that_is_over(before: Recipe, now: Recipe) -> tuple[str, Collection[str]] | None:
    """Return the preliminary training that is over where a run goes on with a recipe, so that steps count anew.

    Returns:
        Its name, and the networks whose weights start anew; None: none is over.
    """
    anew = now.kind.fresh_after(before.objective, now.objective)
    if not anew and (before.preliminary is None or now.preliminary is not None):
        return None
    return before.preliminary.name if before.preliminary is not None else "training", anew


def refuse_other_recipe(run: RunFolder, recipe: Recipe) -> None:
    """Refuse to resume a run of another recipe, before its pictures are opened.

    Raises:
        BadInput: a fixed field differs.
    """
    if run.exists:
        changed_fields(parse_recipe(read_run_recipe(run.recipe), str(run.recipe)), recipe, run.path)


def precision_of(run: TrainRun, device: torch.device, saved: Mapping[str, Any], wanted: Precision | None) -> Precision:
    """Choose the precision that a run starts or resumes in, and disable torch's reduced precision.

    Args:
        saved: the JSON state of the checkpoint that is resumed; empty: none is.
        wanted: that a recovery has decided on; None: none has.

    Raises:
        BadInput: the recipe asks for TF32, which the device does not have.
    """
    tf32 = _allow_tf32(run, device)
    if line := tf32_decision(accelerator_of(device).capability, wanted=tf32):
        run.choose(line)
    return replace(_precision_of(run, device, saved) if wanted is None else wanted, tf32=tf32)


def _allow_tf32(run: TrainRun, device: torch.device) -> bool:
    """Set how fp32 numbers are multiplied in this process, and return whether as TF32.

    Raises:
        BadInput: the recipe asks for it, and the device does not have it.
    """
    accelerator, tf32 = accelerator_of(device), run.recipe.training.tf32
    if tf32 and not card_has_tf32(accelerator.capability):
        raise refuse_tf32(accelerator.name if accelerator.is_card else "this processor")
    disable_reduced_precision(tf32=tf32)
    return tf32


def _precision_of(run: TrainRun, device: torch.device, saved: Mapping[str, Any]) -> Precision:
    """Choose the precision of a run as its recipe, its last checkpoint and the device have it, and say so."""
    requested = run.recipe.training.precision
    before: PrecisionName = saved["plan"]["precision"] if saved else "auto"
    if requested == "auto" and before != "auto":
        precision = continued_precision(before, device)
        run.choose(f"precision: {precision.name} ({precision.reason})")
    else:
        precision = resolve_precision(requested, device)
    if requested == before == "auto":
        other = "" if precision.name == "fp32" else "; for full precision begin a run with training.precision=fp32"
        run.choose(f"precision: {precision.name} ({precision.reason}{other})")
    if precision.warning:
        run.choose(f"precision {precision.name}: {precision.warning}")
    return precision


def first_rank_precision(run: TrainRun, device: torch.device, first: PrecisionName) -> Precision:
    """Return the first rank's precision on any other rank.

    Raises:
        BadInput: this rank's card cannot.
    """
    precision = replace(resolve_precision(first, device), tf32=_allow_tf32(run, device))
    if precision.name != first:
        raise BadInput(
            f"{run.ranks.name} cannot train in {first}, as the first rank does ({precision.warning}); give all of them "
            f"training.precision={precision.name}"
        )
    return precision


def _has_moved(key: str, field: Difference) -> bool:
    """Return whether a folder of test pictures has another place now, from which nothing gets into training."""
    return key == "data.holdout" and isinstance(field.before, str) and isinstance(field.after, str)


def changed_fields(before: Recipe, now: Recipe, run: Path) -> dict[str, Difference]:
    """Return the fields that differ from the recipe of the run that is resumed.

    Raises:
        BadInput: a fixed field differs.
    """
    changed = differences(before, now)
    fixed = {key: field for key, field in changed.items() if not field.changeable and not _has_moved(key, field)}
    if fixed:
        fixed = {"family": fixed["family"]} if "family" in fixed else fixed  # all others follow from it
        lines = "\n".join(f"  {key}: {field.before} in the run, {field.after} now" for key, field in fixed.items())
        raise BadInput(
            f"run {run} was begun with other values of fields that cannot change:\n{lines}\n"
            "choose another --out, or use the run's values"
        )
    if "training.batch" in changed and (counting := now.counted_in_images):
        raise BadInput(
            f"training.batch: {before.training.batch} in the run {run}, {now.training.batch} now, and "
            f"{', '.join(counting)} {'count' if len(counting) > 1 else 'counts'} images, which no step would stand for "
            "any more; give that in steps, such as training.duration='150k steps', or use the run's batch"
        )
    return changed
