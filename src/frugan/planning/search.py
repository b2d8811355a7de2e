"""Finds the plan of least predicted time that fits a budget.

A step without data takes seconds, so only a few plans are run. From some of them the time of all others is estimated,
and a lower bound of its memory. Plans are then run from the fastest on until one fits; a plan is skipped only if its
lower bound exceeds the budget. A plan is taken for what it was predicted to reserve when it was run, and
plans are compared by times that do not depend on the budget: so no plan that treats all blocks alike and fits is
faster. The one of these that recomputes, or another that then may be faster, is given back the blocks that have room:
those first whose recomputation costs most for what they keep.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from frugan.engine.plan import Plan
from frugan.engine.run.training import Stage
from frugan.planning.candidate import PlanCandidate
from frugan.planning.estimates import Estimates, Predict, keeps_all
from frugan.planning.links import bytes_between
from frugan.planning.plan_space import OFFLOADED, PlanSpace, keeping_of
from frugan.stepmemory.cards import Card

LOWER = 0.93
"""A rung of the ladder takes at most this share of the one before it."""
WORTH = 0.97
"""Fewer recomputed blocks are looked for where they may take this share of the time or less."""
HOPE = 0.5
"""Share of the time, in that of recomputing as much of what blocks keep: costly blocks are left out first."""
TRIES = 4
"""Numbers of blocks of a network that are run at most."""
TOLERANCE = 1.1
"""If the plan of least estimated memory reserves more than this multiple of it, the next is run too."""


@dataclass(frozen=True)
class Search:
    """Chooses among all plans of a training."""

    space: PlanSpace  # the plans
    card: Card  # where they would run
    predict: Predict  # runs a plan without data

    @cached_property
    def estimates(self) -> Estimates:
        """Estimates of plans that do not offload, unless that is asked for: it costs a run, and is seldom needed."""
        return Estimates(self.space, self.card, self.predict, offload="offload" in self.space.constraints.use)

    @property
    def _can_offload(self) -> bool:
        return "nothing here" in self.space.keepings

    @cached_property
    def all_estimates(self) -> Estimates:
        """Estimates of all plans, those that offload too."""
        if self.estimates.offload == self._can_offload:
            return self.estimates
        return Estimates(self.space, self.card, self.predict, offload=self._can_offload)

    def run(self, plan: Plan, most_bytes: int | None = None) -> PlanCandidate:
        """Run a plan without data over all stages, from the one that takes most on.

        Args:
            most_bytes: no further stage is run once one reserves more.
        """
        estimates = self.estimates
        heaviest_stage = estimates.heaviest_stage
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
        card, precision = self.card, plan.precision
        seconds = {name: card.seconds(prediction.work, precision) for name, prediction in predictions.items()}
        busy = {name: card.busy_share(prediction.work, precision) for name, prediction in predictions.items()}
        shares = {stage.name: stage.share * seconds[stage.name] for stage in stages if stage.name in seconds}
        whole = sum(shares.values())
        compared = estimates.of(plan).seconds
        return PlanCandidate(
            plan=plan,
            prediction=worst,
            batch=self.space.training.batch,
            outside_bytes=card.context_bytes
            + card.workspace_bytes
            + sum(bytes_between(self.space.training.ranks).values()),
            work=heaviest.work,
            seconds=compared,
            step_seconds=card.seconds(heaviest.work, precision),
            whole_seconds=whole,
            busy_share=sum(share * busy[name] for name, share in shares.items()) / whole,
            extra_compute=max(0.0, heaviest.work.macs / estimates.plain.work.macs - 1),
            extra_time=max(0.0, compared / estimates.fastest_seconds - 1),
        )

    def within(self, budget_bytes: int) -> PlanCandidate | None:
        """Return the fastest plan whose allocator reserves no more than a budget; None: there is none."""
        candidate = self._same_for_all_blocks(budget_bytes)
        if candidate is None or "recompute" in {*self.space.constraints.use, *self.space.constraints.avoid}:
            return candidate  # asked for, it is for all blocks
        return self._with_fewer_blocks(candidate, budget_bytes)

    def _with_fewer_blocks(self, candidate: PlanCandidate, budget_bytes: int) -> PlanCandidate:
        """Return the fastest of a plan and of those that recompute no more blocks than they have to.

        Args:
            candidate: fastest plan that recomputes all blocks or none.
        """
        estimates = self.estimates if keeping_of(candidate.plan) not in OFFLOADED else self.all_estimates
        possible = (estimate.plan for estimate in estimates.fastest_first)
        recompute = [plan for plan in possible if plan.recompute and not plan.keep_products]
        hopeful = [(self._hoped_seconds(plan, budget_bytes, estimates), plan) for plan in recompute]
        tried: list[PlanCandidate] = []
        for seconds, plan in sorted(hopeful, key=lambda one: one[0]):
            if seconds > WORTH * candidate.seconds:
                break
            if estimates.least_bytes(plan, tried) > budget_bytes:
                continue
            full = self.run(plan, budget_bytes)
            if full.prediction.reserved_bytes <= budget_bytes:
                return min(candidate, self._fewest_blocks(full, budget_bytes), key=lambda one: one.seconds)
            tried.append(full)
        return candidate

    def _hoped_seconds(self, plan: Plan, budget_bytes: int, estimates: Estimates) -> float:
        """Return how long a plan may take with as few recomputed blocks as probably fit; infinite: all are too few.

        Recomputing a share of what the blocks keep takes less than that share of the time.
        """
        nothing = replace(plan, recompute={}, offload=False, bring_ahead=False)
        most, least = estimates.likely_bytes(nothing), estimates.likely_bytes(plan)
        share = max(0.0, (most - budget_bytes) / (most - least)) if most > least else math.inf
        if share > TOLERANCE:
            return math.inf
        seconds = estimates.of(nothing).seconds
        return seconds + HOPE * share * (estimates.of(plan).seconds - seconds)

    def _fewest_blocks(self, full: PlanCandidate, budget_bytes: int) -> PlanCandidate:
        """Return a plan that recomputes all blocks with as few of them as fit, one network after the other.

        The networks that are trained at the peak come last, as they have the least room.
        """
        peak = full.prediction.place.split("/")[0]
        phases = [phase for phase in self.estimates.heaviest_stage.phases if phase.name == peak]
        trained = {name for phase in phases for name in phase.trainable}
        fewest = full
        for network in sorted(full.plan.recompute, key=lambda name: name in trained):
            costly = self.space.costly_blocks[network]
            least, too_many, tries = 0, len(costly) + 1, 0  # blocks that keep everything
            while too_many - least > 1 and tries < TRIES:
                number, tries = (least + too_many) // 2, tries + 1
                recompute = {**fewest.plan.recompute}
                recompute[network] = tuple(
                    block for block in full.plan.recompute[network] if block not in costly[:number]
                )
                fewer = self._fewer(full, replace(fewest.plan, recompute=recompute), budget_bytes)
                if fewer.prediction.reserved_bytes <= budget_bytes:
                    least, best = number, fewer
                else:
                    too_many = number
            fewest = best if least else fewest
        return fewest

    def _fewer(self, full: PlanCandidate, plan: Plan, budget_bytes: int) -> PlanCandidate:
        """Run a plan that recomputes fewer blocks than another one, with whose estimated time it is compared."""
        fewer = self.run(plan, budget_bytes)
        seconds = full.seconds * fewer.step_seconds / full.step_seconds
        return replace(fewer, seconds=seconds, extra_time=max(0.0, seconds / self.estimates.fastest_seconds - 1))

    def _same_for_all_blocks(self, budget_bytes: int) -> PlanCandidate | None:
        """Return the fastest plan that recomputes all blocks or none."""
        candidate = self._fastest_within(budget_bytes, self.estimates)
        # What offloads recomputes too, and is no faster than what only recomputes.
        recompute = [one.seconds for one in self.estimates.fastest_first if keeping_of(one.plan) == "nothing"]
        if self._can_offload and recompute and (candidate is None or min(recompute) < candidate.seconds):
            return self._fastest_within(budget_bytes, self.all_estimates)
        return candidate

    def _fastest_within(self, budget_bytes: int, estimates: Estimates) -> PlanCandidate | None:
        """Return the fastest plan that fits; those whose lower bound exceeds the budget are not run."""
        tried: list[PlanCandidate] = []
        left = [estimate.plan for estimate in estimates.fastest_first]
        while left:
            plan = left.pop(0)
            if estimates.least_bytes(plan, tried) > budget_bytes:
                continue
            # beside it the next plan that may fit, of those whose lower bound needs no further run
            fitting = (after for after in left if keeps_all(after) and estimates.least_bytes(after) <= budget_bytes)
            self.predict.ahead([(one, estimates.heaviest_stage, False) for one in (plan, next(fitting, plan))])
            candidate = self.run(plan, budget_bytes)
            if candidate.prediction.reserved_bytes <= budget_bytes:
                return candidate
            tried.append(candidate)
        return None

    def least(self) -> PlanCandidate:
        """Return the smallest plan: in the order of estimated memory, the first that confirms its estimate."""
        estimates = self.all_estimates
        likely = [(estimates.likely_bytes(estimate.plan), estimate.plan) for estimate in estimates.fastest_first]
        candidates: list[PlanCandidate] = []
        for likely_bytes, plan in sorted(likely, key=lambda one: (one[0], one[1].micro_batch)):
            candidates.append(self.run(plan))
            if candidates[-1].prediction.reserved_bytes <= TOLERANCE * likely_bytes:
                break
        return min(candidates, key=lambda candidate: candidate.prediction.reserved_bytes)

    def thriftiest_bytes(self, like: Stage) -> int:
        """Return what the plan with every allowed saving reserves, in the stage with the name of another."""
        stages = self.space.training.distinct_stages
        stage = next((stage for stage in stages if stage.name == like.name), stages[-1])
        return self.predict(self.space.thriftiest(), stage, rough=False).reserved_bytes

    def ladder(self) -> list[PlanCandidate]:
        """Return plans from the fastest to the smallest: each takes less than any faster one, by estimate."""
        estimates = self.all_estimates
        rungs: list[tuple[Plan, float]] = []
        for estimate in estimates.fastest_first:
            size = estimates.likely_bytes(estimate.plan)
            if not rungs or size < LOWER * rungs[-1][1]:
                rungs.append((estimate.plan, size))
        candidates = [self.run(plan) for plan, _ in rungs]
        falling: list[PlanCandidate] = []
        for candidate in sorted(candidates, key=lambda one: one.seconds):
            if not falling or candidate.prediction.reserved_bytes < falling[-1].prediction.reserved_bytes:
                falling.append(candidate)
        return falling
