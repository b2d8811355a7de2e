"""Finds plans of a recipe for a card, and reports what they take."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from frugan.accelerator.precision import Precision
from frugan.engine.plan import Plan
from frugan.engine.run.training import Training
from frugan.errors import BadInput
from frugan.families import family_code
from frugan.planning.candidate import PlanCandidate
from frugan.planning.links import bytes_between
from frugan.planning.plan_decisions import decisions, refusal
from frugan.planning.plan_report import PlanReport
from frugan.planning.plan_space import PlanConstraints, PlanSpace
from frugan.planning.prediction import Target
from frugan.planning.predictions import Predictions
from frugan.planning.recipe_predictions import made_for_others, predictions_of
from frugan.planning.search import Search
from frugan.progress import Say, quiet
from frugan.recipe.recipe import Recipe
from frugan.recipe.relatives import smaller_recipes
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory.cards import DESKTOP_BYTES, PUBLISHED, Budget, Card

NEAREST_SECONDS = 3.0
"""Limit for finding the smallest change that would make a recipe fit; short, as it was only asked whether it does."""


@dataclass(frozen=True)
class Planner:
    """Finds plans for a recipe on a card. Used in a `with`, it keeps what it has found out for the next time."""

    recipe: Recipe  # what is trained
    card: Card  # what on
    precision: Precision  # of the working weights, decided for the card
    target: Target = "card"  # what is planned for, wherever the planning is done
    constraints: PlanConstraints = field(default_factory=PlanConstraints)  # what is asked of plans
    name: str = ""  # of the recipe, for people; finds the predictions that ship
    gpus: int = 1  # cards that share the batch
    # samples of a batch that this card sees; None: the most that any sees where they share it as
    # equally as groups allow
    share: int | None = None
    in_parts: bool = False  # the recipe's normalisation groups are parts of groups that cards share
    tell: Callable[[int], None] = quiet  # is told how many steps were run without data so far
    known: Predictions | None = None  # predictions for the same recipe and share; None: those in files

    def constrained_by(self, constraints: PlanConstraints) -> Self:
        """Return a planner with other constraints; what is known of plans stays."""
        return replace(self, constraints=constraints, known=self.store)

    @cached_property
    def search(self) -> Search:
        """The search among all plans.

        Raises:
            BadInput: there are more cards than normalisation groups in a batch.
        """
        space = PlanSpace(self.training, self.precision, self.constraints, on_card=self.target == "card")
        return Search(space, self.card, self.store)

    @cached_property
    def training(self) -> Training:
        """Training as this card has it: its share of the batch."""
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
    def store(self) -> Predictions:
        """Predictions that ship, those made here before, and new ones."""
        if self.known is not None:
            return self.known
        return predictions_of(self.recipe, self.training, self.name, self.target, self.tell)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.remember()

    def report(
        self, budget_bytes: int | None, *, nearest_seconds: float = NEAREST_SECONDS, say: Say = quiet
    ) -> PlanReport:
        """Plan for a budget, or the whole ladder without one.

        Args:
            nearest_seconds: for which the change of the recipe that would fit is looked for, where no plan does; 0:
                nothing is asked but the plan.
            say: is given a line before that.

        Raises:
            BadInput: the budget is below the parameters themselves, no plan is as wished, or a family of another
                package does what no plan can be made of.
        """
        with self._family_errors():
            search, budget = self.search, self._budget(budget_bytes)
            ladder = search.ladder() if budget is None else []
            fitting = ladder[0] if budget is None else search.within(budget.step_bytes)
            chosen = fitting or search.least()
            report = self._report(chosen, ladder, budget_bytes, fits=fitting is not None)
            if fitting is not None and budget is not None and nearest_seconds and self._is_whole(budget_bytes):
                report = self._beside_desktop(report, budget)
            report = replace(report, decisions=tuple(self._decisions(report)))
            if fitting is None and budget is not None and nearest_seconds:
                say(f"{refusal(report)}; looking for the smallest change that would fit, for {nearest_seconds:g} s")
                report = replace(report, nearest_change=self._nearest_change(budget, nearest_seconds))
        return report

    @contextmanager
    def _family_errors(self) -> Iterator[None]:
        """Refuse a family of another package whose step cannot be planned.

        Raises:
            BadInput: torch refused its step.
        """
        try:
            yield
        except RuntimeError as error:
            if family_code(self.recipe.kind) is None:
                raise
            raise BadInput(f"family {self.recipe.family}: its step cannot be planned: {error}") from error

    def _report(
        self, chosen: PlanCandidate, ladder: Sequence[PlanCandidate], budget_bytes: int | None, *, fits: bool
    ) -> PlanReport:
        """Return the report of a plan, without what is said of it."""
        training, prediction = self.recipe.training, chosen.prediction
        stage = f", {prediction.stage}" if len(self.training.distinct_stages) > 1 else ""
        return PlanReport(
            recipe=self.name,
            fits=fits,
            budget_bytes=budget_bytes,
            chosen=chosen,
            categories=self._categories(chosen),
            by_phase=prediction.by_phase,
            place=prediction.place + stage,
            precision=self.precision.name,
            batch=training.batch,
            share=self.training.batch,
            normalisation_batch=training.normalisation_batch,
            card=self.card,
            decisions=(),
            shows_given=self.recipe.shows_given,
            ladder=tuple(ladder),
            duration_seconds=training.duration.seconds(training.batch, chosen.whole_seconds),
        )

    def _decisions(self, report: PlanReport) -> Iterator[str]:
        """Yield a line for each choice."""
        search = self.search
        is_fastest = report.fits and report.chosen.seconds <= search.estimates.fastest_first[0].seconds
        yield from decisions(
            report,
            self.training,
            self.precision,
            self.constraints,
            is_fastest=is_fastest,
            blocks=search.space.blocks,
        )
        if self.store.ran and (line := made_for_others(self.name)):
            yield line

    def _is_whole(self, budget_bytes: int | None) -> bool:
        """Whether a budget is all that is left of a named card which may also draw a desktop."""
        published = PUBLISHED.get(self.card.name)
        return published is not None and published.draws and budget_bytes == self.card.memory_bytes

    def _beside_desktop(self, report: PlanReport, budget: Budget) -> PlanReport:
        """Add the plan for what a desktop leaves of the card."""
        chosen = self.search.within(budget.step_bytes - DESKTOP_BYTES)
        return replace(report, desktop_budget_bytes=budget.total_bytes - DESKTOP_BYTES, desktop_chosen=chosen)

    def _budget(self, budget_bytes: int | None) -> Budget | None:
        """Return what a step may take of a budget.

        Raises:
            BadInput: it is below the parameters themselves.
        """
        if budget_bytes is None:
            return None
        between_bytes = sum(bytes_between(self.gpus).values())
        budget = Budget(budget_bytes - between_bytes, self.card.context_bytes, self.card.workspace_bytes)
        budget.check(sum(self.search.space.fp32_bytes.values()))
        return budget

    def _categories(self, chosen: PlanCandidate) -> dict[str, int]:
        """Return bytes on the card at the peak, by what they are for."""
        prediction, card = chosen.prediction, self.card
        categories = {str(category): size for category, size in prediction.categories.items()}
        categories["allocator slack"] = prediction.reserved_bytes - sum(prediction.categories.values())
        categories["CUDA context"] = card.context_bytes
        categories["library workspaces"] = card.workspace_bytes
        return categories | bytes_between(self.gpus)

    def _nearest_change(self, budget: Budget, most_seconds: float) -> tuple[str, ...] | None:
        """The smallest change of the recipe with which it would fit, tried in the order of what it costs the result.

        The first is always tried; another is begun only if, by the slowest so far, it will be done in time.
        """
        stage = self.search.estimates.heaviest_stage
        begun = time.perf_counter()
        longest_seconds = 0.0
        for words, recipe in smaller_recipes(self.recipe, self.precision.name):
            before = time.perf_counter()
            if longest_seconds and before - begun + longest_seconds > most_seconds:
                return None
            same = recipe.training.precision == self.recipe.training.precision
            wanted, tf32 = recipe.training.precision, recipe.training.tf32
            precision = self.precision if same else self.card.precision(wanted, tf32=tf32)
            other = replace(self, recipe=recipe, precision=precision, known=None)
            fits = other.search.thriftiest_bytes(stage) <= budget.step_bytes
            self.store.learn(other.store)
            longest_seconds = max(longest_seconds, time.perf_counter() - before)
            if fits:
                return words
        return None

    def smaller(self, plan: Plan, most_share: float, room_bytes: int | None) -> tuple[PlanCandidate | None, int]:
        """The fastest plan that reserves less than another one; None: there is none; and what that one reserves.

        Args:
            most_share: of what the other plan reserves.
            room_bytes: most that it may reserve besides; None: it is not known.
        """
        reserved_bytes = self.search.run(plan).prediction.reserved_bytes
        most_bytes = int(reserved_bytes * most_share)
        return self.search.within(most_bytes if room_bytes is None else min(most_bytes, room_bytes)), reserved_bytes
