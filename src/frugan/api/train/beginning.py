"""How a training begins: networks, state, plan and shares on the device, from a checkpoint, other weights or afresh."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, TypeVar

import torch

from frugan.api.devices import card_identity, misspelt_cards, told_when_full, use_device
from frugan.api.networks import weights_metadata
from frugan.api.setup import training_of
from frugan.api.train.init import refuse_untaught, start_from
from frugan.api.train.observers import LossHistory, collapse_watch, gradient_watch, spill_watch
from frugan.api.train.opening import Opening
from frugan.api.train.plan_in_force import TrainingPlanner
from frugan.api.train.recovery import NOTHING_HAPPENED, ROLLBACKS, Recovery, Resumed, rolled_back, seed_after
from frugan.api.train.run import TrainRun
from frugan.api.train.stages import stages_of
from frugan.engine.accelerator.choice import accelerator_of
from frugan.engine.checkpoint import restore
from frugan.engine.device import disable_reduced_precision, out_of_memory_noted, release_memory, tf32_decision
from frugan.engine.loop import Loop
from frugan.engine.optimizers import named_parameters
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision, PrecisionName, continued_precision, resolve_precision
from frugan.engine.ranks.ranks import SHARES, Ranks, ShareChoice, check_ranks
from frugan.engine.state import TrainingState
from frugan.engine.step_log import DivergenceWatch, StepLog
from frugan.engine.tensor_files import write_json
from frugan.errors import BadInput

Loaded = TypeVar("Loaded")


def load_fitting(load: Callable[[Plan], Loaded], plan: Plan, planner: TrainingPlanner) -> tuple[Loaded, Plan]:
    """Load by a plan, and once more by a smaller one if memory runs out.

    Args:
        load: makes everything anew each time; what it had made when it failed goes.

    Returns:
        What was loaded, and the plan that it was loaded by.

    Raises:
        TrainingFailed: no plan is smaller, or memory ran out again.
    """
    with out_of_memory_noted() as messages:
        loaded = load(plan)
    if not messages:
        return loaded, plan
    release_memory(planner.device)
    plan = planner.next_to_load(plan, messages[0])
    with told_when_full(planner.device, "the networks and their state were loaded by the smaller plan as well"):
        return load(plan), plan


def own_plan(planner: TrainingPlanner, ranks: Ranks, common: Plan, kept: Mapping[str, Any] | None = None) -> Plan:
    """The plan of one rank for its own share on its own card; where ranks share normalisation groups, be it in
    one phase that sees few samples, all have one.

    Args:
        common: the first rank's.
        kept: what this rank had when the run was left; None: there is none.

    Raises:
        BadInput: it does not fit there.
    """
    training = training_of(planner.recipe)
    batch, group = training.batch, training.normalisation_batch or 1
    planner.share, planner.common = ranks.share(batch, group), common
    if any(ranks.any_parts(phase.samples(batch), phase.group(group)) for phase in training.phases):
        return common
    if kept is not None:
        return Plan.from_json(kept, planner.precision)
    return planner.first(training, None)[0]


@dataclass(frozen=True)
class _Decision:
    """What the first rank tells the others, so that they need nothing of the run's folder."""

    shares: ShareChoice  # of the batch, and the plans that go with them
    plan: Mapping[str, Any]  # its own, as JSON
    budget_bytes: int | None  # on a card; None: none was asked for
    rollbacks: int  # how often the run went back: order of data and draws go by it


@dataclass(frozen=True)
class _Start:
    """What a training goes on from, on this rank."""

    # state, plan, planner: of this rank; all have the first one's state in the end
    state: TrainingState
    plan: Plan
    planner: TrainingPlanner
    # the JSON state of the checkpoint; empty: there is none, or this is another rank than the first
    saved: Mapping[str, Any]
    decision: _Decision  # by the first rank


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
    for reader in (losses.add, collapse_watch(run), gradient_watch(run), spill_watch(run, start.state.device)):
        run.log.subscribe(reader)
    if run.is_first:
        _write_down(run, state)

    kept = _kept(run, start, shares)
    opening = Opening(run, start.saved, kept)
    return Loop(
        state=state,
        plan=plan,
        stages=stages_of(run, losses, opening.look, seed_after(training.seed, start.decision.rollbacks)),
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
            DivergenceWatch.of(start.saved, state.step),
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
        "card": card_identity(start.planner.device),
        "memory_budget_bytes": start.planner.asked_bytes,
        "ranks": run.ranks.size,
        **({ROLLBACKS: rollbacks} if rollbacks else {}),
        **shares.kept(run.ranks),
    }


def _lead(run: TrainRun, recovery: Recovery) -> _Start:
    """What the first rank, or the only one, goes on from."""
    recipe = run.recipe

    resumed = Resumed.of(run)
    saved: Mapping[str, Any] = {} if resumed is None else resumed.saved

    # On which device, with which share of each batch and by which plan it is trained; networks and state are loaded.
    device, why = use_device(run.options.device)
    run.choose(f"device: {device} ({why})")
    if line := misspelt_cards():
        run.choose(line)
    batch, group = recipe.training.batch, recipe.training.normalisation_batch or 1
    shares = ShareChoice.of(run.options.shares, batch, group, run.ranks, saved, run.choose)
    run.ranks.deal_by(shares.samples)
    with told_when_full(device, "training was set up"):
        state, plan, planner = _create(run, device, resumed, recovery.precision, shares)

    # Other weights to start from; of a checkpoint, which is loaded already, people are told.
    if resumed is not None:
        resumed.tell(run)
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
    resumed: Resumed | None,
    wanted: Precision | None,
    shares: ShareChoice,
) -> tuple[TrainingState, Plan, TrainingPlanner]:
    """Decide how to train on a device, and bring what is trained there, from a checkpoint if there is one."""
    recipe = run.recipe
    saved = None if resumed is None else resumed.saved
    disable_reduced_precision()
    if line := tf32_decision(accelerator_of(device).capability):
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
        return state, [] if resumed is None else restore(resumed.checkpoint, resumed.saved, state, resumed.restarts)

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
    disable_reduced_precision()
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
