"""How a training begins: networks, state and plan on the device, from a checkpoint, from other weights or afresh."""

import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from frugan.api.machine.devices import misspelt_cards, use_device
from frugan.api.setup import training_of
from frugan.api.train.loading import load_fitting, told_when_full
from frugan.api.train.loss_history import LossHistory
from frugan.api.train.opening import Opening
from frugan.api.train.plan_in_force import TrainingPlanner
from frugan.api.train.recovery import NOTHING_HAPPENED, ROLLBACKS, Recovery, rolled_back
from frugan.api.train.run import TrainRun
from frugan.api.train.share_choice import SHARES, ShareChoice, own_plan
from frugan.api.train.stages import stages_of
from frugan.api.train.starting_weights import refuse_untaught, start_from
from frugan.api.train.watches import collapse_watch, gradient_watch, spill_watch
from frugan.api.weights import recipe_of, weights_metadata
from frugan.data.run_data import other_pictures, read_run_data
from frugan.engine.arithmetic import pin_arithmetic, tf32_decision
from frugan.engine.checkpoint import NETWORKS_FILE, Checkpoint, newest_whole, restore, set_aside_newer
from frugan.engine.loop import Loop
from frugan.engine.optimizers import named_parameters
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision, PrecisionName, continued_precision, resolve_precision
from frugan.engine.ranks.ranks import check_ranks
from frugan.engine.soundness import Soundness
from frugan.engine.state import TrainingState
from frugan.engine.step_log import StepLog
from frugan.engine.tensor_files import write_json
from frugan.errors import BadInput
from frugan.recipe.differences import Difference, differences
from frugan.recipe.recipe import Recipe

Found = tuple[Checkpoint, dict[str, Any], list[str]]
"""A checkpoint to go on from, its JSON state, and what is wrong with newer ones."""


@dataclass(frozen=True)
class _Decision:
    """What the first rank tells the others, so that they need nothing of the run's folder.

    Attributes:
        shares: of the batch, and the plans that go with them.
        plan: its own, as JSON.
        budget_bytes: on a card; None: none was asked for.
        rollbacks: how often the run went back: order of data and draws go by it.
    """

    shares: ShareChoice
    plan: Mapping[str, Any]
    budget_bytes: int | None
    rollbacks: int


@dataclass(frozen=True)
class _Start:
    """What a training goes on from, on this rank.

    Attributes:
        state, plan, planner: of this rank; all have the first one's state in the end.
        saved: the JSON state of the checkpoint; empty: there is none, or this is another rank than the first.
        decision: by the first rank.
    """

    state: TrainingState
    plan: Plan
    planner: TrainingPlanner
    saved: Mapping[str, Any]
    decision: _Decision


def begin(run: TrainRun, recovery: Recovery = NOTHING_HAPPENED) -> Loop:
    """Make ready to train: what the loop goes on from is loaded, said and written down; every rank calls it.

    Args:
        recovery: what became of the run in this process so far.

    Raises:
        BadInput: the checkpoint is of another recipe, or damaged, or the weights to start from cannot be used; or this
            rank cannot do what the first one does.
    """
    recipe, training, ranks = run.recipe, run.recipe.training, run.ranks
    start = _lead(run, recovery) if run.is_first else None
    decision = ranks.broadcast(None if start is None else start.decision)
    if start is None:
        assert decision is not None  # the first rank has sent it
        start = _follow(run, decision)
    ranks.give_state(start.state)
    state, plan = start.state, start.plan
    shares = replace(start.decision.shares, plans=ranks.gather(plan.as_json()))

    # Who reads the events from the first one on.
    losses = LossHistory.of(run.folder.events) if run.is_first else LossHistory()
    for reader in (losses.add, collapse_watch(run), gradient_watch(run), spill_watch(run)):
        run.log.subscribe(reader)
    if run.is_first:
        _write_down(run, state)

    kept = _kept(run, start, shares)
    opening = Opening(recipe, run.name, run.choose, run.stop, start.saved, kept)
    return Loop(
        state=state,
        plan=plan,
        stages=stages_of(run, losses, opening, start.decision.rollbacks),
        next_plan=start.planner.next,
        duration=training.duration,
        batch=training.batch,
        keep=recipe.saving.keep_checkpoints,
        run=run.folder,
        log=run.log,
        steps=StepLog(
            run.log,
            run.folder.checkpoints,
            state.device,
            training.duration,
            run.command,
            Soundness.of(start.saved, state.step),
        ),
        metadata=weights_metadata(recipe, run.class_names),
        kept=kept,
        requests=run.requests,
        goes_on_when_full=recipe.saving.when_full == "go-on",
        seconds=float(start.saved.get("seconds", 0.0)),
        images=int(start.saved.get("images", state.step * training.batch)),
        ranks=ranks,
        stop_after=run.options.stop_after_seconds,
    )


def _kept(run: TrainRun, start: _Start, shares: ShareChoice) -> dict[str, Any]:
    """What every checkpoint keeps."""
    rollbacks = start.decision.rollbacks
    return {
        "data": {name: data.as_json() for name, data in run.data.items()},
        "device": start.state.device.type,
        "card": start.planner.where,
        "memory_budget_bytes": start.planner.asked_bytes,
        "ranks": run.ranks.size,
        **({ROLLBACKS: rollbacks} if rollbacks else {}),
        **shares.kept(run.ranks),
    }


def _lead(run: TrainRun, recovery: Recovery) -> _Start:
    """What the first rank, or the only one, goes on from."""
    recipe = run.recipe

    # What is there already, and whether this recipe and these pictures may go on with it.
    found = newest_whole(run.folder.checkpoints)
    saved = found[1] if found is not None else {}
    # The checkpoint's recipe counts, not recipe.json: that is changed already if a run died before it saved.
    before = recipe_of(found[0].path / NETWORKS_FILE) if found else recipe
    changed = changed_fields(before, recipe, run.folder.path)
    _refuse_swapped(run, {name: known.digest for name, known in read_run_data(saved).items()})

    # Where it is trained, on which shares of a batch, by which plan: everything on the device.
    device, why = use_device(run.options.device)
    run.choose(f"device: {device} ({why})")
    if line := misspelt_cards():
        run.choose(line)
    restarts = {name for change in changed.values() for name in change.restarts}
    shares = ShareChoice.of(run.options.shares, recipe, run.ranks, saved, run.choose)
    run.ranks.deal_by(shares.samples)
    with told_when_full(device, "training was set up"):
        state, plan, planner = _create(run, device, found, restarts, recovery.precision, shares)

    # What it goes on from.
    if found is not None:
        _tell_resumed(run, found, state.step, before)
        _tell_finished(run, state.step)
    elif run.start is not None:
        start_from(run.start, recipe, state, run.class_names, run.choose)
    else:
        refuse_untaught(state.networks)
    shares.led_by(plan)
    rollbacks = max(recovery.rollbacks, rolled_back(saved))
    return _Start(state, plan, planner, saved, _Decision(shares, plan.as_json(), planner.asked_bytes, rollbacks))


def _create(
    run: TrainRun,
    device: torch.device,
    found: Found | None,
    restarts: Collection[str],
    wanted: Precision | None,
    shares: ShareChoice,
) -> tuple[TrainingState, Plan, TrainingPlanner]:
    """Decide how to train on a device, and bring what is trained there, from a checkpoint if there is one."""
    recipe = run.recipe
    saved = None if found is None else found[1]
    pin_arithmetic()
    if device.type == "cuda" and (line := tf32_decision(torch.cuda.get_device_capability(device))):
        run.choose(line)
    precision = wanted or _precision(run, device, saved)
    training = training_of(recipe)
    group = recipe.training.normalisation_batch or 1
    for line in check_ranks(training.phases, recipe.training.batch, group, run.ranks.size, shares.samples):
        run.choose(line)
    planner = TrainingPlanner(recipe, run.name, run.options, device, precision, run.choose, ranks=run.ranks.size)
    if shares.samples is not None:
        planner.share = run.ranks.share(recipe.training.batch, group)
    same = list(shares.samples or ()) == (saved or {}).get(SHARES, {}).get("samples", [])
    plan, report = planner.first(training, saved if same else None)

    def load(by: Plan) -> tuple[TrainingState, list[str]]:
        state = training.state(by, device, run.ranks)
        return state, [] if found is None else restore(found[0], found[1], state, restarts)

    (state, lines), loaded_by = load_fitting(load, plan, planner)
    in_force = loaded_by if report is None or loaded_by != plan else report
    write_json(run.folder.plan, in_force.as_json())
    for line in lines:
        run.choose(line)
    return state, loaded_by, planner


def _follow(run: TrainRun, decision: _Decision) -> _Start:
    """What another rank than the first goes on from: a state of the right shape, and a plan of its own if it must.

    Raises:
        BadInput: this rank's card cannot do what the first one's does.
    """
    ranks, device = run.ranks, torch.device(run.options.device)
    pin_arithmetic()
    asked: PrecisionName = decision.plan["precision"]
    precision = resolve_precision(asked, device)
    if precision.name != asked:
        raise BadInput(
            f"{ranks.name} cannot train in {asked}, as the first rank does ({precision.warning}); give all of them "
            f"training.precision={precision.name}"
        )
    planner = TrainingPlanner(run.recipe, run.name, run.options, device, precision, run.choose_here, ranks=ranks.size)
    if decision.budget_bytes is not None:
        planner.cap(decision.budget_bytes)
    shares = decision.shares
    ranks.deal_by(shares.samples)
    plan = Plan.from_json(decision.plan, precision)
    if shares.samples is not None:
        plan = own_plan(planner, ranks, plan, shares.plans[ranks.rank] if shares.plans else None)
    return _Start(training_of(run.recipe).state(plan, device, run.ranks), plan, planner, {}, decision)


def _precision(run: TrainRun, device: torch.device, saved: Mapping[str, Any] | None) -> Precision:
    asked = run.recipe.training.precision
    before: PrecisionName = "auto" if saved is None else saved["plan"]["precision"]
    if asked == "auto" and before != "auto":
        precision = continued_precision(before, device)
        run.choose(f"precision: {precision.name} ({precision.reason})")
    else:
        precision = resolve_precision(asked, device)
    if asked == before == "auto":
        other = "" if precision.name == "fp32" else "; for full precision begin a run with training.precision=fp32"
        run.choose(f"precision: {precision.name} ({precision.reason}{other})")
    if precision.warning:
        run.choose(f"precision {precision.name}: {precision.warning}")
    return precision


def _tell_resumed(run: TrainRun, found: Found, step: int, before: Recipe) -> None:
    checkpoint, saved, damage = found
    for fault in damage:
        run.choose(f"damaged checkpoint skipped: {fault}")
    for moved in set_aside_newer(run.folder.checkpoints, checkpoint):
        run.choose(f"set aside as {moved}; delete it when it is of no more use")
    run.log.write("resume", step=step)
    run.choose(f"resuming {run.folder.path} at step {step:,}")
    if run.start is not None:
        run.choose(f"--init {run.start.path} is ignored: the run exists and resumes from its own checkpoint")
    for key, change in differences(before.at_step(step), run.recipe.at_step(step)).items():
        run.log.write("changed", step=step, field=key, before=str(change.before), now=str(change.after))
        run.choose(f"changed from step {step:,} on: {key}: {change.before} -> {change.after}")
    if before.stages != run.recipe.stages:
        run.log.write("changed", step=step, field="stages", before=str(before.stages), now=str(run.recipe.stages))
        run.choose(f"changed from step {step:,} on: the recipe's stages")
    for name, known in read_run_data(saved).items():
        digest = run.sources[name].digest if name in run.sources else known.digest
        if digest != known.digest:
            run.log.write("changed", step=step, field=f"data.{name}", before=known.digest, now=digest)
        if name in run.sources and (line := other_pictures(name, known, digest)):
            run.choose(line)


def _tell_finished(run: TrainRun, step: int) -> None:
    """Where nothing is left to do: how to train longer."""
    steps = run.recipe.training.duration.known_steps(run.recipe.training.batch)
    if steps is not None and step >= steps:
        run.choose(
            f"{run.folder.path} is finished: step {step:,} of {steps:,}. To train longer, give a longer duration: "
            f"'training.duration={2 * steps} steps'"
        )


def _write_down(run: TrainRun, state: TrainingState) -> None:
    """The recipe that counts from here on, and the event that says what began where."""
    recipe = run.recipe.model_dump(mode="json")
    write_json(run.folder.recipe, recipe)
    run.log.write(
        "start",
        step=state.step,
        frugan=version("frugan"),
        torch=str(torch.__version__),
        machine=platform.platform(),
        device=str(state.device),
        data={name: {"digest": source.digest, "pictures": len(source)} for name, source in run.sources.items()},
        recipe=recipe,
        parameters={
            name: each.numel() for name, each in named_parameters(state.networks, list(state.networks)).items()
        },
    )


def _refuse_swapped(run: TrainRun, saved: Mapping[str, str]) -> None:
    """Two sources in each other's places would train a model in the wrong direction."""
    now = {name: source.digest for name, source in run.sources.items()}
    for a, b in combinations(sorted(set(now) & set(saved)), 2):
        if now[a] != now[b] and (now[a], now[b]) == (saved[b], saved[a]):
            raise BadInput(
                f"--data {a}=... and --data {b}=... are swapped: {a} is what the run was trained with as {b}, and "
                "the other way round; swap them back, or choose another --out"
            )


def changed_fields(before: Recipe, now: Recipe, run: Path) -> dict[str, Difference]:
    """What differs from the recipe of the run that is resumed.

    Raises:
        BadInput: a fixed field differs.
    """
    changed = differences(before, now)
    fixed = {key: field for key, field in changed.items() if not field.changeable}
    if fixed:
        lines = "\n".join(f"  {key}: {field.before} in the run, {field.after} now" for key, field in fixed.items())
        raise BadInput(
            f"run {run} was begun with other values of fields that cannot change:\n{lines}\n"
            "choose another --out, or use the run's values"
        )
    return changed
