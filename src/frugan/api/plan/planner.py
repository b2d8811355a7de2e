"""Finds plans of a recipe for a card, and says what they take and why they were chosen."""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import BaseModel

from frugan.api.devices import choose_device
from frugan.api.plan.prediction_helper import PredictionHelper
from frugan.api.plan.relatives import smaller_recipes
from frugan.api.plan.report import COMPILED, PlanReport, Rung, forwards
from frugan.api.progress import Say, quiet
from frugan.api.setup import training_of
from frugan.engine.accelerator.choice import accelerator_of
from frugan.engine.compiled_phases import refused
from frugan.engine.optimizer_shards import BUCKET_BYTES
from frugan.engine.plan import Plan, check_micro_batch
from frugan.engine.precision import DTYPES, Precision, card_precision
from frugan.engine.training import Training
from frugan.errors import BadInput
from frugan.families import family_code
from frugan.files import Folders
from frugan.memory.calibration import calibrate as measure_card
from frugan.memory.calibration import choose_card, save_calibration
from frugan.memory.cards import Budget, Card
from frugan.memory.plan_space import PlanSpace, Wishes, savers_of
from frugan.memory.prediction import PredictionStore, Target, prediction_version
from frugan.memory.search import Choice, Search
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.wording import MIB, show_size

# What people are told of a plan.


def decisions(
    report: PlanReport, training: Training, precision: Precision, wishes: Wishes, between_bytes: int
) -> Iterator[str]:
    """One line for each choice: what, why, how to override.

    Args:
        report: of the plan, without these lines.
        training: this card's share of it.
        precision: with the reason for it.
        wishes: what was asked of the plan.
        between_bytes: for summing gradients and for communication.
    """
    rung = report.rung
    yield from _about_budget(report.card, report.budget_bytes)
    other = "fp16" if precision.name == "fp32" else "fp32"
    yield f"precision: {precision.name} ({precision.reason}); override with training.precision={other}"
    floor = f"never less than a normalisation group, {training.group}" if training.group > 1 else "any size will do"
    yield (
        f"micro-batch: {rung.micro_batch} at a time, {forwards(rung.accumulation)} for {training.batch} ({floor}); "
        "override with --micro-batch"
    )
    yield "loss terms: one backward pass after the other where they are independent; saves activations, costs nothing"
    yield from _about_savings(wishes, rung, fits=report.fits)
    yield (
        "cuDNN autotuning: off, because how much memory it takes cannot be predicted (in one published training, 17.7 "
        "GB in the first steps instead of 10.9); with memory to spare, set torch.backends.cudnn.benchmark = True "
        "before frugan.train in Python"
    )
    yield from _compiled(training, report.choice.plan)
    if between_bytes:
        yield (
            f"{training.ranks} cards: {show_size(between_bytes)} on each for summing gradients and for "
            f"communication, a guess; to train: torchrun --nproc-per-node={training.ranks} -m frugan train ... "
            "(docs/cluster.md)"
        )
    yield from _about_card(report.card)


def _about_budget(card: Card, budget_bytes: int | None) -> Iterator[str]:
    if budget_bytes is not None and card.memory_bytes is not None and budget_bytes > card.memory_bytes:
        yield f"memory: {show_size(budget_bytes)} as asked, although {card.name} has {show_size(card.memory_bytes)}"
    if budget_bytes == card.memory_bytes is not None:
        yield f"memory: all of {card.name}; if it also drives your desktop, give less with --memory"


def _about_savings(wishes: Wishes, rung: Rung, *, fits: bool) -> Iterator[str]:
    for saver in rung.savers:
        if saver in wishes.use:
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
    if wishes.avoid:
        yield f"ruled out: {', '.join(sorted({*wishes.avoid}))}"


def _about_card(card: Card) -> Iterator[str]:
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
        names = ", ".join(name for name, why in reasons.items() if why == reason)
        yield f"phases {names}: priced without compiling: {reason}"
    if plan.cuda_graphs:
        yield (
            "CUDA graphs: starting the compiled step's kernels one by one takes the host longer than the card works at "
            "them; a graph keeps its memory, which is counted; on no card has this run so far"
        )


def _why(saver: str, fits: bool) -> str:
    if not fits:
        return "part of the smallest plan, which is still too large"
    return f"needed to fit, and the fastest way to; avoid it with --avoid {saver}"


# The planner.

SECONDS_PER_MODULE = 0.007
"""Of one run of a step without data: 0.006 to 0.008 over the recipes that ship, on one core of an AMD EPYC."""
NEAREST_SECONDS = 3.0
"""For the nearest change of a recipe that does not fit: that it does not is what was asked."""
COMMUNICATION_BYTES = 300 * MIB
"""Guess for the buffers of NCCL's channels between cards of one machine."""


@dataclass(frozen=True)
class PlanOptions:
    """How to plan."""

    # plan for a card of this name; None: the one here, or one that is not named. Several that train together:
    # "gtx-1080x8".
    card: str | None = None
    micro_batch: int | None = None  # samples in one forward; None: chosen
    use: Collection[str] = ()  # savings that a plan must use
    avoid: Collection[str] = ()  # savings that it must not
    gpus: int | None = None  # cards that share the batch; None: as many as `card` names
    link: str | None = None  # between them, such as "8GB/s"; None: a guess
    calibrate: bool = False  # measure the device here first
    tell: Callable[[int], None] = lambda _: None  # is told how many steps were run without data so far
    say: Say = quiet  # is given a line where what is asked for does not fit, before a change that would is looked for

    def __post_init__(self) -> None:
        """Refuse savings that are unknown or contradict each other.

        Raises:
            BadInput: they do.
        """
        _ = self.wishes

    @property
    def wishes(self) -> Wishes:
        """What is asked of plans."""
        return Wishes(self.micro_batch, self.use, self.avoid)


@dataclass(frozen=True)
class Planner:
    """Finds plans for a recipe on a card. Used in a `with`, it keeps what it has found out for the next time."""

    recipe: Recipe  # what is trained
    card: Card  # what on
    precision: Precision  # of the working weights, decided for the card
    target: Target = "cuda"  # "cuda" for any card, wherever the planning is done
    wishes: Wishes = field(default_factory=Wishes)  # what is asked of plans
    name: str = ""  # of the recipe, for people
    gpus: int = 1  # cards that share the batch
    # samples of a batch that this card sees; None: the most that any sees where they share it as
    # equally as groups allow
    share: int | None = None
    in_parts: bool = False  # the recipe's normalisation groups are parts of groups that cards share
    shipped: Path | None = None  # file of predictions that came with the package; None: there is none for this recipe
    tell: Callable[[int], None] = quiet  # is told how many steps were run without data so far
    known: PredictionStore | None = None  # predictions for the same recipe and share; None: those in files

    @classmethod
    def of(cls, recipe: str | Recipe, overrides: Sequence[str], options: PlanOptions) -> Self:
        """A planner for a recipe on one card, measured first if that is asked for.

        Raises:
            BadInput: unknown recipe or card, or what is asked for contradicts itself.
        """
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
        if measured is not None and not accelerator_of(device).is_card:
            # memory is planned for a card that is not here, time for the processor that is
            card = replace(measured, context_bytes=card.context_bytes, workspace_bytes=card.workspace_bytes)
        planner = cls(
            recipe=loaded,
            card=card,
            precision=planned_precision(loaded, card),
            wishes=options.wishes,
            name=name,
            gpus=options.gpus or 1,
            shipped=shipped_predictions(name),
            tell=options.tell,
        )
        if options.micro_batch is not None:
            check_micro_batch(options.micro_batch, planner.training.batch, loaded.training.normalisation_batch or 1)
        return planner

    def wishing(self, wishes: Wishes) -> Self:
        """The same with other wishes; what is known of plans stays."""
        return replace(self, wishes=wishes, known=self.store)

    @cached_property
    def search(self) -> Search:
        """All plans and what is known of them.

        Raises:
            BadInput: there are more cards than normalisation groups in a batch.
        """
        space = PlanSpace(self.training, self.precision, self.wishes, on_card=self.target == "cuda")
        return Search(space, self.card, self.store)

    @cached_property
    def training(self) -> Training:
        """What this card does of what is trained."""
        training = replace(training_of(self.recipe), in_parts=self.in_parts)
        groups = -(-training.batch // training.group)
        if self.gpus > groups:
            plural = "" if groups == 1 else "s"
            of = (
                f"{groups} normalisation group{plural} of {training.group}"
                if training.group > 1
                else f"{groups} samples"
            )
            raise BadInput(
                f"--gpus {self.gpus}: a batch of this recipe is {of}, at least one to each card; plan for at most "
                f"{groups}, or give the recipe a larger training.batch (it changes the result)"
            )
        most = min(-(-groups // self.gpus) * training.group, training.batch)
        return training.shared_by(self.gpus, most if self.share is None else self.share)

    @cached_property
    def store(self) -> PredictionStore:
        """Predictions: those that ship, those made here before, and new ones."""
        if self.known is not None:
            return self.known
        training = self.training
        files = (self.shipped, self.cache_file) if self.shipped else (self.cache_file,)
        about = subject(self.recipe) | {"gpus": self.gpus} | ({"in_parts": True} if self.in_parts else {})
        if training.batch * self.gpus != self.recipe.training.batch:
            about |= {"share": training.batch}
        helper = self._helper if (os.cpu_count() or 1) > 1 else None
        return PredictionStore(
            training, self.target, about, prediction_version(), files, self.tell, helper, self._expected_seconds
        )

    def _expected_seconds(self) -> float:
        """Of one run of a plan, by the number of modules."""
        built = self.recipe.kind.build(self.recipe.networks, "meta").values()
        return SECONDS_PER_MODULE * sum(1 for network in built for _ in network.modules())

    @cached_property
    def _helper(self) -> PredictionHelper:
        return PredictionHelper(self.recipe, self.gpus, self.training.batch, self.target, self.in_parts)

    @property
    def cache_file(self) -> Path:
        """Where this user's own predictions are kept."""
        digest = hashlib.sha256(json.dumps(subject(self.recipe), sort_keys=True).encode()).hexdigest()[:16]
        return Folders.from_environment().cache / "predictions" / f"{self.recipe.family}-{digest}.json"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remember()

    def close(self) -> None:
        """End the helping process."""
        self._helper.close()

    def remember(self) -> None:
        """Keep what was found out for the next time; a full disk or a read-only one is no reason to fail."""
        self.close()
        if self.store.ran:
            try:
                self.store.save(self.cache_file)
            except OSError:
                return

    def report(self, budget_bytes: int | None, *, nearest: bool = True, say: Say = quiet) -> PlanReport:
        """Plan for a budget, or the whole ladder without one.

        Args:
            nearest: look for the change of the recipe that would fit, where no plan does.
            say: is given a line before that.

        Raises:
            BadInput: the budget is below the parameters themselves, no plan is as wished, or a family of another
                package does what no plan can be made of.
        """
        try:
            return self._report(budget_bytes, nearest=nearest, say=say)
        except RuntimeError as error:
            if family_code(self.recipe.kind) is None:
                raise
            raise BadInput(f"family {self.recipe.family}: its step cannot be planned: {error}") from error

    def _report(self, budget_bytes: int | None, *, nearest: bool, say: Say) -> PlanReport:
        search, recipe = self.search, self.recipe
        budget = self._budget(budget_bytes)
        ladder = search.ladder() if budget is None else []
        fitting = ladder[0] if budget is None else search.within(budget.step_bytes)
        choice = fitting or search.least()
        if fitting is not None and (started := self._as_cuda_graphs(choice, budget)) is not None:
            choice = started
        fastest_seconds = search.estimates.fastest_seconds
        rungs = [self._rung(each, fastest_seconds) for each in [choice, *ladder[1:]]]
        change = None
        if fitting is None and budget is not None and budget_bytes is not None and nearest:
            peak, asked = show_size(rungs[0].peak_bytes), show_size(budget_bytes)
            say(
                f"does NOT fit {asked}: it takes {peak}; looking for the smallest change that would fit, for "
                f"{NEAREST_SECONDS:g} s"
            )
            change = self._nearest_change(budget)
        several = len(self.training.distinct_stages) > 1
        prediction = choice.prediction
        report = PlanReport(
            recipe=self.name,
            fits=fitting is not None,
            budget_bytes=budget_bytes,
            rung=rungs[0],
            choice=choice,
            categories=self._categories(choice),
            by_phase=prediction.by_phase,
            place=prediction.place + (f", {prediction.stage}" if several else ""),
            precision=self.precision.name,
            batch=recipe.training.batch,
            share=self.training.batch,
            normalisation_batch=recipe.training.normalisation_batch,
            card=self.card,
            decisions=(),
            shows_given=recipe.shows_given,
            ladder=tuple(rungs) if ladder else (),
            nearest_change=change,
            duration_seconds=duration_seconds(recipe, choice.whole_seconds),
        )
        lines = decisions(report, self.training, self.precision, self.wishes, self.between_bytes)
        return replace(report, decisions=tuple(lines))

    @property
    def between_bytes(self) -> int:
        """For summing gradients and for communication, where cards share the batch."""
        return 2 * BUCKET_BYTES + COMMUNICATION_BYTES if self.gpus > 1 else 0  # one is made as the last one goes

    def _budget(self, budget_bytes: int | None) -> Budget | None:
        """What a step may take of a budget.

        Raises:
            BadInput: it is below the parameters themselves.
        """
        if budget_bytes is None:
            return None
        budget = Budget(budget_bytes - self.between_bytes, self.card.context_bytes, self.card.workspace_bytes)
        budget.check(sum(self.search.space.fp32_bytes.values()))
        return budget

    def _categories(self, choice: Choice) -> dict[str, int]:
        """Bytes on the card at the peak, by what they are for."""
        prediction, card = choice.prediction, self.card
        categories = {str(k): v for k, v in prediction.categories.items()}
        categories["allocator slack"] = prediction.reserved_bytes - sum(prediction.categories.values())
        categories["CUDA context"] = card.context_bytes
        categories["library workspaces"] = card.workspace_bytes
        if self.between_bytes:
            categories["gradient buckets"] = 2 * BUCKET_BYTES
            categories["communication"] = COMMUNICATION_BYTES
        return categories

    def _rung(self, choice: Choice, fastest_seconds: float) -> Rung:
        batch, card = self.training.batch, self.card
        taken = choice.prediction.reserved_bytes + card.context_bytes + card.workspace_bytes + self.between_bytes
        return Rung(
            micro_batch=choice.plan.micro_batch,
            accumulation=-(-batch // choice.plan.micro_batch),
            savers=savers_of(choice.plan, batch),
            peak_bytes=taken,
            host_bytes=choice.prediction.host_bytes,
            extra_compute=max(0.0, choice.work.macs / self.search.estimates.plain.work.macs - 1),
            extra_time=max(0.0, choice.seconds / fastest_seconds - 1),
            step_seconds=card.seconds(choice.work, choice.plan.precision),
        )

    def _as_cuda_graphs(self, choice: Choice, budget: Budget | None) -> Choice | None:
        """A plan whose compiled phases are started as CUDA graphs; None: that does not pay, or does not fit."""
        training, plan = self.training, choice.plan
        compiles = [refused(phase, plan, shared=training.in_parts) is None for phase in training.phases]
        whole = training.compiled and all(compiles)
        if not (whole and self.target == "cuda" and self.card.waits_for_launches(choice.work, plan.precision)):
            return None
        graphed = self.search.run(replace(plan, cuda_graphs=True))
        return graphed if budget is None or graphed.prediction.reserved_bytes <= budget.step_bytes else None

    def _nearest_change(self, budget: Budget) -> tuple[str, ...] | None:
        """The smallest change of the recipe with which it would fit, tried in the order of what it costs the result.

        Nothing is begun that would not be done within NEAREST_SECONDS, by what those before took; the first is.
        """
        stage = self.search.estimates.heaviest_stage
        begun = time.perf_counter()
        longest_seconds = 0.0
        for words, recipe in smaller_recipes(self.recipe, self.precision.name):
            before = time.perf_counter()
            if longest_seconds and before - begun + longest_seconds > NEAREST_SECONDS:
                return None
            same = recipe.training.precision == self.recipe.training.precision
            precision = self.precision if same else planned_precision(recipe, self.card)
            other = replace(self, recipe=recipe, precision=precision, known=None)
            fits = other.search.least_bytes(stage) <= budget.step_bytes
            self.store.learn(other.store)
            longest_seconds = max(longest_seconds, time.perf_counter() - before)
            if fits:
                return words
        return None

    def smaller(self, plan: Plan, most_share: float, room_bytes: int | None) -> tuple[Choice | None, int]:
        """The fastest plan that reserves less than another one; None: there is none; and what that one reserves.

        Args:
            most_share: of what the other plan reserves.
            room_bytes: most that it may reserve besides; None: it is not known.
        """
        reserved_bytes = self.search.run(plan).prediction.reserved_bytes
        most_bytes = int(reserved_bytes * most_share)
        return self.search.within(most_bytes if room_bytes is None else min(most_bytes, room_bytes)), reserved_bytes


def duration_seconds(recipe: Recipe, step_seconds: float) -> float | None:
    """Of a whole training, or its own where it is given as a time; None: it has no end."""
    steps = recipe.training.duration.known_steps(recipe.training.batch)
    seconds = recipe.training.duration.amount if steps is None else steps * step_seconds
    return seconds if math.isfinite(seconds) else None


def subject(recipe: Recipe) -> dict[str, Any]:
    """The fields of a recipe that a step's memory and work depend on."""
    values = recipe.model_dump(mode="json", include={"family", "networks", "objective", "stages", "ema"})
    for section in ("networks", "objective", "ema"):
        for name in _added_and_at_default(getattr(recipe, section)):
            del values[section][name]
    optimizers = {name: type(o).__name__ for name, o in recipe.optimizer_settings().items()}
    batch = {"batch": recipe.training.batch, "normalisation_batch": recipe.training.normalisation_batch}
    code = family_code(recipe.kind)  # shipped families have a version that a person raises
    more = ({"compiled": True} if recipe.training.compile else {}) | ({"code": code} if code is not None else {})
    return values | {"optimizers": optimizers, "training": batch} | more


def _added_and_at_default(settings: BaseModel) -> Iterator[str]:
    """Fields that earlier versions did not have, and whose value leaves a step as it was then."""
    for name, setting in type(settings).model_fields.items():
        extra = setting.json_schema_extra
        if isinstance(extra, dict) and extra.get("added") and getattr(settings, name) == setting.default:
            yield name


def shipped_predictions(name: str) -> Path | None:
    """Predictions that came with the package for a built-in recipe; None if there are none."""
    file = resources.files("frugan") / "predictions" / f"{name}.json"
    return Path(str(file)) if file.is_file() else None


def planned_precision(recipe: Recipe, card: Card) -> Precision:
    """The precision that training would have on a card."""
    asked = recipe.training.precision
    if card.capability is not None:
        return card_precision(asked, card.name, card.capability)
    if asked == "auto":
        return Precision("bf16", torch.bfloat16, "assumed: compute capability 8.0 or newer; fp16 on 7.x takes as much")
    return Precision(asked, DTYPES[asked], "asked for")
