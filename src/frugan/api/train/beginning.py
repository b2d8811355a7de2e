"""How a training begins: networks, state, plan and shares on the device, from a checkpoint, other weights or afresh."""

import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import torch

from frugan.api.devices import card_identity, misspelt_cards, use_device
from frugan.api.networks import recipe_of, weights_metadata
from frugan.api.progress import Say
from frugan.api.setup import training_of
from frugan.api.train.init import refuse_untaught, start_from
from frugan.api.train.observers import LossHistory, collapse_watch, gradient_watch, spill_watch
from frugan.api.train.opening import Opening, stages_of
from frugan.api.train.plan_in_force import TrainingPlanner
from frugan.api.train.recovery import NOTHING_HAPPENED, ROLLBACKS, Recovery, rolled_back
from frugan.api.train.run import TrainRun
from frugan.data.run_data import other_pictures, read_run_data
from frugan.engine.checkpoint import NETWORKS_FILE, Checkpoint, newest_whole, restore, set_aside_newer
from frugan.engine.device import pin_arithmetic, ran_out_of_memory, release_memory, tf32_decision
from frugan.engine.loop import Loop
from frugan.engine.optimizers import named_parameters
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision, PrecisionName, continued_precision, resolve_precision
from frugan.engine.ranks.place import check_shares, parse_shares
from frugan.engine.ranks.ranks import Ranks, check_ranks
from frugan.engine.state import TrainingState
from frugan.engine.step_log import Soundness, StepLog
from frugan.engine.tensor_files import write_json
from frugan.errors import BadInput, TrainingFailed
from frugan.memory.cards import room_bytes
from frugan.recipe.overrides import Difference, differences
from frugan.recipe.recipe import Recipe
from frugan.wording import show_size

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
    try:
        return load(plan), plan
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        message = str(error)
    release_memory(planner.device)
    plan = planner.next_to_load(plan, message)
    with told_when_full(planner.device, "the networks and their state were loaded by the smaller plan as well"):
        return load(plan), plan


@contextmanager
def told_when_full(device: torch.device, what: str) -> Iterator[None]:
    """Say in a sentence that memory ran out while `what`.

    Raises:
        TrainingFailed: it did.
    """
    try:
        yield
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        raise TrainingFailed(
            f"memory ran out while {what} ({reason}){_left(device)}. Nothing is lost: close other programs that use "
            "the card and run the same command again, or choose a smaller recipe: `frugan plan` says which would fit"
        ) from None


def _left(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    try:
        return f"; there is room for {show_size(room_bytes(device))} on the card"
    except RuntimeError:  # too full to be asked
        return ""


SHARES = "shares"
"""What a checkpoint keeps of them."""


@dataclass
class ShareChoice:
    """The shares of a run's ranks."""

    samples: tuple[int, ...] | None = None  # of each rank; None: all alike
    plans: list[dict[str, Any]] = field(default_factory=list)  # of each rank, as JSON; empty: all have the first one's

    @classmethod
    def of(cls, words: str | None, recipe: Recipe, ranks: Ranks, saved: Mapping[str, Any], say: Say) -> "ShareChoice":
        """Choose.

        Args:
            words: as asked: "equal" or a number for each rank; None: as the run had it.
            saved: the JSON state of the checkpoint that is resumed.

        Raises:
            BadInput: what is asked for does not come out in whole groups.
        """
        batch, group = recipe.training.batch, recipe.training.normalisation_batch or 1
        asked = None if words is None else parse_shares(words, ranks.size)
        kept = saved.get(SHARES)
        if ranks.size == 1:
            if words is not None:
                say(f"--shares {words} is ignored: this process trains alone")
            return cls()
        if isinstance(asked, tuple):
            check_shares(asked, batch, group)
            samples = tuple(share * batch // sum(asked) for share in asked)
            say(f"shares: {_shown(samples)} samples, as asked for")
            same = kept is not None and kept["samples"] == list(samples) and kept["devices"] == list(ranks.devices)
            return cls(samples, kept["plans"] if kept is not None and same else [])
        if asked == "equal":
            return cls()
        if kept is not None and kept["devices"] == list(ranks.devices):
            say(f"shares: {_shown(kept['samples'])} samples, as the run had them here; override with --shares equal")
            return cls(tuple(kept["samples"]), kept["plans"])
        if kept is not None:
            say("shares: the run was on other cards or ranks, and its shares were for those")
        return cls()

    def led_by(self, plan: Plan) -> None:
        """Forget the plans where the first rank has made another one than it had: all others then do so too."""
        if self.plans and self.plans[0] != plan.as_json():
            self.plans = []

    def kept(self, ranks: Ranks) -> dict[str, Any]:
        """For checkpoints to keep."""
        if self.samples is None:
            return {}
        return {SHARES: {"samples": list(self.samples), "plans": self.plans, "devices": list(ranks.devices)}}


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


def _shown(samples: Sequence[int]) -> str:
    return ", ".join(map(str, samples))


Found = tuple[Checkpoint, dict[str, Any], list[str]]
"""A checkpoint to go on from, its JSON state, and what is wrong with newer ones."""


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
        "card": card_identity(start.planner.device),
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
    newest: Found | None,
    restarts: Collection[str],
    wanted: Precision | None,
    shares: ShareChoice,
) -> tuple[TrainingState, Plan, TrainingPlanner]:
    """Decide how to train on a device, and bring what is trained there, from a checkpoint if there is one."""
    recipe = run.recipe
    saved = None if newest is None else newest[1]
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
        return state, [] if newest is None else restore(newest[0], newest[1], state, restarts)

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


def _tell_resumed(run: TrainRun, resumed: Found, step: int, before: Recipe) -> None:
    checkpoint, saved, damage = resumed
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
