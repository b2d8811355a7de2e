"""Finds the plan of least predicted time that fits a budget.

A step without data takes seconds, so only a few plans are run: some to estimate all others from, then those that the
estimates promise, from the fastest on, until one fits. What is run does not depend on the budget, and a plan is taken
only for what it was predicted to reserve when it was run: so a larger budget never gets a slower plan.
"""

from dataclasses import dataclass
from functools import cached_property

from frugan.engine.plan import Plan
from frugan.engine.training import Stage
from frugan.memory.cards import Card
from frugan.memory.estimates import Estimate, Estimates, Predict
from frugan.memory.plan_space import PlanSpace, keeping_of
from frugan.memory.prediction import Prediction
from frugan.memory.work import Work

HOPE = 1.05
"""Plans are tried up to this multiple of the budget by estimate: an estimate may be too high."""
LOWER = 0.93
"""A rung of the ladder takes at most this share of the one before it."""


@dataclass(frozen=True)
class Choice:
    """A plan that was run.

    Attributes:
        plan: it.
        prediction: what it takes: the most over all stages.
        work: of an average step of the stage that takes most memory.
        seconds: predicted for that, as plans are compared: from the same few runs for all of them.
        whole_seconds: predicted for an average step of the whole training.
    """

    plan: Plan
    prediction: Prediction
    work: Work
    seconds: float
    whole_seconds: float


@dataclass(frozen=True)
class Search:
    """Chooses among all plans of a training.

    Attributes:
        space: the plans.
        card: where they would run.
        predict: runs a plan without data.
    """

    space: PlanSpace
    card: Card
    predict: Predict

    @cached_property
    def estimates(self) -> Estimates:
        """What each plan may take."""
        return Estimates(self.space, self.card, self.predict)

    def run(self, plan: Plan, most_bytes: int | None = None) -> Choice:
        """Run a plan without data over all stages, from the one that takes most on.

        Args:
            most_bytes: no further stage is run once one reserves more.
        """
        heaviest_stage = self.estimates.heaviest_stage
        stages = sorted(self.space.training.distinct_stages, key=lambda stage: stage is not heaviest_stage)
        if most_bytes is None:
            self.predict.ahead([(plan, stage, False) for stage in stages])
        found = {stages[0].name: self.predict(plan, stages[0], rough=False)}
        heaviest = worst = found[stages[0].name]
        for stage in stages[1:]:
            if most_bytes is not None and worst.reserved_bytes > most_bytes:
                break
            found[stage.name] = self.predict(plan, stage, rough=False)
            worst = worst.worst(found[stage.name])
        seconds = {name: self.card.seconds(each.work, plan.precision) for name, each in found.items()}
        whole = sum(stage.share * seconds[stage.name] for stage in stages if stage.name in seconds)
        return Choice(plan, worst, heaviest.work, self.estimates.of(plan).seconds, whole)

    def within(self, budget_bytes: int) -> Choice | None:
        """The fastest plan whose allocator reserves no more than a budget; None: there is none."""
        too_large: list[Plan] = []
        hopeful = [each for each in self.estimates.fastest_first if each.reserved_bytes <= HOPE * budget_bytes]
        for at, each in enumerate(hopeful):
            if any(_takes_more(each.plan, other) for other in too_large):
                continue
            self.predict.ahead([(other.plan, self.estimates.heaviest_stage, False) for other in hopeful[at : at + 2]])
            choice = self.run(each.plan, budget_bytes)
            if choice.prediction.reserved_bytes <= budget_bytes:
                return choice
            too_large.append(each.plan)
        least = self.least()
        return least if least.prediction.reserved_bytes <= budget_bytes else None

    def least(self) -> Choice:
        """The plan that promises to take least."""
        found = min(self.estimates.fastest_first, key=lambda each: (each.reserved_bytes, each.seconds))
        return self.run(found.plan)

    def least_bytes(self, like: Stage) -> int:
        """About what the smallest plan reserves in the stage that is called like another: every saving at once."""
        stages = self.space.training.distinct_stages
        stage = next((each for each in stages if each.name == like.name), stages[-1])
        return self.predict(self.space.thriftiest(), stage, rough=False).reserved_bytes

    def ladder(self) -> list[Choice]:
        """Plans from the fastest to the smallest: each takes less than any faster one, by estimate; those are run."""
        rungs: list[Estimate] = []
        for each in self.estimates.fastest_first:
            if not rungs or each.reserved_bytes < LOWER * rungs[-1].reserved_bytes:
                rungs.append(each)
        chosen = [self.run(each.plan) for each in rungs]
        falling: list[Choice] = []
        for choice in sorted(chosen, key=lambda c: c.seconds):
            if not falling or choice.prediction.reserved_bytes < falling[-1].prediction.reserved_bytes:
                falling.append(choice)
        return falling


def _takes_more(plan: Plan, other: Plan) -> bool:
    """Whether a plan is another one with more samples at once, or with more left on the card."""
    return (
        plan.micro_batch >= other.micro_batch
        and keeping_of(plan) == keeping_of(other)
        and bool(plan.in_slices) == bool(other.in_slices)
        and plan.ema_on_host <= other.ema_on_host
        and plan.optimizer_on_host <= other.optimizer_on_host
        and plan.shard_optimizer <= other.shard_optimizer
    )
