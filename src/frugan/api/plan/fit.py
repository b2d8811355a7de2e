"""Does a recipe fit a card, by which savings, and what do they cost."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from frugan.api.machine.devices import choose_device
from frugan.api.plan.fit_report import PlanReport, Rung
from frugan.api.plan.recipe_planner import (
    Planner,
    choose_card,
    planned_precision,
    shipped_predictions,
)
from frugan.api.plan.recipe_relatives import smaller_recipes
from frugan.api.progress import Say, quiet
from frugan.engine.compiled_phases import refused
from frugan.engine.plan import Plan, check_micro_batch
from frugan.engine.ranks.sums import BUCKET_BYTES
from frugan.engine.training import Training
from frugan.errors import BadInput
from frugan.families import family_code
from frugan.folders import Folders
from frugan.memory.budget import Budget
from frugan.memory.calibration import calibrate as measure_card
from frugan.memory.calibration import save_calibration
from frugan.memory.cards import Card
from frugan.memory.plan_space import Wishes
from frugan.memory.savers import savers_of
from frugan.memory.search import Choice, Search
from frugan.memory.sizes import MIB, show_size
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe

NEAREST_SECONDS = 3.0
"""For the nearest change of a recipe that does not fit: that it does not is what was asked."""
COMPILED = (
    "training.compile: memory and work are of each phase's joint graph (forward, penalties and backward in one, on "
    "tensors without data), fused by a model of torch's compiler; that itself took from 10 % less to 40 % more for "
    "phases of recipes that ship (docs/compile.md): leave a margin"
)
"""What a plan says of a compiled run."""
COMMUNICATION_BYTES = 300 * MIB
"""Guess for the buffers of NCCL's channels between cards of one machine."""


@dataclass(frozen=True)
class PlanOptions:
    """How to plan.

    Attributes:
        card: plan for a card of this name; None: the one here, or one that is not named. Several that train together:
            "gtx-1080x8".
        micro_batch: samples in one forward; None: chosen.
        use, avoid: savings that a plan must or must not use.
        gpus: cards that share the batch; None: as many as `card` names.
        link: between them, such as "8GB/s"; None: a guess.
        calibrate: measure the device here first.
        tell: is told how many steps were run without data so far.
        say: is given a line where what is asked for does not fit, before a change that would is looked for.
    """

    card: str | None = None
    micro_batch: int | None = None
    use: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    gpus: int | None = None
    link: str | None = None
    calibrate: bool = False
    tell: Callable[[int], None] = lambda _: None
    say: Say = quiet


def planner_of(recipe: str | Recipe, overrides: Sequence[str], options: PlanOptions) -> tuple[Planner, str]:
    """A planner for a recipe, and the recipe's name."""
    loaded = load_recipe(recipe, overrides) if isinstance(recipe, str) else recipe
    name = recipe if isinstance(recipe, str) else (loaded.about.summary or loaded.family)
    device, _ = choose_device()
    if options.calibrate and options.card is not None:
        raise BadInput(
            f"--calibrate measures this machine, --card {options.card} names another: leave out one of the two"
        )
    measured = measure_card(device) if options.calibrate else None
    if measured is not None:
        save_calibration(measured, Folders.from_environment().cache)
    card = choose_card(options.card, device)
    if measured is not None and device.type != "cuda":
        # memory is planned for a card that is not here, time for the processor that is
        card = replace(measured, context_bytes=card.context_bytes, workspace_bytes=card.workspace_bytes)
    planner = Planner(
        recipe=loaded,
        card=card,
        precision=planned_precision(loaded, card),
        wishes=Wishes(options.micro_batch, frozenset(options.use), frozenset(options.avoid)),
        gpus=options.gpus or 1,
        shipped=shipped_predictions(name),
        tell=options.tell,
    )
    if options.micro_batch is not None:
        check_micro_batch(options.micro_batch, planner.training.batch, loaded.training.normalisation_batch or 1)
    return planner, name


def report_of(
    planner: Planner, name: str, budget_bytes: int | None, *, nearest: bool = True, say: Say = quiet
) -> PlanReport:
    """Plan for a budget, or the whole ladder without one.

    Args:
        nearest: look for the change of the recipe that would fit, where no plan does.
        say: is given a line before that.

    Raises:
        BadInput: the budget is below the parameters themselves, or no plan is as wished.
    """
    with _told_when_refused(planner):
        return _report_of(planner, name, budget_bytes, nearest=nearest, say=say)


@contextmanager
def _told_when_refused(planner: Planner) -> Iterator[None]:
    """Say what a family of another package does that no plan can be made of.

    Raises:
        BadInput: it does.
    """
    try:
        yield
    except RuntimeError as error:
        if family_code(planner.recipe.kind) is None:
            raise
        raise BadInput(f"family {planner.recipe.family}: its step cannot be planned: {error}") from error


def _report_of(planner: Planner, name: str, budget_bytes: int | None, *, nearest: bool, say: Say) -> PlanReport:
    search, card = planner.search, planner.card
    between = 2 * BUCKET_BYTES + COMMUNICATION_BYTES if planner.gpus > 1 else 0  # one is made as the last one goes
    budget = None
    if budget_bytes is not None:
        budget = Budget(budget_bytes - between, card.context_bytes, card.workspace_bytes)
        budget.check(sum(search.space.fp32_bytes.values()))
    ladder = search.ladder() if budget is None else []
    found = ladder[0] if budget is None else search.within(budget.step_bytes)
    choice = found or search.least()
    if found is not None and (started := _as_cuda_graphs(planner, choice, budget)) is not None:
        choice = started
    prediction = choice.prediction
    categories = {str(k): v for k, v in prediction.categories.items()}
    categories["allocator slack"] = prediction.reserved_bytes - sum(prediction.categories.values())
    categories["CUDA context"] = card.context_bytes
    categories["library workspaces"] = card.workspace_bytes
    if between:
        categories["gradient buckets"] = 2 * BUCKET_BYTES
        categories["communication"] = COMMUNICATION_BYTES
    fastest_seconds = search.estimates.fastest_seconds
    rungs = [_rung(search, each, card, between, fastest_seconds) for each in [choice, *ladder[1:]]]
    change = None
    if found is None and budget is not None and budget_bytes is not None and nearest:
        peak, asked = show_size(rungs[0].peak_bytes), show_size(budget_bytes)
        say(
            f"does NOT fit {asked}: it takes {peak}; looking for the smallest change that would fit, for "
            f"{NEAREST_SECONDS:g} s"
        )
        change = _nearest_change(planner, budget)
    recipe = planner.recipe
    several = len(search.space.training.distinct_stages) > 1
    return PlanReport(
        recipe=name,
        fits=found is not None,
        budget_bytes=budget_bytes,
        rung=rungs[0],
        choice=choice,
        categories=categories,
        by_phase=prediction.by_phase,
        place=prediction.place + (f", {prediction.stage}" if several else ""),
        precision=planner.precision.name,
        batch=recipe.training.batch,
        share=search.space.training.batch,
        normalisation_batch=recipe.training.normalisation_batch,
        card=card,
        decisions=tuple(_decisions(planner, choice, rungs[0], budget_bytes, found is not None, between)),
        shows_given=recipe.shows_given,
        ladder=tuple(rungs) if ladder else (),
        nearest_change=change,
        duration_seconds=duration_seconds(recipe, choice.whole_seconds),
    )


def _rung(search: Search, choice: Choice, card: Card, between_bytes: int, fastest_seconds: float) -> Rung:
    batch = search.space.training.batch
    return Rung(
        micro_batch=choice.plan.micro_batch,
        accumulation=-(-batch // choice.plan.micro_batch),
        savers=savers_of(choice.plan, batch),
        peak_bytes=choice.prediction.reserved_bytes + card.context_bytes + card.workspace_bytes + between_bytes,
        host_bytes=choice.prediction.host_bytes,
        extra_compute=max(0.0, choice.work.macs / search.estimates.plain.work.macs - 1),
        extra_time=max(0.0, choice.seconds / fastest_seconds - 1),
        step_seconds=card.seconds(choice.work, choice.plan.precision),
    )


def _decisions(
    planner: Planner, choice: Choice, rung: Rung, budget_bytes: int | None, fits: bool, between_bytes: int
) -> Iterator[str]:
    """One line for each choice: what, why, how to override."""
    card, training = planner.card, planner.training
    if budget_bytes is not None and card.memory_bytes is not None and budget_bytes > card.memory_bytes:
        yield f"memory: {show_size(budget_bytes)} as asked, although {card.name} has {show_size(card.memory_bytes)}"
    if budget_bytes == card.memory_bytes is not None:
        yield f"memory: all of {card.name}; if it also drives your desktop, give less with --memory"
    other = "fp16" if planner.precision.name == "fp32" else "fp32"
    yield f"precision: {planner.precision.name} ({planner.precision.reason}); override with training.precision={other}"
    floor = f"never less than a normalisation group, {training.group}" if training.group > 1 else "any size will do"
    yield (
        f"micro-batch: {rung.micro_batch} at a time, {forwards(rung.accumulation)} for {training.batch} ({floor}); "
        "override with --micro-batch"
    )
    yield "loss terms: one backward pass after the other where they are independent; saves activations, costs nothing"
    for saver in rung.savers:
        if saver in planner.wishes.use:
            yield f"{saver}: asked for"
        elif saver != "micro-batch":
            yield f"{saver}: {_why(saver, fits)}"
    if rung.host_bytes:
        yield (
            f"host memory: {show_size(rung.host_bytes)} for what this plan keeps there, most of it pinned; pictures "
            "and the program itself come on top"
        )
    if fits and not {"recompute", "keep-products"} & {*rung.savers}:
        yield "recompute: not needed, it fits without; switch it on with --use recompute"
    if planner.wishes.avoid:
        yield f"ruled out: {', '.join(sorted(planner.wishes.avoid))}"
    yield (
        "cuDNN autotuning: off, because how much memory it takes cannot be predicted (in one published training, 17.7 "
        "GB in the first steps instead of 10.9); with memory to spare, set torch.backends.cudnn.benchmark = True "
        "before frugan.train in Python"
    )
    yield from _compiled(training, choice.plan)
    if between_bytes:
        yield (
            f"{planner.gpus} cards: {show_size(between_bytes)} on each for summing gradients and for communication, a "
            f"guess; to train: torchrun --nproc-per-node={planner.gpus} -m frugan train ... (docs/cluster.md)"
        )
    kind = "guesses; `frugan plan --calibrate` on the card measures them"
    if card.source == "measured":
        processor = "guesses: this machine's CPU was measured for its speed, and has no CUDA"
        kind = "measured on it" if card.capability is not None else processor
    taken = f"{show_size(card.context_bytes)} for CUDA's context, {show_size(card.workspace_bytes)} for its libraries"
    yield f"card: {card.name}; {taken}: {kind}"
    if card.figures_of is not None:
        yield f"speed: guessed from what is published of the {card.figures_of}"


def _compiled(training: Training, plan: Plan) -> Iterator[str]:
    """How compiled phases are priced, which are not, and how they are started."""
    if not training.compiled:
        return
    yield COMPILED
    reasons = {phase.name: refused(phase, plan, shared=training.in_parts) for phase in training.phases}
    for reason in dict.fromkeys(reason for reason in reasons.values() if reason is not None):
        names = ", ".join(name for name, found in reasons.items() if found == reason)
        yield f"phases {names}: priced without compiling: {reason}"
    if plan.cuda_graphs:
        yield (
            "CUDA graphs: starting the compiled step's kernels one by one takes the host longer than the card works at "
            "them; a graph keeps its memory, which is counted; on no card has this run so far"
        )


def _as_cuda_graphs(planner: Planner, choice: Choice, budget: Budget | None) -> Choice | None:
    """A plan whose compiled phases are started as CUDA graphs; None: that does not pay, or does not fit."""
    training, plan = planner.training, choice.plan
    compiles = [refused(phase, plan, shared=training.in_parts) is None for phase in training.phases]
    whole = training.compiled and all(compiles)
    if not (whole and planner.target == "cuda" and planner.card.waits_for_launches(choice.work, plan.precision)):
        return None
    found = planner.search.run(replace(plan, cuda_graphs=True))
    return found if budget is None or found.prediction.reserved_bytes <= budget.step_bytes else None


def forwards(count: int) -> str:
    """How many, for people."""
    return "1 forward" if count == 1 else f"{count} forwards"


def _why(saver: str, fits: bool) -> str:
    if not fits:
        return "part of the smallest plan, which is still too large"
    return f"needed to fit, and the fastest way to; avoid it with --avoid {saver}"


def _nearest_change(planner: Planner, budget: Budget) -> tuple[str, ...] | None:
    """The smallest change of the recipe with which it would fit, tried in the order of what it costs the result.

    Nothing is begun that would not be done within NEAREST_SECONDS, by what those before took; the first is.
    """
    stage = planner.search.estimates.heaviest_stage
    begun = time.perf_counter()
    longest_seconds = 0.0
    for words, recipe in smaller_recipes(planner.recipe, planner.precision.name):
        before = time.perf_counter()
        if longest_seconds and before - begun + longest_seconds > NEAREST_SECONDS:
            return None
        same = recipe.training.precision == planner.recipe.training.precision
        precision = planner.precision if same else planned_precision(recipe, planner.card)
        other = replace(planner, recipe=recipe, precision=precision)
        fits = other.search.least_bytes(stage) <= budget.step_bytes
        planner.store.learn(other.store)
        longest_seconds = max(longest_seconds, time.perf_counter() - before)
        if fits:
            return words
    return None


def duration_seconds(recipe: Recipe, step_seconds: float) -> float | None:
    """Of a whole training, or its own where it is given as a time; None: it has no end."""
    steps = recipe.training.duration.known_steps(recipe.training.batch)
    seconds = recipe.training.duration.amount if steps is None else steps * step_seconds
    return seconds if math.isfinite(seconds) else None
