"""Finds the plan of least predicted time that fits a budget.

A step without data takes seconds, so only a few plans are run. From some of them the time of all others is estimated,
and the least that each may take. Plans are then run from the fastest on until one fits; left out on the way is only
what takes more than the budget at least. A plan is taken for what it was predicted to reserve when it was run, and
plans are compared by times that do not depend on the budget: so no plan that fits is faster, and a larger budget never
gets a slower one.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from frugan.contract.phase import Phase
from frugan.engine.plan import Plan
from frugan.engine.run.training import Stage
from frugan.errors import BadInput
from frugan.planning.plan_space import OFFLOADED, Keeping, PlanConstraints, PlanSpace, keeping_of
from frugan.planning.prediction import Prediction
from frugan.stepmemory.cards import Card
from frugan.stepmemory.work import Work

SURE = 0.99
"""Share of what lives by a line through smaller micro-batches that counts as the least: allocators round sizes up, so
that what lives grows by steps."""
ANCHORS = 3
"""Micro-batches that are run to know all others: those of one group or one sample work a little differently."""


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
    """How long a plan may take: what plans are compared by, whatever the budget."""

    plan: Plan
    seconds: float  # of a step; no operation starts for nothing, even where the card is busy meanwhile
    added_seconds: float  # all its parts added up: decides where the host is waited for, so that no copy is free


@dataclass(frozen=True)
class Estimates:
    """Estimates of all plans of a training on a card."""

    space: PlanSpace  # the plans
    card: Card  # where they would run
    predict: Predict  # runs a plan without data
    offload: bool = False  # whether plans are among them that offload what recomputed blocks are given

    @cached_property
    def _all(self) -> PlanSpace:
        """The plans without constraints: estimates come from the same few whatever is asked for."""
        return replace(self.space, constraints=PlanConstraints())

    @cached_property
    def fastest_seconds(self) -> float:
        """Of the fastest plan that there is, whatever the constraints: what others are compared with."""
        return min(each.seconds for each in map(self.of, self._known(self._all.every_plan())))

    def _known(self, plans: Iterable[Plan]) -> list[Plan]:
        """Those whose savings were run."""
        return [plan for plan in plans if keeping_of(plan) in self._by_keeping]

    @cached_property
    def heaviest_stage(self) -> Stage:
        """The stage that takes most: estimates are made for it alone."""
        stages = self.space.training.distinct_stages
        if len(stages) == 1:
            return stages[0]
        plan = self._plan(self._anchors[0])
        self.predict.ahead([(plan, stage, True) for stage in stages])
        return max(stages, key=lambda stage: self.predict(plan, stage, rough=True).reserved_bytes)

    @cached_property
    def plain(self) -> Prediction:
        """What nothing saved takes, at the smallest micro-batch: two of them, in the stage that takes most."""
        self._run_ahead()
        return self._exactly(self._anchors[0])

    @cached_property
    def fastest_first(self) -> Sequence[Estimate]:
        """Of all plans that are wished for and that torch does not refuse.

        Raises:
            BadInput: there is none.
        """
        plans = self._known(self.space.allowed_plans())
        if not plans:
            raise BadInput("no plan can use all the memory savings that are asked for: leave some out")
        return sorted(map(self.of, plans), key=lambda each: (each.seconds, each.added_seconds))

    def of(self, plan: Plan) -> Estimate:
        """How long a plan takes, by what those that were run take."""
        work = self._work(plan)
        return Estimate(plan, self.seconds(work, plan), self.card.compared_seconds(work, plan.precision))

    def seconds(self, work: Work, plan: Plan) -> float:
        """What work is compared by: of a step, with the start of each operation."""
        return max(self.card.seconds(work, plan.precision), self.card.compared_seconds(work, plan.precision))

    def _work(self, plan: Plan) -> Work:
        """Of a plan: of nothing saved at its micro-batch, and what each saving adds."""
        work, plain = self._plain_work(plan.micro_batch), self._roughly(self._plan(self._anchors[0]))
        batch = self.space.training.batch
        count, most = (-(-batch // size) for size in (plan.micro_batch, self._anchors[0]))  # forwards
        if plan.recompute:
            keeping = keeping_of(plan)
            work = work + self._at(plan.micro_batch, {size: self._adds(keeping, size) for size in self._anchors[:2]})
        if plan.in_slices:
            first = self._plan(self._anchors[0], slices=True)
            sliced = self.predict(first, self.heaviest_stage, rough=False)
            more = self._roughly(first).work - plain.work
            adding = (sliced.work - self.plain.work) - more  # to the gradients of the forwards before
            work = work + more * (count / most) + adding * ((count - 1) / max(1, most - 1))
        if plan.ema_on_host:
            work = work + Work(bytes_moved=self._averages_bytes, beside_bytes=self._averages_bytes)
        own = 1 / self.space.training.ranks if plan.shard_optimizer else 1.0  # share of the optimizer state
        if plan.shard_optimizer:
            updates = max(phase.repeats for phase in self.heaviest_stage.phases)
            work = work + Work(host_bytes=(1 - own) * updates * sum(self.space.fp32_bytes.values()))
        if plan.optimizer_on_host:
            work = work + (self._roughly(self._optimizer_away).work - plain.work) * own
        return work

    def _plain_work(self, micro_batch: int) -> Work:
        """Of a step with nothing saved."""
        if micro_batch in self._anchors:
            return self._exactly(micro_batch).work
        return self._at(micro_batch, {size: self._exactly(size).work for size in self._anchors[-2:]})

    def _adds(self, keeping: Keeping, micro_batch: int) -> Work:
        """What keeping less adds: blocks that are made again also read their weights again, at every forward."""
        less, all_of_it = (self._roughly(self._plan(micro_batch, each)).work for each in (keeping, "all"))
        return less - all_of_it

    def _at(self, micro_batch: int, known: Mapping[int, Work]) -> Work:
        """Work at a micro-batch, by that at one or two others: a part for each forward, and one for each sample."""
        batch, small, large = self.space.training.batch, min(known), max(known)
        if small == large:
            return known[large]
        each = (known[small] - known[large]) * (1 / (batch / small - batch / large))
        return known[large] + each * (-(-batch // micro_batch) - batch / large)

    def least_bytes(self, plan: Plan, tried: Collection["Choice"] = ()) -> float:
        """What a plan reserves at least.

        What lives at a moment of a step grows in a straight line with the micro-batch, so the peak, the most over all
        moments, bends upwards only: a line through two smaller micro-batches stays below it. But what was too small
        to be worth its way to the host may go in larger ones.

        Args:
            tried: plans that were run; what has fewer samples at once and no less on the card takes no more.
        """
        away = self._moved_bytes(plan)
        least = SURE * self._alive_bytes(plan, at_least=True) - away
        for other in tried:
            if self._holds_no_less(plan, other.plan):
                less = max(0.0, away - self._moved_bytes(other.plan))
                less += other.prediction.stayed_bytes * (plan.micro_batch > other.plan.micro_batch)
                least = max(least, SURE * other.prediction.tensor_bytes - less)
        return least

    def likely_bytes(self, plan: Plan) -> float:
        """What a plan may reserve: what such a line says, and what the allocator leaves unused in plans like it."""
        like = self._of_kept(plan)[-1][1]
        alive = self._alive_bytes(plan, at_least=False) - self._moved_bytes(plan)
        return alive * like.reserved_bytes / like.live_bytes

    def _alive_bytes(self, plan: Plan, *, at_least: bool) -> float:
        """What a plan that moves nothing away keeps alive at its peak.

        Args:
            at_least: whether no gradient counts that may be gone by then.
        """
        known = self._of_kept(plan)
        return max(self._alive_in(phase, plan, known, at_least=at_least) for phase in self.heaviest_stage.phases)

    def _alive_in(self, phase: Phase, plan: Plan, known: Sequence[tuple[int, Prediction]], *, at_least: bool) -> float:
        """The same in one phase, by runs of smaller micro-batches that keep what the plan does."""
        group, seen = self.space.training.group, phase.samples(self.space.training.batch)
        asked = min(seen, phase.micro_batch(plan.micro_batch, group))
        points = {min(seen, phase.micro_batch(size, group)): each for size, each in known}
        *others, size = sorted(points)
        like = points[size]
        alive = _alive_at(like, phase, at_least=at_least)
        slope = 0.0
        if others:
            before = _alive_at(points[others[-1]], phase, at_least=at_least)
            slope = max(0.0, (alive - before) / (size - others[-1]))
        alive += slope * (asked - size)
        if at_least and asked > size:
            alive -= like.stayed_bytes * asked / size
        # Gradients that are added up are held longer, and beside a second micro-batch they are whole.
        whole = sum(self.space.fp32_bytes[name] for name in phase.trainable)
        # Of two forwards in half precision the sums are in fp32 only in the end, of more from the first on.
        is_half_sum = at_least and plan.precision.name != "fp32" and asked < seen <= 2 * asked
        held = whole / 2 if is_half_sum else whole
        is_peak = like.place.split("/")[0] == phase.name
        there = like.categories.get("gradients", 0) if is_peak else whole
        if asked < seen and _keeps_all(plan):
            return alive - (whole - held)
        if asked < seen:  # by a run of the first micro-batch alone
            return alive + max(0, held - there)
        return alive if size == seen or not at_least else alive - there

    def _holds_no_less(self, plan: Plan, other: Plan) -> bool:
        """Whether a plan is another one with more samples at once, which adds up gradients where the other does."""
        group, batch = self.space.training.group, self.space.training.batch

        def adds(of: Plan, phase: Phase) -> bool:
            return phase.micro_batch(of.micro_batch, group) < phase.samples(batch)

        def sums_in_half(of: Plan, phase: Phase) -> bool:
            size, seen = phase.micro_batch(of.micro_batch, group), phase.samples(batch)
            return of.precision.name != "fp32" and size < seen <= 2 * size

        return (
            plan.micro_batch >= other.micro_batch
            and keeping_of(plan) == keeping_of(other)
            and bool(plan.in_slices) == bool(other.in_slices)
            and all(
                (adds(plan, phase) or not adds(other, phase))
                and (not sums_in_half(plan, phase) or sums_in_half(other, phase))
                for stage in self._stages
                for phase in stage.phases
            )
        )

    @property
    def _stages(self) -> Sequence[Stage]:
        return self.space.training.distinct_stages

    def _moved_bytes(self, plan: Plan) -> float:
        """What a plan keeps elsewhere than on the card, at most."""
        moved = float(self._averages_bytes) if plan.ema_on_host else 0.0
        statistics = self.plain.categories.get("optimizer", 0)
        if plan.optimizer_on_host:
            return moved + statistics
        return moved + (statistics * (1 - 1 / self.space.training.ranks) if plan.shard_optimizer else 0.0)

    @property
    def _averages_bytes(self) -> int:
        return self.plain.categories.get("averages", 0)

    def _of_kept(self, plan: Plan) -> list[tuple[int, Prediction]]:
        """Runs of smaller micro-batches that keep what a plan does, smallest first."""
        if _keeps_all(plan):
            return [(size, self._exactly(size)) for size in self._anchors if size <= plan.micro_batch]
        sizes = [size for size in self._anchors[:2] if size <= plan.micro_batch]
        plans = [self._plan(size, keeping_of(plan), slices=bool(plan.in_slices)) for size in sizes]
        self.predict.ahead([(each, self.heaviest_stage, True) for each in plans])
        return [(each.micro_batch, self._roughly(each)) for each in plans]

    @cached_property
    def _anchors(self) -> list[int]:
        """Micro-batches that are run to know all others: the smallest ones that divide the batch."""
        batch, sizes = self.space.training.batch, self._all.micro_batches()
        return [size for size in sizes if batch % size == 0][:ANCHORS] or sizes[:1]  # it may be a part of one group

    def _plan(self, micro_batch: int, keeping: Keeping = "all", *, slices: bool = False) -> Plan:
        """With nothing moved away."""
        return self._all.plan(micro_batch, keeping, slices=slices)

    @property
    def _optimizer_away(self) -> Plan:
        return self._all.plan(self._anchors[0], "all", optimizer_away=True)

    @property
    def _keepings(self) -> Sequence[Keeping]:
        return [each for each in self.space.keepings if each not in OFFLOADED or self.offload]

    def _run_ahead(self) -> None:
        """Run all that times are estimated from."""
        first, stage = self._anchors[0], self.heaviest_stage
        exact = [self._plan(size) for size in self._anchors]
        sliced = [self._plan(first, slices=True)] if self.space.has_large_layers else []
        rough = [*(self._plan(size, keeping) for keeping in self._keepings for size in self._anchors[:2]), *sliced]
        rough += [self._optimizer_away] if self.space.on_card else []
        self.predict.ahead(
            [*((plan, stage, False) for plan in (*exact, *sliced)), *((plan, stage, True) for plan in rough)]
        )

    @cached_property
    def _by_keeping(self) -> Mapping[Keeping, Prediction]:
        """What the ways to keep activations take that torch does for this family.

        Raises:
            BadInput: torch refuses one that is asked for.
        """
        self._run_ahead()
        predictions: dict[Keeping, Prediction] = {}
        for keeping in self._keepings:
            try:
                predictions[keeping] = self._roughly(self._plan(self._anchors[0], keeping))
            except RuntimeError as error:
                if keeping != "products":
                    raise
                if "keep-products" in self.space.constraints.use:
                    raise BadInput(
                        "memory saving keep-products: torch refuses it here, because these networks write into results "
                        "that it keeps; ask for recompute, or for none"
                    ) from error
        return predictions

    def _exactly(self, micro_batch: int) -> Prediction:
        """Nothing saved, at one of the sizes that are run for all others."""
        return self.predict(self._plan(micro_batch), self.heaviest_stage, rough=False)

    def _roughly(self, plan: Plan) -> Prediction:
        """One micro-batch of a plan, the first of an update: in half the time."""
        return self.predict(plan, self.heaviest_stage, rough=True)


def _alive_at(ran: Prediction, phase: Phase, *, at_least: bool) -> float:
    """What lives at a phase's peak in a plan that was run.

    Args:
        at_least: without what blocks are larger than what was asked for: up to a MiB each, in one plan and not in
            another, which no line goes through.
    """
    size_bytes = ran.by_phase.get(phase.name, 0)
    return float(size_bytes - (ran.live_bytes - ran.tensor_bytes) if at_least else size_bytes)


def _keeps_all(plan: Plan) -> bool:
    return not plan.recompute and not plan.in_slices


LOWER = 0.93
"""A rung of the ladder takes at most this share of the one before it."""


KEPT = 1.1
"""What a plan takes of what it promised to, at most, to be the smallest: beyond, another may take less."""


@dataclass(frozen=True)
class Choice:
    """A plan that was run."""

    plan: Plan
    prediction: Prediction  # what it takes: the most over all stages
    work: Work  # of an average step of the stage that takes most memory
    seconds: float  # predicted for that, as plans are compared: from the same few runs for all of them
    whole_seconds: float  # predicted for an average step of the whole training
    busy_share: float  # of that, in which the card works and does not wait for its host


@dataclass(frozen=True)
class Search:
    """Chooses among all plans of a training."""

    space: PlanSpace  # the plans
    card: Card  # where they would run
    predict: Predict  # runs a plan without data

    @cached_property
    def estimates(self) -> Estimates:
        """Of plans that do not offload, unless that is asked for: that costs a run, and is seldom what is needed."""
        return Estimates(self.space, self.card, self.predict, offload="offload" in self.space.constraints.use)

    @cached_property
    def _all_estimates(self) -> Estimates:
        """Of those that offload too."""
        return replace(self.estimates, offload="nothing here" in self.space.keepings)

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
        busy = {name: self.card.busy_share(each.work, plan.precision) for name, each in predictions.items()}
        shares = {stage.name: stage.share * seconds[stage.name] for stage in stages if stage.name in seconds}
        whole = sum(shares.values())
        busy_share = sum(share * busy[name] for name, share in shares.items()) / whole
        return Choice(plan, worst, heaviest.work, self.estimates.of(plan).seconds, whole, busy_share)

    def within(self, budget_bytes: int) -> Choice | None:
        """The fastest plan whose allocator reserves no more than a budget; None: there is none."""
        choice = self._fastest_within(budget_bytes, self.estimates)
        # What offloads recomputes too, and is no faster than what only recomputes.
        recompute = [each.seconds for each in self.estimates.fastest_first if keeping_of(each.plan) == "nothing"]
        if self._all_estimates.offload and recompute and (choice is None or min(recompute) < choice.seconds):
            return self._fastest_within(budget_bytes, self._all_estimates)
        return choice

    def _fastest_within(self, budget_bytes: int, estimates: Estimates) -> Choice | None:
        """The first plan that fits, from the fastest on: what is not run takes more at least."""
        tried: list[Choice] = []
        left = list(estimates.fastest_first)
        while left:
            plan = left.pop(0).plan
            if estimates.least_bytes(plan, tried) > budget_bytes:
                continue
            self._run_ahead(plan, left, budget_bytes, estimates)
            choice = self.run(plan, budget_bytes)
            if choice.prediction.reserved_bytes <= budget_bytes:
                return choice
            tried.append(choice)
        return None

    def _run_ahead(self, plan: Plan, left: Sequence[Estimate], budget_bytes: int, estimates: Estimates) -> None:
        """Run a plan, and beside it the one that would be next."""
        # of those of which that is known without a run
        kept = (each.plan for each in left if _keeps_all(each.plan))
        after = next((each for each in kept if estimates.least_bytes(each) <= budget_bytes), plan)
        self.predict.ahead([(each, estimates.heaviest_stage, False) for each in (plan, after)])

    def least(self) -> Choice:
        """The plan that promises to take least, and does not take much more."""
        estimates = self._all_estimates
        likely = [(estimates.likely_bytes(each.plan), each.plan) for each in estimates.fastest_first]
        chosen: list[Choice] = []
        for likely_bytes, plan in sorted(likely, key=lambda one: (one[0], one[1].micro_batch)):
            chosen.append(self.run(plan))
            if chosen[-1].prediction.reserved_bytes <= KEPT * likely_bytes:
                break
        return min(chosen, key=lambda choice: choice.prediction.reserved_bytes)

    def least_bytes(self, like: Stage) -> int:
        """About what the smallest plan reserves in the stage that is called like another: every saving at once."""
        stages = self.space.training.distinct_stages
        stage = next((each for each in stages if each.name == like.name), stages[-1])
        return self.predict(self.space.thriftiest(), stage, rough=False).reserved_bytes

    def ladder(self) -> list[Choice]:
        """Plans from the fastest to the smallest: each takes less than any faster one, by estimate; those are run."""
        estimates = self._all_estimates
        rungs: list[tuple[Plan, float]] = []
        for each in estimates.fastest_first:
            size = estimates.likely_bytes(each.plan)
            if not rungs or size < LOWER * rungs[-1][1]:
                rungs.append((each.plan, size))
        chosen = [self.run(plan) for plan, _ in rungs]
        falling: list[Choice] = []
        for choice in sorted(chosen, key=lambda c: c.seconds):
            if not falling or choice.prediction.reserved_bytes < falling[-1].prediction.reserved_bytes:
                falling.append(choice)
        return falling
