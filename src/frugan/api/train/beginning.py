"""How a training begins: networks, state and plan on the device, from a checkpoint, from other weights or afresh."""

import platform
from collections.abc import Collection, Mapping
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from frugan.api.machine.devices import misspelt_cards, use_device
from frugan.api.networks import build_networks
from frugan.api.setup import setup_of
from frugan.api.train.class_tables import ClassStart
from frugan.api.train.loading import load_fitting, told_when_full
from frugan.api.train.loss_history import LossHistory
from frugan.api.train.open_run import OpenRun
from frugan.api.train.opening import Opening
from frugan.api.train.other_ranks import beginning_of
from frugan.api.train.plan_in_force import TrainingPlanner
from frugan.api.train.recovery import NOTHING_HAPPENED, ROLLBACKS, Recovery, rolled_back
from frugan.api.train.share_choice import SHARES, ShareChoice
from frugan.api.train.stages import stages_of
from frugan.api.train.starting_weights import refuse_untaught, start_from
from frugan.api.train.watches import collapse_watch, gradient_watch, spill_watch
from frugan.api.weights import recipe_of, weights_metadata
from frugan.data.run_data import other_pictures, read_run_data
from frugan.engine.arithmetic import pin_arithmetic, tf32_decision
from frugan.engine.checkpoint import NETWORKS_FILE, Checkpoint, newest_whole, restore, set_aside_newer
from frugan.engine.interrupt import StopRequest
from frugan.engine.loop import Loop
from frugan.engine.optimizers import named_parameters
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision, PrecisionName, continued_precision, resolve_precision
from frugan.engine.ranks.ranks import check_ranks
from frugan.engine.requests import Requests
from frugan.engine.soundness import Soundness
from frugan.engine.state import TrainingState
from frugan.engine.step_log import StepLog
from frugan.engine.tensor_files import write_json
from frugan.errors import BadInput
from frugan.recipe.differences import Difference, differences
from frugan.recipe.recipe import Recipe

Found = tuple[Checkpoint, dict[str, Any], list[str]]
"""A checkpoint to go on from, its JSON state, and what is wrong with newer ones."""


def begin(
    run: OpenRun,
    init: str | Path | None,
    requests: Requests,
    stop: StopRequest,
    recovery: Recovery = NOTHING_HAPPENED,
    init_classes: ClassStart | None = None,
) -> Loop:
    """Make ready to train: what the loop goes on from is loaded, said and written down.

    Args:
        init: weights that a new run starts from.
        recovery: what became of the run in this process so far.
        init_classes: what a new run's tables of classes start from.

    Raises:
        BadInput: the checkpoint is of another recipe, or damaged, or `init` cannot be used.
    """
    recipe, training = run.recipe, run.recipe.training

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
        _tell_resumed(run, found, state.step, before, init)
        _tell_finished(run, state.step)
    elif init is not None:
        start_from(Path(init), recipe, state, run.class_names, run.choose, init_classes)
    else:
        refuse_untaught(state.networks)

    # Who reads the events from the first one on.
    losses = LossHistory.of(run.folder.events)
    for reader in (losses.add, collapse_watch(run), gradient_watch(run), spill_watch(run)):
        run.log.subscribe(reader)
    _write_down(run, state)

    # What every checkpoint keeps; the other ranks begin with the same.
    kept: dict[str, Any] = {
        "data": {name: data.as_json() for name, data in run.data.items()},
        "device": state.device.type,
        "card": planner.where,
        "memory_budget_bytes": planner.asked_bytes,
        "ranks": run.ranks.size,
    }
    rollbacks = max(recovery.rollbacks, rolled_back(saved))
    kept |= {ROLLBACKS: rollbacks} if rollbacks else {}
    shares.led_by(plan)
    run.ranks.take_along(beginning_of(run, plan, planner.asked_bytes, rollbacks, shares), state)
    shares.plans = run.ranks.gather(plan.as_json())
    kept |= shares.kept(run.ranks)

    opening = Opening(recipe, run.name, run.choose, stop, saved, kept)
    return Loop(
        state=state,
        plan=plan,
        stages=stages_of(run, losses, opening, rollbacks),
        next_plan=planner.next,
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
            Soundness.of(saved, state.step),
        ),
        metadata=weights_metadata(recipe, run.class_names),
        kept=kept,
        requests=requests,
        goes_on_when_full=recipe.saving.when_full == "go-on",
        seconds=float(saved.get("seconds", 0.0)),
        images=int(saved.get("images", state.step * training.batch)),
        ranks=run.ranks,
        stop_after=run.options.stop_after_seconds,
    )


def _create(
    run: OpenRun,
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
    setup = setup_of(recipe)
    described = setup.used(recipe.kind.build(recipe.networks, "meta"))
    group = recipe.training.normalisation_batch or 1
    for line in check_ranks(setup.every_phase, recipe.training.batch, group, run.ranks.size, shares.samples):
        run.choose(line)
    planner = TrainingPlanner(recipe, run.name, run.options, device, precision, run.choose, ranks=run.ranks.size)
    if shares.samples is not None:
        planner.share = run.ranks.share(recipe.training.batch, group)
    same = list(shares.samples or ()) == (saved or {}).get(SHARES, {}).get("samples", [])
    plan, report = planner.first(described, setup.every_phase, saved if same else None)

    def load(by: Plan) -> tuple[TrainingState, list[str]]:
        networks = setup.used(build_networks(recipe))
        for network in networks.values():
            network.to(device)
        state = setup.state(networks, by, device, run.ranks)
        return state, [] if found is None else restore(found[0], found[1], state, restarts)

    (state, lines), loaded_by = load_fitting(load, plan, planner)
    in_force = loaded_by if report is None or loaded_by != plan else report
    write_json(run.folder.plan, in_force.as_json())
    for line in lines:
        run.choose(line)
    return state, loaded_by, planner


def _precision(run: OpenRun, device: torch.device, saved: Mapping[str, Any] | None) -> Precision:
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


def _tell_resumed(run: OpenRun, found: Found, step: int, before: Recipe, init: str | Path | None) -> None:
    checkpoint, saved, damage = found
    for fault in damage:
        run.choose(f"damaged checkpoint skipped: {fault}")
    for moved in set_aside_newer(run.folder.checkpoints, checkpoint):
        run.choose(f"set aside as {moved}; delete it when it is of no more use")
    run.log.write("resume", step=step)
    run.choose(f"resuming {run.folder.path} at step {step:,}")
    if init is not None:
        run.choose(f"--init {init} is ignored: the run exists and resumes from its own checkpoint")
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


def _tell_finished(run: OpenRun, step: int) -> None:
    """Where nothing is left to do: how to train longer."""
    steps = run.recipe.training.duration.known_steps(run.recipe.training.batch)
    if steps is not None and step >= steps:
        run.choose(
            f"{run.folder.path} is finished: step {step:,} of {steps:,}. To train longer, give a longer duration: "
            f"'training.duration={2 * steps} steps'"
        )


def _write_down(run: OpenRun, state: TrainingState) -> None:
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


def _refuse_swapped(run: OpenRun, saved: Mapping[str, str]) -> None:
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
