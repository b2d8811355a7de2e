"""The plan that a training has in force: gone on with, made by the planner, or made smaller when memory runs out."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.device import catch_out_of_memory, release_memory
from frugan.accelerator.precision import Precision
from frugan.engine.plan import Plan, check_micro_batch
from frugan.engine.ranks.place import Share, deal
from frugan.errors import BadInput, TrainingFailed
from frugan.planning.links import bytes_between
from frugan.planning.plan_space import PlanConstraints
from frugan.setup.devices import card_identity, explain_out_of_memory, host_bytes
from frugan.stepmemory.calibration import choose_card
from frugan.stepmemory.cards import Budget, Card, free_bytes, outside_bytes, room_bytes, spills
from frugan.training.recovery import BATCH
from frugan.training.run import TrainRun
from frugan.wording import GIB, count, first_line, parse_size, show_size, typed_size

if TYPE_CHECKING:
    from frugan.planning.candidate import PlanCandidate
    from frugan.planning.plan_report import PlanReport
    from frugan.planning.planner import Planner

Loaded = TypeVar("Loaded")

STEP_DOWN = 0.92
"""When memory runs out, the next plan is predicted to reserve at most this share of what the last one was."""

ON_HOST = frozenset({"ema-on-host", "optimizer-on-host", "offload"})
"""Savings that keep something in the computer's memory."""
MOST_OF_HOST = 0.75
"""Share of it that a plan may keep there: the program, its pictures and the system want the rest."""
MOST_GROWTH_BYTES = GIB
"""Assumed growth of CUDA's context during training, with NCCL's memory; more is another program's."""


@dataclass
class TrainingPlanner:
    """Chooses plans for a run on the device that trains it.

    `Planner` finds plans for a card that need not be there. This adds what only a running training knows: the plan to
    resume, the shares of its ranks, what is free at this moment, and what ran out. On a processor without a budget
    there is nothing to choose.
    """

    run: TrainRun  # the run as it was requested; it is told of every choice
    device: torch.device  # device that trains
    precision: Precision  # precision of the working weights
    asked_bytes: int | None = None  # budget that was asked for, now or when the run was begun; None: none was
    common: Plan | None = None  # a plan that shares out the optimizers' state as all ranks must; None: this one decides
    # budget that is kept to, and what other programs are taken to have had by then; None: there is no cap
    _held: tuple[int, int] | None = None

    @property
    def _plan_share(self) -> Share:
        return self._share(self.run.recipe.training.normalisation_batch or 1)

    def _share(self, group: int) -> Share:
        ranks, batch = self.run.ranks, self.run.recipe.training.batch
        return deal(batch, group, ranks.size)[0] if ranks.proportions is None else ranks.share(batch, group)

    def first(self, saved: Mapping[str, Any] | None) -> tuple[Plan, "PlanReport | None"]:
        """Return the plan to start or resume with, and the report of the search if there was one.

        Args:
            saved: the JSON state of the checkpoint that is resumed; None: a new run.

        Raises:
            BadInput: what is asked for contradicts itself, changes the result, or fits no plan.
        """
        options, training = self.run.options, self.run.training
        if options.shard_optimizer and self.run.ranks.size == 1:
            self.run.choose_here("--shard-optimizer is ignored: this process trains alone")
        kept_bytes = None if saved is None else saved.get("memory_budget_bytes")
        if saved is not None and self._goes_on(saved) and not self._constrains_plan(kept_bytes):
            return self._used_plan(saved), None
        if saved is None or self._is_other_device(saved):
            kept_bytes = None  # it was for another card
        if not self._on_card and options.memory is None and kept_bytes is None and not options.savers:
            return self._only_plan(), None
        self._check_micro_batch(self._plan_share, training.group)
        return self._search(kept_bytes)

    def _constrains_plan(self, kept_bytes: int | None) -> bool:
        """Return whether options ask for another plan than the run's; a repeated command has the run's budget."""
        options = self.run.options
        is_repeated = options.memory is not None and parse_size(options.memory) == kept_bytes
        return (replace(options, memory=None) if is_repeated else options).constrains_plan

    def _used_plan(self, saved: Mapping[str, Any]) -> Plan:
        """Return the plan of a checkpoint's run, to go on with it.

        Raises:
            BadInput: its micro-batch does not fit the recipe any more.
        """
        plan, training = Plan.from_json(saved["plan"], self.precision), self.run.training
        if self._plan_share.team is None:
            check_micro_batch(plan.micro_batch, training.batch, training.group)
        self.run.choose_here("plan: the one that this run has used; another --memory or --micro-batch makes a new one")
        self.cap(saved.get("memory_budget_bytes"))
        return plan

    def _check_micro_batch(self, share: Share, group: int) -> None:
        """Refuse a micro-batch that would change the result.

        Raises:
            BadInput: it would, or ranks share normalisation groups.
        """
        requested = self.run.options.micro_batch
        if requested is None:
            return
        if share.team is not None:
            raise BadInput(
                f"--micro-batch {requested}: {len(share.team)} ranks share a normalisation group of {share.group}, and "
                f"each takes its part of it in one forward, here {len(share.samples)}; leave out --micro-batch"
            )
        # what is asked for holds for all ranks: it may be as large as the largest share
        most = len(share.samples) if self.run.ranks.proportions is None else self.run.training.batch
        check_micro_batch(requested, most, group)

    def _only_plan(self) -> Plan:
        """The plan on a CPU without a budget: there is one memory, and nothing has to be searched for."""
        training, ranks = self.run.training, self.run.ranks.size
        share, whole, group = self._share(training.group), training.batch, training.group
        self._check_micro_batch(share, group)
        micro_batch, requested = len(share.samples), self.run.options.micro_batch
        if share.team is not None:
            self.run.choose_here(
                f"micro-batch: {micro_batch} of a normalisation group of {share.group} that {len(share.team)} ranks "
                f"share, of batch {whole} on {ranks}"
            )
        else:
            batch = micro_batch
            micro_batch = min(requested or (group if group > 1 else batch), batch)
            of = "" if ranks == 1 else f" on a rank, of {whole} on {ranks}"
            parts = "at once" if micro_batch == batch else f"{micro_batch} at a time"
            fewest = "; fewer would change what is learned" if group == micro_batch > 1 else ""
            why = "asked for" if requested is not None else f"override with --micro-batch{fewest}"
            self.run.choose_here(f"batch: {batch}{of}, {parts} ({why})")
        shard = self.run.options.shard_optimizer if self.common is None else self.common.shard_optimizer
        return Plan(
            micro_batch,
            self.precision,
            training.recomputable(training.build("meta")) if self.run.options.recompute else {},
            ema_on_host=self.run.options.ema_on_host,
            shard_optimizer=shard and ranks > 1,
        )

    def _search(self, kept_bytes: int | None) -> tuple[Plan, "PlanReport"]:
        """Choose a plan.

        Args:
            kept_bytes: the budget that holds where none is asked for; None: what is free.
        """
        options = self.run.options
        if options.ema_on_host and not self._averages_can_move:
            self.run.choose_here("--ema-on-host is ignored: there is no EMA to move, or no card to move it from")
        asked_bytes = kept_bytes if options.memory is None else parse_size(options.memory)
        budget_bytes = asked_bytes
        if budget_bytes is None and self._on_card:
            usable, _ = free_bytes(self.device)
            budget_bytes = usable + self._card.context_bytes
            self.run.choose_here(
                f"memory: {show_size(budget_bytes)}, what is free less a margin; override with --memory"
            )
        with self.planner as planner:
            report = self._within_host_memory(planner, planner.report(budget_bytes), budget_bytes)
        if self.run.is_first:  # for the report: all of it at once is too much to read at the start
            for line in report.decisions:
                self.run.log.write("choice", line=line)
        chosen = report.chosen
        if not report.fits and budget_bytes is not None:
            change = f"; with {' '.join(report.nearest_change)} it would fit" if report.nearest_change else ""
            raise BadInput(
                f"this recipe does not fit {show_size(budget_bytes)}: the smallest plan takes "
                f"{typed_size(chosen.peak_bytes)}{change}"
            )
        savers, at_a_time = ", ".join(chosen.savers), f"{chosen.micro_batch} of {self.run.training.batch} at a time"
        costs = f"{savers}, for {chosen.extra_time:.0%} more time" if savers else "no memory savings needed"
        self.run.choose_here(
            f"plan: {at_a_time}, {show_size(chosen.peak_bytes)} predicted, {costs} (`frugan plan` and the run's report "
            "give the reasons)"
        )
        self.cap(asked_bytes)
        return report.chosen.plan, report

    def _within_host_memory(self, planner: "Planner", report: "PlanReport", budget_bytes: int | None) -> "PlanReport":
        """A plan that keeps no more beside the card than the computer has: pinned memory cannot be swapped.

        Raises:
            BadInput: what was asked for keeps more.
        """
        has = host_bytes() if self._on_card else None
        if has is None or (kept := report.chosen.host_bytes) <= MOST_OF_HOST * has:
            return report
        there = f"{show_size(kept)} in the computer's memory, most of it pinned, and that has {show_size(has)}"
        if requested := ON_HOST & {*planner.constraints.use}:
            raise BadInput(
                f"{', '.join(sorted(requested))}: this plan would keep {there}; leave it out, or avoid the others of "
                f"{', '.join(sorted(ON_HOST))}"
            )
        self.run.choose_here(f"host memory: the plan would keep {there}: looking for one that keeps nothing there")
        without = replace(planner.constraints, avoid={*planner.constraints.avoid, *ON_HOST})
        return planner.constrained_by(without).report(budget_bytes)

    def _exceeds_host_memory(self, choice: "PlanCandidate") -> bool:
        """Return whether a plan keeps more in host memory than can be pinned."""
        has = host_bytes() if self._on_card else None
        return has is not None and choice.prediction.host_bytes > MOST_OF_HOST * has

    def own_plan(self, common: Plan, kept: Mapping[str, Any] | None) -> Plan:
        """The plan for this rank's own share on its own card; where ranks share normalisation groups, be it in one
        phase that sees few samples, all have one.

        Args:
            common: the first rank's.
            kept: what this rank had when the run was left; None: there is none.

        Raises:
            BadInput: it does not fit there.
        """
        training, self.common = self.run.training, common
        batch, group = training.batch, training.normalisation_batch or 1
        if any(self.run.ranks.any_parts(phase.samples(batch), phase.group(group)) for phase in training.phases):
            return common
        return self.first(None)[0] if kept is None else Plan.from_json(kept, self.precision)

    def load(self, load: Callable[[Plan], Loaded], plan: Plan) -> tuple[Loaded, Plan]:
        """Load with a plan, and once more with a smaller one if memory runs out.

        Args:
            load: makes everything anew each time; what it had made when it failed goes.

        Returns:
            What was loaded, and the plan that it was loaded by.

        Raises:
            TrainingFailed: no plan is smaller, or memory ran out again.
        """
        with catch_out_of_memory() as messages:
            loaded = load(plan)
        if not messages:
            return loaded, plan
        release_memory(self.device)
        # what stays on the card between steps goes from it
        away = {"optimizer-on-host"} | ({"ema-on-host"} if self.run.recipe.kind.averaged() else set())
        use = away - {*self.run.options.avoid} if self._on_card else set[str]()
        plan = self._smaller(plan, "while networks and their state were loaded", messages[0], use=use)
        with explain_out_of_memory(self.device, "the networks and their state were loaded by the smaller plan as well"):
            return load(plan), plan

    def next(self, plan: Plan, phase: str, message: str) -> Plan:
        """Return a plan that takes less memory than one that ran out of it.

        Raises:
            TrainingFailed: there is none.
        """
        return self._smaller(plan, f"in phase {phase}", message, ". Nothing was changed by it")

    def _smaller(self, plan: Plan, where: str, message: str, lost: str = "", use: Collection[str] = ()) -> Plan:
        """The fastest plan that takes less, and no more than there is room for now.

        Raises:
            TrainingFailed: there is none.
        """
        reason = first_line(message)
        self.run.choose_here(f"out of memory {where}: {reason}{lost}; looking for a smaller plan")
        # the savings that were asked for did not suffice: drop them, except those that all ranks share
        shared_savings, avoid = self._sharding_savings(plan)
        room = self._room_bytes()
        constraints = PlanConstraints(use={*use, *shared_savings}, avoid={*self.run.options.avoid, *avoid})
        with self.planner.constrained_by(constraints) as planner:
            choice, now = planner.smaller(plan, STEP_DOWN, room)
        if choice is not None and self._exceeds_host_memory(choice):
            constraints = PlanConstraints(use={*shared_savings}, avoid={*constraints.avoid, *ON_HOST})
            with self.planner.constrained_by(constraints) as planner:
                choice, now = planner.smaller(plan, STEP_DOWN, room)
        if choice is None:
            free = "" if room is None else f", and there is room for {show_size(room)}"
            raise TrainingFailed(
                f"memory ran out {where} and no plan takes less{free} ({reason}). Close other programs that use the "
                "card, or start a new run with a smaller recipe: `frugan plan` says which would fit"
            )
        self.run.choose_here(
            f"plan from here on: micro-batch {choice.plan.micro_batch}, predicted to reserve "
            f"{show_size(choice.prediction.reserved_bytes)} instead of {show_size(now)}; the batch stays the same"
        )
        return choice.plan

    def _sharding_savings(self, plan: Plan | None) -> tuple[set[str], set[str]]:
        """Return savings to use and to avoid so that optimizer state is sharded as in a plan; None: no constraint."""
        both = {"shard-optimizer"} if plan is not None and self.run.ranks.size > 1 else set[str]()
        return (both, set()) if plan is not None and plan.shard_optimizer else (set(), both)

    def _room_bytes(self) -> int | None:
        """Return the bytes that a step's tensors may reserve at present; None: the device does not say."""
        budget = None if self.asked_bytes is None else Budget.on(self._card, self.asked_bytes).step_bytes
        if not self._on_card:
            return budget
        room = room_bytes(self.device) - self._card.workspace_bytes
        room -= bytes_between(self.run.ranks.size).get("gradient buckets", 0)
        return room if budget is None else min(room, budget)

    @property
    def _on_card(self) -> bool:
        return accelerator_of(self.device).is_card

    @property
    def _averages_can_move(self) -> bool:
        return self._on_card and bool(self.run.recipe.kind.averaged())

    @cached_property
    def _card(self) -> Card:
        card = choose_card(None, self.device)
        return card if self._on_card else replace(card, context_bytes=0, workspace_bytes=0, name="this CPU")

    @property
    def _plan_constraints(self) -> PlanConstraints:
        """Constraints on plans from the options, as far as they apply on this device."""
        options = self.run.options
        flags = {
            "recompute": options.recompute,
            "ema-on-host": options.ema_on_host and self._averages_can_move,
            "shard-optimizer": options.shard_optimizer and self.run.ranks.size > 1,
        }
        shared_out, whole = self._sharding_savings(self.common)
        # no more than this rank's share, which may be the smallest
        micro_batch = None if options.micro_batch is None else min(options.micro_batch, len(self._plan_share.samples))
        use = {*options.use, *(name for name, is_set in flags.items() if is_set), *shared_out}
        return PlanConstraints(micro_batch, use, {*options.avoid, *whole})

    @cached_property
    def planner(self) -> "Planner":
        """Planner for this rank's share of the batch."""
        from frugan.planning.planner import Planner  # noqa: PLC0415  (a processor's plan needs no search)

        # The recipe as it would be if every rank had this one's share.
        recipe, share, ranks = self.run.recipe, self._plan_share, self.run.ranks.size
        training, samples = recipe.training, len(share.samples)
        group = training.normalisation_batch if share.team is None else samples
        as_here = training.model_copy(update={"batch": samples * ranks, "normalisation_batch": group})
        return Planner(
            recipe=recipe.model_copy(update={"training": as_here}),
            card=self._card,
            precision=self.precision,
            target="card" if self._on_card else "cpu",
            constraints=self._plan_constraints,
            name=self.run.name,
            gpus=ranks,
            in_parts=share.team is not None,
        )

    def _is_other_device(self, saved: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint was written on another device or card."""
        other_card = self._on_card and saved.get("card") != card_identity(self.device)
        return bool(saved.get("device", self.device.type) != self.device.type or other_card)

    def _goes_on(self, saved: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint's plan applies to this device and precision."""
        if "micro_batch" not in saved["plan"]:
            return False  # a converted model has no plan yet
        batch = self.run.recipe.training.batch
        if saved.get(BATCH, batch) != batch:
            self.run.choose_here("plan: a new one, because the batch is another")
            return False
        ranks, card = int(saved.get("ranks", 1)), saved.get("card")
        if ranks != self.run.ranks.size:
            why = f", because the batch is on {count(self.run.ranks.size, 'process')} now, and was on {ranks}"
        elif saved.get("device", self.device.type) != self.device.type:
            return False
        elif card != card_identity(self.device) and self._on_card:
            was = "a card that it did not note"
            if card is not None:
                was = f"{card['name']} with {show_size(card['memory_bytes'])}"
            dropped = saved.get("memory_budget_bytes") and self.run.options.memory is None
            budget = "; the budget for the old card no longer applies" if dropped else ""
            why = f", because the run was on {was} so far, and this is another one{budget}"
        elif saved["plan"]["precision"] != self.precision.name and self._on_card:
            why = f" for {self.precision.name}; it was for {saved['plan']['precision']}"
        else:
            return True
        self.run.choose_here(f"plan: made again{why}")
        return False

    def cap(self, budget_bytes: int | None) -> None:
        """Let this process have no more of a card than its budget, and where a full card spills no more than is free.

        Args:
            budget_bytes: asked for, now or when the run was begun; None: nothing was.
        """
        self.asked_bytes = budget_bytes
        if not self._on_card:
            if self.run.options.memory is not None:
                self.run.choose_here(
                    "a CPU's memory cannot be capped: the plan keeps to the budget, nothing enforces it"
                )
            return
        card = self._card
        accelerator_of(self.device).limit(None)  # an earlier training may have left one
        if budget_bytes is None and not spills():
            return
        usable, total = free_bytes(self.device)  # with CUDA's libraries loaded, which the card's figure counts
        if budget_bytes is None:  # there a full card spills, and crawls
            budget_bytes = usable + card.context_bytes
        self._held = min(budget_bytes, total), max(0, outside_bytes(self.device) - card.context_bytes)
        Budget.on(card, self._held[0]).enforce(self.device)
        self.run.choose_here(f"cap: torch may take {show_size(self._held[0] - card.context_bytes)} on this card")

    def hold_to_budget(self) -> None:
        """Lower the cap where CUDA's context has come to take more than the card's figure: the budget is for all of it.

        Kernels are loaded when they are first used, so it grows until each phase has run. What was taken outside
        torch's allocator when the cap was set, beyond that figure, is held to be other programs'; what was added since
        is not.
        """
        if self._held is None:
            return
        budget_bytes, others_bytes = self._held
        card, accelerator = self._card, accelerator_of(self.device)
        context_bytes = outside_bytes(self.device) - others_bytes
        if context_bytes <= card.context_bytes:
            return
        if context_bytes - card.context_bytes > MOST_GROWTH_BYTES:  # no context does: another program has come
            self._held = budget_bytes, others_bytes + context_bytes - card.context_bytes
            self.run.choose_here(
                f"cap: left as it is; {show_size(context_bytes - card.context_bytes)} more are taken on this card "
                "outside of torch than when it was set, so another program has come"
            )
            return
        self._card = replace(card, context_bytes=context_bytes)
        self.planner = replace(self.planner, card=self._card, known=self.planner.store)
        Budget.on(self._card, budget_bytes).enforce(self.device)
        most = budget_bytes - context_bytes
        self.run.choose_here(
            f"cap: torch may take {show_size(most)} on this card from here on: CUDA's context has grown to "
            f"{show_size(context_bytes)}, from the {show_size(card.context_bytes)} that were planned with"
        )
        if accelerator.reserved_bytes > most:
            release_memory(self.device)
