"""Finds the plan of least predicted time that fits a budget.

A step without data takes seconds, so only a few plans are run: some to estimate all others from, then those that the
estimates promise, from the fastest on, until one fits. What is run does not depend on the budget, and a plan is taken
only for what it was predicted to reserve when it was run: so a larger budget never gets a slower plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Protocol

from frugan.engine.compiled_phases import refused
from frugan.engine.plan import Plan
from frugan.engine.training import Stage
from frugan.errors import BadInput
from frugan.memory.cards import Card
from frugan.memory.plan_space import KEEPINGS, OFFLOADED, Keeping, PlanSpace, Wishes, keeping_of
from frugan.memory.prediction import Prediction
from frugan.memory.work import Work

STATIC = ("parameters", "working weights", "gradients", "optimizer", "averages")
"""What does not grow with the micro-batch."""


LEAST_OFFLOADED = 0.1
"""Share of the peak from which on sending what recomputed blocks are given to the host is worth a run."""


class Predict(Protocol):
    """Runs a plan without data; whoever gives it may remember."""

    def __call__(self, plan: Plan, stage: Stage, *, rough: bool) -> Prediction:
        """Its prediction for a stage.

        Raises:
            RuntimeError: torch refuses the plan.
        """

    def ahead(self, jobs: Sequence[tuple[Plan, Stage, bool]]) -> None:
        """Run (plan, stage, rough) that will be asked for, side by side if that can be."""


@dataclass(frozen=True)
class Estimate:
    """What a plan may take."""

    plan: Plan
    reserved_bytes: float  # by the allocator
    seconds: float  # of a step: what plans are compared by, whatever the budget


@dataclass(frozen=True)
class Estimates:
    """Estimates of all plans of a training on a card."""

    space: PlanSpace  # the plans
    card: Card  # where they would run
    predict: Predict  # runs a plan without data

    @cached_property
    def _all(self) -> PlanSpace:
        """The plans without wishes: estimates come from the same few whatever is asked for."""
        return replace(self.space, wishes=Wishes())

    @cached_property
    def fastest_seconds(self) -> float:
        """Of the fastest plan that there is, whatever the wishes: what others are compared with."""
        return min(each.seconds for each in map(self.of, self._known(self._all.every_plan())))

    def _known(self, plans: Iterable[Plan]) -> list[Plan]:
        """Those whose savings were run."""
        return [
            plan
            for plan in plans
            if keeping_of(plan) in self._by_keeping and (self._sliced is not None or not plan.in_slices)
        ]

    @cached_property
    def heaviest_stage(self) -> Stage:
        """The stage that takes most: estimates are made for it alone."""
        stages = self.space.training.distinct_stages
        if len(stages) == 1:
            return stages[0]
        plan = self._smallest
        self.predict.ahead([(plan, stage, True) for stage in stages])
        return max(stages, key=lambda stage: self.predict(plan, stage, rough=True).reserved_bytes)

    @cached_property
    def plain(self) -> Prediction:
        """What nothing saved takes, at the smallest micro-batch: two of them, in the stage that takes most."""
        self._run_ahead()
        return self.predict(self._smallest, self.heaviest_stage, rough=False)

    @cached_property
    def fastest_first(self) -> Sequence[Estimate]:
        """Of all plans that are wished for and that torch does not refuse; of equally fast ones the smallest first.

        Raises:
            BadInput: there is none.
        """
        plans = self._known(self.space.wished_plans())
        if not plans:
            raise BadInput("no plan can use all the memory savings that are asked for: leave some out")
        estimates = [self.of(plan) for plan in plans]
        return sorted(estimates, key=lambda each: (each.seconds, each.reserved_bytes))

    def of(self, plan: Plan) -> Estimate:
        """What a plan takes, by what those that were run take."""
        plain = self._plain_roughly
        like = self._by_keeping.get(keeping_of(plan)) or self._roughly(self._first(keeping_of(plan)))
        growth = plan.micro_batch / self._smallest.micro_batch
        static = sum(like.categories.get(name, 0) for name in STATIC)
        live = static + (like.live_bytes - static) * growth
        work = _times(self._work(plan.micro_batch), _ratio(like.work, plain.work))
        # of what is offloaded: all samples', whatever their split
        work = work + Work(host_bytes=like.work.host_bytes, beside_bytes=like.work.beside_bytes)
        slack = like.reserved_bytes / like.live_bytes
        if plan.in_slices and self._sliced is not None:
            live += min(0, self._sliced.live_bytes - plain.live_bytes)
            slack = min(slack, self._sliced.reserved_bytes / self._sliced.live_bytes)
            work = work + (self._sliced.work - plain.work) * (1 / growth)
        if plan.ema_on_host:
            averages = like.categories.get("averages", 0)
            live, work = live - averages, work + Work(bytes_moved=averages, beside_bytes=averages)
        statistics = float(like.categories.get("optimizer", 0))
        updates = max(phase.repeats for phase in self.heaviest_stage.phases)
        if plan.shard_optimizer:
            others = 1 - 1 / self.space.training.ranks
            work = work + Work(host_bytes=others * updates * sum(self.space.fp32_bytes.values()))
            live, statistics = live - others * statistics, statistics - others * statistics
        if plan.optimizer_on_host:
            # while some of it goes, some comes
            live, work = live - statistics, work + Work(host_bytes=statistics * updates)
        return Estimate(plan, live * slack, self.card.compared_seconds(work, plan.precision))

    def _work(self, micro_batch: int) -> Work:
        """Of a step with nothing saved: a part for each micro-batch, and one for each sample."""
        if self._per_micro_batch is None:
            return self.plain.work
        fewer = self.space.training.batch / self._smallest.micro_batch - self.space.training.batch / micro_batch
        return self.plain.work - self._per_micro_batch * fewer

    @cached_property
    def _per_micro_batch(self) -> Work | None:
        """What a micro-batch takes beside what its samples take; None: there is only one size."""
        small, large = self._smallest.micro_batch, self._second.micro_batch
        if small == large:
            return None
        a, b = (self.space.training.batch / size for size in (small, large))
        # Run roughly, no micro-batch adds to the gradients of another; what that takes is the same at every size.
        adding = (self.plain.work - self._plain_roughly.work) * (1 / (a - 1))
        of_second = self._roughly(self._second).work + adding * (b - 1)
        return (self.plain.work - of_second) * (1 / (a - b))

    def _first(self, keeping: Keeping, *, slices: bool = False) -> Plan:
        """Of the smallest micro-batch, with nothing moved away."""
        return self._all.plan(self._all.micro_batches()[0], keeping, slices=slices)

    @cached_property
    def _smallest(self) -> Plan:
        """Nothing saved, at the smallest micro-batch."""
        return self._first("all")

    @cached_property
    def _second(self) -> Plan:
        """Nothing saved, at the second smallest micro-batch: shows how work grows."""
        sizes = self._all.micro_batches()
        return self._all.plan(sizes[min(1, len(sizes) - 1)], "all")

    def _run_ahead(self) -> None:
        """Run all that estimates come from."""
        rough = [self._first(keeping) for keeping in KEEPINGS[:3]] if self.space.has_blocks else [self._smallest]
        rough += [self._first("all", slices=True)] if self.space.has_large_layers else []
        rough += [self._second]
        stage = self.heaviest_stage
        self.predict.ahead([(self._smallest, stage, False), *((plan, stage, True) for plan in rough)])

    @cached_property
    def _plain_roughly(self) -> Prediction:
        """Nothing saved, run as the others here are: what they are compared with."""
        return self._roughly(self._smallest)

    @cached_property
    def _by_keeping(self) -> Mapping[Keeping, Prediction]:
        """What the ways to keep activations take that torch does for this family.

        Raises:
            BadInput: torch refuses one that is asked for.
        """
        self._run_ahead()
        predictions: dict[Keeping, Prediction] = {"all": self._plain_roughly}
        for keeping in self.space.keepings[1:]:
            if keeping in OFFLOADED and not self._worth_offloading(predictions["nothing"]):
                continue
            try:
                predictions[keeping] = self._roughly(self._first(keeping))
            except RuntimeError as error:
                if keeping != "products":
                    raise
                if "keep-products" in self.space.wishes.use:
                    raise BadInput(
                        "memory saving keep-products: these networks write into results that it keeps; ask for "
                        "recompute, or for none"
                    ) from error
        return predictions

    def _worth_offloading(self, recomputed: Prediction) -> bool:
        """Whether what recomputed blocks are given is a part of the peak that matters, or offload is asked for."""
        given = recomputed.categories.get("saved activations", 0)
        return given >= LEAST_OFFLOADED * recomputed.live_bytes or "offload" in self.space.wishes.use

    @cached_property
    def _sliced(self) -> Prediction | None:
        """Large dense layers in slices; None: there are none."""
        return self._roughly(self._first("all", slices=True)) if self.space.has_large_layers else None

    def _roughly(self, plan: Plan) -> Prediction:
        """One micro-batch of a plan, with the gradients of those before it, which lie beside it: in half the time."""
        prediction = self.predict(plan, self.heaviest_stage, rough=True)
        phase = next(
            (p for p in self.heaviest_stage.phases if p.name == prediction.place.split("/")[0]),
            self.heaviest_stage.phases[-1],
        )
        training = self.space.training
        if phase.micro_batch(plan.micro_batch, training.group) >= phase.samples(training.batch):
            return prediction
        gradients = prediction.categories.get("gradients", 0)
        before = max(0, sum(self.space.fp32_bytes[name] for name in phase.trainable) - gradients)
        return replace(
            prediction,
            live_bytes=prediction.live_bytes + before,
            reserved_bytes=prediction.reserved_bytes + before,
            unlimited_bytes=prediction.unlimited_bytes + before,
            categories={**prediction.categories, "gradients": gradients + before},
        )


def _ratio(a: Work, b: Work) -> Work:
    return Work(*(x / y if y else 1.0 for x, y in zip(astuple(a), astuple(b), strict=True)))


def _times(a: Work, factors: Work) -> Work:
    return Work(*(x * y for x, y in zip(astuple(a), astuple(factors), strict=True)))


HOPE = 1.05
"""Plans are tried up to this multiple of the budget by estimate: an estimate may be too high."""
LOWER = 0.93
"""A rung of the ladder takes at most this share of the one before it."""


@dataclass(frozen=True)
class Choice:
    """A plan that was run."""

    plan: Plan
    prediction: Prediction  # what it takes: the most over all stages
    work: Work  # of an average step of the stage that takes most memory
    seconds: float  # predicted for that, as plans are compared: from the same few runs for all of them
    whole_seconds: float  # predicted for an average step of the whole training


@dataclass(frozen=True)
class Search:
    """Chooses among all plans of a training."""

    space: PlanSpace  # the plans
    card: Card  # where they would run
    predict: Predict  # runs a plan without data

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
        predictions = {stages[0].name: self.predict(plan, stages[0], rough=False)}
        heaviest = worst = predictions[stages[0].name]
        for stage in stages[1:]:
            if most_bytes is not None and worst.reserved_bytes > most_bytes:
                break
            predictions[stage.name] = self.predict(plan, stage, rough=False)
            worst = worst.worst(predictions[stage.name])
        seconds = {name: self.card.seconds(each.work, plan.precision) for name, each in predictions.items()}
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
        smallest = min(self.estimates.fastest_first, key=lambda each: (each.reserved_bytes, each.seconds))
        return self.run(smallest.plan)

    def least_bytes(self, like: Stage) -> int:
        """About what the smallest plan reserves in the stage that is called like another: every saving at once."""
        stages = self.space.training.distinct_stages
        stage = next((each for each in stages if each.name == like.name), stages[-1])
        return self.predict(self.space.thriftiest(), stage, rough=False).reserved_bytes

    def as_cuda_graphs(self, choice: Choice, budget_bytes: int | None) -> Choice:
        """The same with compiled phases started as CUDA graphs, where that pays and fits; else as it is.

        Args:
            budget_bytes: most that the allocator may reserve; None: any.
        """
        training, plan = self.space.training, choice.plan
        compiles = [refused(phase, plan, shared=training.in_parts) is None for phase in training.phases]
        whole = training.compiled and all(compiles)
        if not (whole and self.space.on_card and self.card.waits_for_launches(choice.work, plan.precision)):
            return choice
        graphed = self.run(replace(plan, cuda_graphs=True))
        return graphed if budget_bytes is None or graphed.prediction.reserved_bytes <= budget_bytes else choice

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
