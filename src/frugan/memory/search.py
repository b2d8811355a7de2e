"""Finds the plan of least predicted time that fits a budget.

A step without data takes seconds, so only a few plans are run: some to estimate all others from, then those that the
estimates promise, from the fastest on, until one fits. What is run does not depend on the budget, and a plan is taken
only for what it was predicted to reserve when it was run: so a larger budget never gets a slower plan.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol

from frugan.engine.dense_slices import sliceable
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision
from frugan.errors import BadInput
from frugan.memory.cards import Card
from frugan.memory.prediction import Prediction, without_data
from frugan.memory.savers import SAVERS, savers_of
from frugan.memory.task import Stage, Task
from frugan.memory.work import Work


class Predict(Protocol):
    """Runs a plan without data; whoever gives it may remember."""

    def __call__(self, plan: Plan, stage: Stage, *, rough: bool) -> Prediction:
        """Its prediction for a stage.

        Raises:
            RuntimeError: torch refuses the plan.
        """

    def ahead(self, jobs: Sequence[tuple[Plan, Stage, bool]]) -> None:
        """Run (plan, stage, rough) that will be asked for, side by side if that can be."""


Keeping = Literal["all", "products", "nothing"]
"""What is kept of a block's activations."""

KEEPINGS: tuple[Keeping, ...] = ("all", "products", "nothing")
HOPE = 1.05
"""Plans are tried up to this multiple of the budget by estimate: an estimate may be too high."""
MOST_TRIED = 16
"""Plans that are run for one question, besides those that estimates come from."""
STATIC = ("parameters", "working weights", "gradients", "optimizer", "averages")
"""What does not grow with the micro-batch."""


@dataclass(frozen=True)
class Wishes:
    """What is asked of a plan.

    Attributes:
        micro_batch: samples in one forward; None: to be chosen.
        use: savings that it must use.
        avoid: savings that it must not.
    """

    micro_batch: int | None = None
    use: frozenset[str] = frozenset()
    avoid: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        known = [saver.name for saver in SAVERS]
        for name in sorted({*self.use, *self.avoid} - set(known)):
            raise BadInput(f"saver {name!r} is unknown; there are {', '.join(known)}")
        for name in sorted(self.use & self.avoid):
            raise BadInput(f"saver {name} is asked for and ruled out at once: leave one of the two away")
        if {"recompute", "keep-products"} <= self.use:
            raise BadInput(
                "savers recompute and keep-products contradict each other: a block that makes everything again keeps "
                "no products; ask for one of them"
            )
        if "micro-batch" in {*self.use, *self.avoid}:
            raise BadInput("saver micro-batch is asked for by a number: --micro-batch 8; the batch avoids it")


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
class _Estimate:
    plan: Plan
    reserved_bytes: float
    seconds: float


@dataclass
class Search:
    """All plans of a task on a card, and what is known of them.

    Attributes:
        task, precision, card: what for.
        predict: runs a plan without data.
        wishes: what is asked of plans.
        on_card: False: host and device are one, so nothing is won by moving state.
    """

    task: Task
    precision: Precision
    card: Card
    predict: Predict
    wishes: Wishes = field(default_factory=Wishes)
    on_card: bool = True

    @cached_property
    def _parts(self) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[str, ...]]]:
        """Blocks that may be recomputed, and dense layers that may be worked in slices."""
        with without_data():
            networks = self.task.build()
            large = {name: found for name, network in networks.items() if (found := sliceable(network))}
            return self.task.recomputable(networks), large

    def micro_batches(self) -> list[int]:
        """Micro-batches worth trying, smallest first: whole groups that split the batch as evenly as they can."""
        groups = self.task.batch // self.task.group
        if self.wishes.micro_batch is not None:
            return [self.wishes.micro_batch]
        counts = sorted({*(2**i for i in range(groups.bit_length())), *(3 * 2**i for i in range(groups.bit_length()))})
        return sorted(
            {-(-groups // count) * self.task.group for count in counts if count <= groups} | {self.task.group}
        )

    def plan(
        self, micro_batch: int, keeping: Keeping, *, slices: bool, averages_away: bool, optimizer_away: bool
    ) -> Plan:
        """A plan of the given savings."""
        blocks, large = self._parts
        return Plan(
            micro_batch=micro_batch,
            precision=self.precision,
            recompute={} if keeping == "all" else blocks,
            keep_products=keeping == "products",
            in_slices=large if slices else {},
            ema_on_host=averages_away,
            optimizer_on_host=optimizer_away,
        )

    def plans(self) -> Iterator[Plan]:
        """Every plan that the wishes leave and that torch does not refuse."""
        for plan in self.every_plan():
            keeping: Keeping = "all" if not plan.recompute else ("products" if plan.keep_products else "nothing")
            if self._wished(plan) and keeping in self._possible:
                yield plan

    def every_plan(self) -> Iterator[Plan]:
        """Every combination of savings, over all micro-batches."""
        _, large = self._parts
        away = (False, True) if self.on_card else (False,)
        for micro_batch in self.micro_batches():
            for keeping in KEEPINGS:
                for slices in (False, True) if large else (False,):
                    for averages_away in away if self.task.averaged else (False,):
                        for optimizer_away in away:
                            yield self.plan(
                                micro_batch,
                                keeping,
                                slices=slices,
                                averages_away=averages_away,
                                optimizer_away=optimizer_away,
                            )

    def _wished(self, plan: Plan) -> bool:
        used = {str(saver) for saver in savers_of(plan, self.task.batch) if saver != "micro-batch"}
        return self.wishes.use <= used and not used & self.wishes.avoid

    @cached_property
    def heaviest_stage(self) -> Stage:
        """The stage that takes most: estimates are made for it alone."""
        if len(self.task.stages) == 1:
            return self.task.stages[0]
        plan = self._first("all")
        self.predict.ahead([(plan, stage, False) for stage in self.task.stages])
        return max(self.task.stages, key=lambda stage: self.predict(plan, stage, rough=False).reserved_bytes)

    def _first(self, keeping: Keeping, *, slices: bool = False, larger: bool = False) -> Plan:
        """Of the smallest micro-batch (or the next one) with nothing moved away: what estimates come from."""
        smallest = self.micro_batches()
        micro_batch = smallest[min(1, len(smallest) - 1)] if larger else smallest[0]
        return self.plan(micro_batch, keeping, slices=slices, averages_away=False, optimizer_away=False)

    @cached_property
    def _possible(self) -> dict[Keeping, Prediction]:
        """Ways to keep activations that torch does for this family, with what they take at the smallest micro-batch.

        Raises:
            BadInput: torch refuses one that is asked for.
        """
        rough = [self._first(keeping) for keeping in KEEPINGS] if any(self._parts[0].values()) else []
        rough += [self._first("all", slices=True)] if self._parts[1] else []
        full = [self._first("all"), self._first("all", larger=True)]
        self.predict.ahead(
            [*((p, self.heaviest_stage, False) for p in full), *((p, self.heaviest_stage, True) for p in rough)]
        )
        found: dict[Keeping, Prediction] = {}
        for keeping in KEEPINGS:
            if keeping != "all" and not any(self._parts[0].values()):
                continue
            try:
                plan = self._first(keeping)
                found[keeping] = self._fully(plan) if keeping == "all" else self._roughly(plan)
            except RuntimeError as error:
                if keeping == "products" and "keep-products" in self.wishes.use:
                    raise BadInput(
                        f"saver keep-products: these networks write into results that it would keep ({error}); "
                        "ask for recompute, or for none"
                    ) from error
                if keeping != "products":
                    raise
        return found

    @cached_property
    def _plain_roughly(self) -> Prediction:
        """Nothing saved, run as the other ways to keep activations were: what they are compared with."""
        return self._roughly(self._first("all"))

    @cached_property
    def _larger(self) -> Prediction:
        """Nothing saved, at the second smallest micro-batch: shows how things grow."""
        return self._fully(self._first("all", larger=True))

    @cached_property
    def _sliced(self) -> Prediction:
        """Dense layers in slices, at the smallest micro-batch."""
        return self._roughly(self._first("all", slices=True))

    def _fully(self, plan: Plan) -> Prediction:
        """Two micro-batches of a plan, in the stage that takes most."""
        return self.predict(plan, self.heaviest_stage, rough=False)

    def _roughly(self, plan: Plan) -> Prediction:
        """One micro-batch of a plan, with the gradients of those before it, which lie beside it: in half the time."""
        found = self.predict(plan, self.heaviest_stage, rough=True)
        phase = next(
            (p for p in self.heaviest_stage.phases if p.name == found.place.split("/")[0]),
            self.heaviest_stage.phases[-1],
        )
        if plan.micro_batch >= phase.samples(self.task.batch):
            return found
        before = max(0, sum(self._fp32_bytes[name] for name in phase.moving) - found.categories.get("gradients", 0))
        categories = {**found.categories, "gradients": found.categories.get("gradients", 0) + before}
        return replace(
            found,
            live_bytes=found.live_bytes + before,
            reserved_bytes=found.reserved_bytes + before,
            categories=categories,
        )

    @cached_property
    def _fp32_bytes(self) -> Mapping[str, int]:
        """Network -> bytes of its parameters, and as many of its gradients, in fp32."""
        with without_data():
            built = self.task.build()
            return {name: sum(4 * p.numel() for p in network.parameters()) for name, network in built.items()}

    def _estimate(self, plan: Plan) -> _Estimate:
        """What a plan takes, by what those that were run take."""
        keeping: Keeping = "all" if not plan.recompute else ("products" if plan.keep_products else "nothing")
        like, plain = self._possible[keeping], self._plain_roughly
        if keeping == "all":
            like = plain
        smallest = self._first("all").micro_batch
        growth = plan.micro_batch / smallest
        static = sum(like.categories.get(name, 0) for name in STATIC)
        live = static + (like.live_bytes - static) * growth
        work = _times(self._work(plan.micro_batch), _ratio(like.work, plain.work))
        slack = like.reserved_bytes / like.live_bytes
        if plan.in_slices:
            live += min(0, self._sliced.live_bytes - plain.live_bytes)
            slack = min(slack, self._sliced.reserved_bytes / self._sliced.live_bytes)
            work = work + (self._sliced.work - plain.work) * (1 / growth)
        if plan.ema_on_host:
            averages = like.categories.get("averages", 0)
            live, work = live - averages, work + Work(host_bytes=averages)
        if plan.optimizer_on_host:
            statistics = like.categories.get("optimizer", 0)
            updates = max(phase.repeats for phase in self.heaviest_stage.phases)
            live, work = live - statistics, work + Work(host_bytes=2 * statistics * updates)
        return _Estimate(plan, live * slack, self.card.seconds(work, plan.precision))

    def _work(self, micro_batch: int) -> Work:
        """Of a step with nothing saved: a part for each micro-batch, and one for each sample."""
        small, large = self._first("all").micro_batch, self._first("all", larger=True).micro_batch
        count = self.task.batch / micro_batch
        if small == large:
            return self._possible["all"].work
        a, b = (self.task.batch / size for size in (small, large))
        per_micro_batch = (self._possible["all"].work - self._larger.work) * (1 / (a - b))
        return self._possible["all"].work - per_micro_batch * (a - count)

    @cached_property
    def estimates(self) -> Sequence[_Estimate]:
        """Of all plans, fastest first; of equally fast ones the smallest."""
        found = [self._estimate(plan) for plan in self.plans()]
        if not found:
            raise BadInput("no plan uses all savers that are asked for: leave some away")
        return sorted(found, key=lambda each: (each.seconds, each.reserved_bytes))

    def run(self, plan: Plan, most_bytes: int | None = None) -> Choice:
        """Run a plan without data over all stages, from the one that takes most on.

        Args:
            most_bytes: no further stage is run once one reserves more.
        """
        stages = sorted(self.task.stages, key=lambda stage: stage is not self.heaviest_stage)
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
        return Choice(plan, worst, heaviest.work, self._estimate(plan).seconds, whole)

    def within(self, budget_bytes: int) -> Choice | None:
        """The fastest plan whose allocator reserves no more than a budget; None: there is none."""
        tried = 0
        too_large: list[Plan] = []
        hopeful = [each for each in self.estimates if each.reserved_bytes <= HOPE * budget_bytes]
        for at, each in enumerate(hopeful):
            if any(_larger_than(each.plan, other) for other in too_large):
                continue
            self.predict.ahead([(other.plan, self.heaviest_stage, False) for other in hopeful[at : at + 2]])
            choice = self.run(each.plan, budget_bytes)
            if choice.prediction.reserved_bytes <= budget_bytes:
                return choice
            too_large.append(each.plan)
            tried += 1
            if tried == MOST_TRIED:
                break
        least = self.least()
        return least if least.prediction.reserved_bytes <= budget_bytes else None

    def least(self) -> Choice:
        """The plan that promises to take least."""
        return self.run(min(self.estimates, key=lambda each: (each.reserved_bytes, each.seconds)).plan)

    def least_bytes(self, like: Stage) -> int:
        """About what the smallest plan reserves in the stage that is called like another: every saving at once."""
        stage = next((each for each in self.task.stages if each.name == like.name), self.task.stages[-1])
        thriftiest = self.plan(
            self.micro_batches()[0],
            "nothing",
            slices=True,
            averages_away=self.on_card and bool(self.task.averaged),
            optimizer_away=self.on_card,
        )
        return self.predict(thriftiest, stage, rough=False).reserved_bytes

    @property
    def plain(self) -> Prediction:
        """What nothing saved takes, at the smallest micro-batch."""
        return self._possible["all"]

    @cached_property
    def parameter_bytes(self) -> int:
        """Of the fp32 parameters of all networks."""
        return sum(self._fp32_bytes.values())

    def ladder(self) -> list[Choice]:
        """Plans from the fastest to the smallest: each takes less than any faster one, by estimate; those are run."""
        rungs: list[_Estimate] = []
        for each in self.estimates:
            if not rungs or each.reserved_bytes < 0.93 * rungs[-1].reserved_bytes:
                rungs.append(each)
        chosen = [self.run(each.plan) for each in rungs]
        falling: list[Choice] = []
        for choice in sorted(chosen, key=lambda c: c.seconds):
            if not falling or choice.prediction.reserved_bytes < falling[-1].prediction.reserved_bytes:
                falling.append(choice)
        return falling


def _larger_than(plan: Plan, other: Plan) -> bool:
    """Whether a plan is another one at a larger micro-batch: what that takes, this takes at least."""
    return plan.micro_batch > other.micro_batch and replace(plan, micro_batch=other.micro_batch) == other


def _ratio(a: Work, b: Work) -> Work:
    return Work(*(x / y if y else 1.0 for x, y in zip(astuple(a), astuple(b), strict=True)))


def _times(a: Work, factors: Work) -> Work:
    return Work(*(x * y for x, y in zip(astuple(a), astuple(factors), strict=True)))
