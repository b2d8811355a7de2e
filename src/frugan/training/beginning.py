"""Setup of a training on its device: networks, state, plan and shares."""

import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from frugan.engine.plan import Plan
from frugan.engine.ranks.ranks import ShareChoice, check_ranks
from frugan.engine.run.checkpoint import BackupLimits, checkpoint_name
from frugan.engine.run.loop import Loop
from frugan.engine.run.step_log import DivergenceWatch, StepLog
from frugan.engine.state.state import TrainingState
from frugan.recipe.recipe import SavingSettings
from frugan.setup.devices import card_identity, explain_out_of_memory, misspelt_cards, use_device
from frugan.setup.networks import weights_metadata
from frugan.setup.ops import ops_of
from frugan.training.card_watch import look_for_second_cards, watched_card
from frugan.training.estimates import Opening
from frugan.training.kept_time import keep_time, report_new_length
from frugan.training.kernels import kernels_beside, kernels_for
from frugan.training.observers import watch
from frugan.training.plan_in_force import TrainingPlanner
from frugan.training.recovery import (
    BATCH,
    NO_RECOVERY,
    ROLLBACKS,
    Recovery,
    Resumed,
    first_rank_precision,
    init_of,
    precision_of,
    rollbacks_before,
    seed_after,
)
from frugan.training.run import TrainRun
from frugan.training.stages import stages_of
from frugan.training.starting_weights import start_from
from frugan.version import __version__
from frugan.wording import parse_size


@dataclass(frozen=True)
class _Decision:
    """Decisions of the first rank, sent to the others, which do not read the run folder."""

    shares: ShareChoice  # of the batch per rank, with the ranks' plans
    plan: Mapping[str, Any]  # plan of the first rank, as JSON
    budget_bytes: int | None  # on a card; None: no budget is set
    rollbacks: int  # determine the order of data and the draws
    kernels: frozenset[str]  # names of frugan's kernels in use
    over: str | None = None  # name of the preliminary training that is over; None: none is


@dataclass(frozen=True)
class _Start:
    """State and plan that training starts or continues from on this rank."""

    # state, plan, planner: of this rank; all have the first one's state in the end
    state: TrainingState
    plan: Plan
    planner: TrainingPlanner
    # JSON state of the checkpoint; empty: there is none, or this is not the first rank
    saved: Mapping[str, Any]
    decision: _Decision  # by the first rank


def begin(run: TrainRun, recovery: Recovery = NO_RECOVERY) -> Loop:
    """Set up the training loop: load its state, report the choices and log the start. Every rank calls it.

    Args:
        recovery: rollbacks of the run in this process so far.

    Raises:
        BadInput: the checkpoint is of another recipe, or damaged, or the weights to start from cannot be used; or this
            rank cannot do what the first one does.
    """
    recipe, training, ranks = run.recipe, run.recipe.training, run.ranks
    start = _begin_first_rank(run, recovery) if run.is_first else None
    decision = ranks.broadcast(None if start is None else start.decision)
    if start is None:
        assert decision is not None  # the first rank has sent it
        start = _begin_other_rank(run, decision)
    ranks.broadcast_state(start.state)
    state, plan = start.state, start.plan
    shares = replace(start.decision.shares, plans=ranks.gather(plan.as_json()))

    losses = watch(run, state.device)
    card = watched_card(run, state.device)
    look_for_second_cards(run, state.device, card)
    if run.is_first:
        _log_start(run, state)

    kept = _kept(run, start, shares)
    opening = Opening(run, start.saved, kept)
    length = run.training.course.length
    kept_time = keep_time(run, state.step, start.saved, kept) if run.is_first else None
    loop = Loop(
        state=state,
        plan=plan,
        stages=stages_of(
            run,
            losses,
            opening.look,
            seed_after(training.seed, start.decision.rollbacks),
            start.planner.hold_to_budget,
        ),
        next_plan=start.planner.next,
        duration=training.duration,
        batch=training.batch,
        keep=recipe.saving.keep_checkpoints,
        backup_limits=_backup_limits(recipe.saving),
        run=run.folder,
        log=run.log,
        steps=StepLog(
            run.log,
            run.folder.checkpoints,
            state.device,
            training.duration,
            run.command,
            DivergenceWatch.of(start.saved, state.step),
            card=card,
            length=length,
            kept_time=kept_time,
        ),
        metadata=weights_metadata(run.recipe_now, run.class_names),
        kept=kept,
        requests=run.requests,
        continue_when_full=recipe.saving.when_full == "go-on",
        seconds=float(start.saved.get("seconds", 0.0)),
        images=int(start.saved.get("images", state.step * training.batch)),
        ranks=ranks,
        stop_at=run.stop_at,
        length=length,
        kept_time=kept_time,
        on_new_length=partial(report_new_length, run),
    )
    if start.decision.over is not None:
        _begin_anew(run, loop, start.decision.over)
    return loop


def _backup_limits(saving: SavingSettings) -> BackupLimits:
    size = saving.backups_size
    return BackupLimits(saving.keep_backups, None if size is None else parse_size(size))


def _begin_anew(run: TrainRun, loop: Loop, over: str) -> None:
    """Write the checkpoint of step 0, and leave what came of the preliminary training behind."""
    if run.is_first:  # left by a process that was killed right here
        shutil.rmtree(run.folder.checkpoints / checkpoint_name(0), ignore_errors=True)
    run.ranks.barrier()
    loop.save(run.folder.checkpoints)
    if run.is_first:
        run.choose(f"what came of the {over} is kept in {run.folder.leave_behind(over)}")


def _kept(run: TrainRun, start: _Start, shares: ShareChoice) -> dict[str, Any]:
    """Return the entries that every checkpoint's JSON state contains."""
    rollbacks, anew = start.decision.rollbacks, start.decision.over is not None
    return {
        "data": {
            name: (replace(data, first_digest=data.digest) if anew else data).as_json()
            for name, data in run.data.items()
        },
        BATCH: run.recipe.training.batch,
        "device": start.state.device.type,
        "card": card_identity(start.planner.device),
        "memory_budget_bytes": start.planner.asked_bytes,
        "ranks": run.ranks.size,
        **({ROLLBACKS: rollbacks} if rollbacks else {}),
        **shares.kept(run.ranks),
    }


def _begin_first_rank(run: TrainRun, recovery: Recovery) -> _Start:
    """Set up the first rank, which decides for all of them."""
    recipe = run.recipe

    resumed = Resumed.of(run)
    saved: Mapping[str, Any] = {} if resumed is None else resumed.saved

    # Choose device, shares and plan, and load networks and state.
    device, why = use_device(run.options.device)
    run.choose(f"device: {device} ({why})")
    if line := misspelt_cards():
        run.choose(line)
    batch, group = recipe.training.batch, recipe.training.normalisation_batch or 1
    shares = ShareChoice.of(run.options.shares, batch, group, run.ranks, saved, run.choose)
    run.ranks.set_shares(shares.samples)
    with explain_out_of_memory(device, "training was set up"):
        state, plan, planner, kernels = _create(run, device, resumed, recovery, shares)

    # Load other starting weights, or report the checkpoint, which is loaded already.
    if resumed is not None:
        resumed.tell(run)
    elif run.start is not None:
        start_from(run.start, recipe, state, run.class_names, run.choose)
    shares.forget_plans_unless_same(plan)
    rollbacks = max(recovery.rollbacks, rollbacks_before(saved))
    over = None if resumed is None or resumed.over is None else resumed.over[0]
    decision = _Decision(shares, plan.as_json(), planner.asked_bytes, rollbacks, kernels, over)
    return _Start(state, plan, planner, saved, decision)


def _create(
    run: TrainRun,
    device: torch.device,
    resumed: Resumed | None,
    recovery: Recovery,
    shares: ShareChoice,
) -> tuple[TrainingState, Plan, TrainingPlanner, frozenset[str]]:
    """Choose precision, plan and kernels, and load the state onto the device, from a checkpoint if there is one."""
    training, saved = run.training, {} if resumed is None else resumed.saved
    planner = TrainingPlanner(run, device, precision_of(run, device, saved, recovery.precision))
    group = training.normalisation_batch or 1
    for line in check_ranks(training.phases, training.batch, group, run.ranks.size, shares.samples):
        run.choose(line)
    plan, report = planner.first(saved if saved and shares.matches_checkpoint(saved) else None)
    kernels = kernels_for(run.recipe, training, device, run.choose)

    def load(by: Plan) -> tuple[TrainingState, list[str]]:
        state = replace(training, ops=ops_of(kernels)).state(by, device, run.ranks)
        return state, [] if resumed is None else resumed.restore(state)

    (state, lines), loaded_by = planner.load(load, plan)
    in_force = loaded_by if report is None or loaded_by != plan else report
    run.folder.write_plan(in_force.as_json())
    for line in lines:
        run.choose(line)
    if blocks := run.recipe.training.fp32_blocks:
        run.choose(_fp32_line(blocks, loaded_by.precision.name))
    return state, loaded_by, planner, kernels


def _fp32_line(blocks: Sequence[str], precision: str) -> str:
    if precision == "fp32":
        return "training.fp32_blocks changes nothing: everything computes in fp32"
    return f"in fp32 while the rest computes in {precision}: {', '.join(blocks)} (training.fp32_blocks)"


def _begin_other_rank(run: TrainRun, decision: _Decision) -> _Start:
    """Set up any other rank: an empty state of the right shape, with its own plan where its share differs.

    Raises:
        BadInput: this rank's card cannot do what the first one's does.
        TrainingFailed: it has no room.
    """
    ranks, device, shares = run.ranks, torch.device(run.options.device), decision.shares
    ranks.set_shares(shares.samples)
    precision = first_rank_precision(run, device, decision.plan["precision"])
    planner = TrainingPlanner(run, device, precision)
    if decision.budget_bytes is not None:
        planner.cap(decision.budget_bytes)
    plan = Plan.from_json(decision.plan, precision)
    if shares.samples is not None:
        plan = planner.own_plan(plan, shares.plans[ranks.rank] if shares.plans else None)
    with explain_out_of_memory(device, "training was set up"):
        kernels = kernels_beside(decision.kernels, run.recipe, device, run.choose_here)
        training = replace(run.training, ops=ops_of(kernels))
        state, plan = planner.load(lambda by: training.state(by, device, ranks), plan)
    return _Start(state, plan, planner, {}, decision)


def _log_start(run: TrainRun, state: TrainingState) -> None:
    """Write the recipe that now applies, and log the `start` event."""
    recipe, preliminary = run.recipe_now.model_dump(mode="json"), run.recipe.preliminary
    run.folder.write_recipe(recipe)
    for line in preliminary.lines if preliminary is not None else ():
        run.choose(line)
    run.log.write(
        "start",
        step=state.step,
        frugan=__version__,
        torch=str(torch.__version__),
        machine=platform.platform(),
        device=str(state.device),
        data={name: {"digest": source.digest, "pictures": len(source)} for name, source in run.sources.items()},
        recipe=recipe,
        command=run.command,
        directory=os.getcwd(),
        parameters={
            f"{name}.{key}": parameter.numel()
            for name, network in state.networks.items()
            for key, parameter in network.named_parameters()
            if parameter.requires_grad
        },
        **({} if preliminary is None else {"preliminary": preliminary.name}),
        **init_of(run.start),
    )
