"""Which share of a batch each rank takes: as asked, or as a run had it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frugan.api.progress import Say
from frugan.api.setup import training_of
from frugan.api.train.plan_in_force import TrainingPlanner
from frugan.engine.plan import Plan
from frugan.engine.ranks.asked_shares import check_shares, parse_shares
from frugan.engine.ranks.ranks import Ranks
from frugan.recipe.recipe import Recipe

SHARES = "shares"
"""What a checkpoint keeps of them."""


@dataclass
class ShareChoice:
    """The shares of a run's ranks.

    Attributes:
        samples: of each rank; None: all alike.
        plans: of each rank, as JSON; empty: all have the first one's.
    """

    samples: tuple[int, ...] | None = None
    plans: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, words: str | None, recipe: Recipe, ranks: Ranks, saved: Mapping[str, Any], say: Say) -> "ShareChoice":
        """Choose.

        Args:
            words: as asked: "equal" or a number for each rank; None: as the run had it.
            saved: the JSON state of the checkpoint that is resumed.

        Raises:
            BadInput: what is asked for does not come out in whole groups.
        """
        batch, group = recipe.training.batch, recipe.training.normalisation_batch or 1
        asked = None if words is None else parse_shares(words, ranks.size)
        kept = saved.get(SHARES)
        if ranks.size == 1:
            if words is not None:
                say(f"--shares {words} is ignored: this process trains alone")
            return cls()
        if isinstance(asked, tuple):
            check_shares(asked, batch, group)
            samples = tuple(share * batch // sum(asked) for share in asked)
            say(f"shares: {_shown(samples)} samples, as asked for")
            same = kept is not None and kept["samples"] == list(samples) and kept["devices"] == list(ranks.devices)
            return cls(samples, kept["plans"] if kept is not None and same else [])
        if asked == "equal":
            return cls()
        if kept is not None and kept["devices"] == list(ranks.devices):
            say(f"shares: {_shown(kept['samples'])} samples, as the run had them here; override with --shares equal")
            return cls(tuple(kept["samples"]), kept["plans"])
        if kept is not None:
            say("shares: the run was on other cards or ranks, and its shares were for those")
        return cls()

    def led_by(self, plan: Plan) -> None:
        """Forget the plans where the first rank has made another one than it had: all others then do so too."""
        if self.plans and self.plans[0] != plan.as_json():
            self.plans = []

    def kept(self, ranks: Ranks) -> dict[str, Any]:
        """For checkpoints to keep."""
        if self.samples is None:
            return {}
        return {SHARES: {"samples": list(self.samples), "plans": self.plans, "devices": list(ranks.devices)}}


def own_plan(planner: TrainingPlanner, ranks: Ranks, common: Plan, kept: Mapping[str, Any] | None = None) -> Plan:
    """The plan of one rank for its own share on its own card; where ranks share normalisation groups, be it in
    one phase that sees few samples, all have one.

    Args:
        common: the first rank's.
        kept: what this rank had when the run was left; None: there is none.

    Raises:
        BadInput: it does not fit there.
    """
    training = training_of(planner.recipe)
    batch, group = training.batch, training.normalisation_batch or 1
    planner.share, planner.common = ranks.share(batch, group), common
    if any(ranks.any_parts(phase.samples(batch), phase.group(group)) for phase in training.phases):
        return common
    if kept is not None:
        return Plan.from_json(kept, planner.precision)
    return planner.first(training, None)[0]


def _shown(samples: Sequence[int]) -> str:
    return ", ".join(map(str, samples))
