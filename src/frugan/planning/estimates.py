"""Time and memory of plans that were not run, by a few that were."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from frugan.contract.phase import Phase
from frugan.engine.plan import Plan
from frugan.engine.run.training import Stage
from frugan.errors import BadInput
from frugan.planning.candidate import PlanCandidate
from frugan.planning.plan_space import OFFLOADED, Keeping, PlanConstraints, PlanSpace, keeping_of
from frugan.planning.prediction import Prediction
from frugan.stepmemory.cards import Card
from frugan.stepmemory.work import Work

LOWER_BOUND = 0.99
"""Factor of the lower bound of live memory, which is extrapolated from smaller micro-batches: it grows by steps, as
allocators round sizes up."""
ANCHORS = 3
"""Micro-batches that are run to know all others: those of one group or one sample work a little differently."""


class Predict(Protocol):
    """Runs a plan without data, once; `Predictions` does."""

    def __call__(self, plan: Plan, stage: Stage, *, rough: bool) -> Prediction:
        """Return its prediction for a stage.

        Raises:
            RuntimeError: torch refuses the plan.
        """

    def ahead(self, jobs: Sequence[tuple[Plan, Stage, bool]]) -> None:
        """Run (plan, stage, rough) that will be asked for, side by side if that can be."""


@dataclass(frozen=True)
class Estimate:
    """How long a plan may take: what plans are compared by, whatever the budget."""

    plan: Plan
    seconds: float  # of a step; counts the start of every operation, even one hidden behind a busy card
    added_seconds: float  # all parts added up: breaks ties where the host is waited for and copies would look free


class Estimates:
    """Estimates of all plans of a training on a card; what they are made from is run at once.

    Args:
        space: the plans.
        card: where they would run.
        predict: runs a plan without data.
        offload: whether plans are among them that offload what recomputed blocks are given.

    Attributes:
        heaviest_stage: the stage that takes most; estimates are made for it alone.
        plain: two of the smallest micro-batches with nothing saved, in that stage.

    Raises:
        BadInput: torch refuses a saving that is asked for.
    """

    def __init__(self, space: PlanSpace, card: Card, predict: Predict, *, offload: bool = False) -> None:
        space.check()  # before anything is run
        self.space, self.card, self.predict, self.offload = space, card, predict, offload
        # without constraints: estimates come from the same few plans whatever is asked for
        self._all = replace(space, constraints=PlanConstraints())
        batch, sizes = space.training.batch, self._all.micro_batches()
        # the smallest micro-batches that divide the batch; the batch may be a part of one group
        self._anchors = [size for size in sizes if batch % size == 0][:ANCHORS] or sizes[:1]
        first, stages = self._anchors[0], space.training.distinct_stages
        self.heaviest_stage = stages[0]
        if len(stages) > 1:
            predict.ahead([(self._plan(first), stage, True) for stage in stages])
            self.heaviest_stage = max(
                stages, key=lambda stage: predict(self._plan(first), stage, rough=True).reserved_bytes
            )
        predict.ahead([(plan, self.heaviest_stage, rough) for plan, rough in self._anchor_plans()])
        self.plain = self._exactly(first)
        self._possible = {keeping for keeping in self._keepings if self._is_possible(keeping)}

    def _anchor_plans(self) -> Iterator[tuple[Plan, bool]]:
        """Yield the plans that all estimates are made from, and whether they are run roughly."""
        sliced = [self._plan(self._anchors[0], slices=True)] if self.space.has_large_layers else []
        for plan in (*map(self._plan, self._anchors), *sliced):
            yield plan, False
        for keeping in self._keepings:
            for size in self._anchors[:2]:
                yield self._plan(size, keeping), True
        for plan in (*sliced, *([self._optimizer_away] if self.space.on_card else [])):
            yield plan, True

    def _is_possible(self, keeping: Keeping) -> bool:
        """Return whether torch takes a way to keep activations for this family.

        Raises:
            BadInput: it refuses one that is asked for.
        """
        try:
            self._roughly(self._plan(self._anchors[0], keeping))
        except RuntimeError as error:
            if keeping != "products":
                raise
            if "keep-products" in self.space.constraints.use:
                raise BadInput(
                    "memory saving keep-products: torch refuses it here, because these networks write into results "
                    "that it keeps; ask for recompute, or for none"
                ) from error
            return False
        return True

    @cached_property
    def fastest_seconds(self) -> float:
        """Seconds of the fastest plan that there is, whatever the constraints: others are compared with it."""
        return min(estimate.seconds for estimate in map(self.of, self._run(self._all.every_plan())))

    @cached_property
    def fastest_first(self) -> Sequence[Estimate]:
        """All plans that the constraints leave and that torch does not refuse.

        Raises:
            BadInput: there is none.
        """
        plans = self._run(self.space.allowed_plans())
        if not plans:
            raise BadInput("no plan can use all the memory savings that are asked for: leave some out")
        return sorted(map(self.of, plans), key=lambda estimate: (estimate.seconds, estimate.added_seconds))

    def _run(self, plans: Iterable[Plan]) -> list[Plan]:
        """Plans that keep activations in a way that was run and works."""
        return [plan for plan in plans if keeping_of(plan) in self._possible]

    def of(self, plan: Plan) -> Estimate:
        """Estimate how long a plan takes, by what those that were run take."""
        work = self._work(plan)
        return Estimate(plan, self.seconds(work, plan), self.card.compared_seconds(work, plan.precision))

    def seconds(self, work: Work, plan: Plan) -> float:
        """Return the seconds by which plans are compared: of a step, with the start of each operation."""
        return max(self.card.seconds(work, plan.precision), self.card.compared_seconds(work, plan.precision))

    def _work(self, plan: Plan) -> Work:
        """Estimate the work of a plan: that of nothing saved at its micro-batch, and what each saving adds."""
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
        share = 1 / self.space.training.ranks if plan.shard_optimizer else 1.0  # of the optimizer state
        if plan.shard_optimizer:
            updates = max(phase.repeats for phase in self.heaviest_stage.phases)
            work = work + Work(host_bytes=(1 - share) * updates * sum(self.space.fp32_bytes.values()))
        if plan.optimizer_on_host:
            work = work + (self._roughly(self._optimizer_away).work - plain.work) * share
        return work

    def _plain_work(self, micro_batch: int) -> Work:
        """Estimate the work of a step with nothing saved."""
        if micro_batch in self._anchors:
            return self._exactly(micro_batch).work
        return self._at(micro_batch, {size: self._exactly(size).work for size in self._anchors[-2:]})

    def _adds(self, keeping: Keeping, micro_batch: int) -> Work:
        """Return the work that keeping less adds: recomputed blocks also read their weights again, at every forward."""
        less, all_of_it = (self._roughly(self._plan(micro_batch, keeps)).work for keeps in (keeping, "all"))
        return less - all_of_it

    def _at(self, micro_batch: int, known: Mapping[int, Work]) -> Work:
        """Work at a micro-batch, by that at one or two others: a part for each forward, and one for each sample."""
        batch, small, large = self.space.training.batch, min(known), max(known)
        if small == large:
            return known[large]
        forward = (known[small] - known[large]) * (1 / (batch / small - batch / large))
        return known[large] + forward * (-(-batch // micro_batch) - batch / large)

    def least_bytes(self, plan: Plan, tried: Collection[PlanCandidate] = ()) -> float:
        """Return a lower bound of what a plan reserves.

        What lives at a moment of a step grows in a straight line with the micro-batch, so the peak, the most over all
        moments, bends upwards only: a line through two smaller micro-batches stays below it. But what is too small
        to be offloaded at a small micro-batch may be offloaded at a larger one.

        Args:
            tried: plans that were run. A plan with a larger micro-batch takes at least as much as one of these, less
                what it moves off the card besides.
        """
        away = self._moved_bytes(plan)
        least = LOWER_BOUND * self._alive_bytes(plan, at_least=True) - away
        for other in tried:
            if self._holds_no_less(plan, other.plan):
                less = max(0.0, away - self._moved_bytes(other.plan))
                less += other.prediction.stayed_bytes * (plan.micro_batch > other.plan.micro_batch)
                least = max(least, LOWER_BOUND * other.prediction.tensor_bytes - less)
        return least

    def likely_bytes(self, plan: Plan) -> float:
        """Return what a plan probably reserves: by such a line, and what allocators leave unused in plans like it."""
        like = self._of_kept(plan)[-1][1]
        alive = self._alive_bytes(plan, at_least=False) - self._moved_bytes(plan)
        return alive * like.reserved_bytes / like.live_bytes

    def _alive_bytes(self, plan: Plan, *, at_least: bool) -> float:
        """Return what a plan that moves nothing away keeps alive at its peak.

        Args:
            at_least: leave out gradients that may be freed by the peak.
        """
        known = self._of_kept(plan)
        return max(self._alive_in(phase, plan, known, at_least=at_least) for phase in self.heaviest_stage.phases)

    def _alive_in(self, phase: Phase, plan: Plan, known: Sequence[tuple[int, Prediction]], *, at_least: bool) -> float:
        """Return what it keeps alive in one phase, by runs of smaller micro-batches that keep what the plan does."""
        group, seen = self.space.training.group, phase.samples(self.space.training.batch)
        wanted = min(seen, phase.micro_batch(plan.micro_batch, group))
        points = {min(seen, phase.micro_batch(size, group)): ran for size, ran in known}
        *others, size = sorted(points)
        like = points[size]
        alive = _alive_at(like, phase, at_least=at_least)
        slope = 0.0
        if others:
            before = _alive_at(points[others[-1]], phase, at_least=at_least)
            slope = max(0.0, (alive - before) / (size - others[-1]))
        alive += slope * (wanted - size)
        if at_least and wanted > size:
            alive -= like.stayed_bytes * wanted / size
        # With several micro-batches all gradients stay while the next one runs.
        whole = sum(self.space.fp32_bytes[name] for name in phase.trainable)
        # Of exactly two in half precision they are summed in fp32 at the end, of more from the start.
        is_half_sum = at_least and plan.precision.name != "fp32" and wanted < seen <= 2 * wanted
        held = whole / 2 if is_half_sum else whole
        is_peak = like.place.split("/")[0] == phase.name
        there = like.categories.get("gradients", 0) if is_peak else whole
        if wanted < seen and keeps_all(plan):
            return alive - (whole - held)
        if wanted < seen:  # by a run of the first micro-batch alone
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
        """Return the most that a plan keeps elsewhere than on the card."""
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
        if keeps_all(plan):
            return [(size, self._exactly(size)) for size in self._anchors if size <= plan.micro_batch]
        sizes = [size for size in self._anchors[:2] if size <= plan.micro_batch]
        plans = [self._plan(size, keeping_of(plan), slices=bool(plan.in_slices)) for size in sizes]
        self.predict.ahead([(smaller, self.heaviest_stage, True) for smaller in plans])
        return [(smaller.micro_batch, self._roughly(smaller)) for smaller in plans]

    def _plan(self, micro_batch: int, keeping: Keeping = "all", *, slices: bool = False) -> Plan:
        """Return a plan with nothing moved away."""
        return self._all.plan(micro_batch, keeping, slices=slices)

    @property
    def _optimizer_away(self) -> Plan:
        return self._all.plan(self._anchors[0], "all", optimizer_away=True)

    @property
    def _keepings(self) -> Sequence[Keeping]:
        return [keeping for keeping in self.space.keepings if keeping not in OFFLOADED or self.offload]

    def _exactly(self, micro_batch: int) -> Prediction:
        """Run nothing saved, at one of the sizes that are run for all others."""
        return self.predict(self._plan(micro_batch), self.heaviest_stage, rough=False)

    def _roughly(self, plan: Plan) -> Prediction:
        """Run one micro-batch of a plan, the first of an update: in half the time."""
        return self.predict(plan, self.heaviest_stage, rough=True)


def _alive_at(ran: Prediction, phase: Phase, *, at_least: bool) -> float:
    """Return what lived at a phase's peak in a plan that was run.

    Args:
        at_least: without the rounding of the allocator, up to a MiB a block: it differs between plans and would spoil
            the extrapolation.
    """
    size_bytes = ran.by_phase.get(phase.name, 0)
    return float(size_bytes - (ran.live_bytes - ran.tensor_bytes) if at_least else size_bytes)


def keeps_all(plan: Plan) -> bool:
    return not plan.recompute and not plan.in_slices
