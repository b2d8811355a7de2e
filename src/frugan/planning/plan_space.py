"""The plans that there are for a training: every combination of savings that the constraints leave.

Each saving changes cost, never the result beyond rounding.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Literal, get_args

from frugan.accelerator.precision import Precision
from frugan.engine.plan import Plan
from frugan.engine.run.training import Training
from frugan.engine.state.gradients import LARGE_ELEMENTS, sliceable
from frugan.errors import BadInput

SaverName = Literal[
    "micro-batch",
    "keep-products",
    "recompute",
    "offload",
    "dense-slices",
    "ema-on-host",
    "shard-optimizer",
    "optimizer-on-host",
]


SAVERS: tuple[SaverName, ...] = get_args(SaverName)
"""In the order in which reports give them."""


def savers_of(plan: Plan, batch: int) -> tuple[SaverName, ...]:
    """Savings that a plan uses."""
    used: dict[SaverName, bool] = {
        "micro-batch": plan.micro_batch < batch,
        "keep-products": bool(plan.recompute) and plan.keep_products,
        "recompute": bool(plan.recompute) and not plan.keep_products,
        "offload": bool(plan.recompute) and plan.offload,
        "dense-slices": bool(plan.in_slices),
        "ema-on-host": plan.ema_on_host,
        "shard-optimizer": plan.shard_optimizer,
        "optimizer-on-host": plan.optimizer_on_host,
    }
    return tuple(name for name in SAVERS if used[name])


Keeping = Literal["all", "products", "nothing", "one ahead", "nothing here"]
"""What is kept of a block's activations; "nothing here": what the block is given is not kept on the card either; "one
ahead": but for that of the block which is next in backward."""

KEEPINGS: tuple[Keeping, ...] = get_args(Keeping)
OFFLOADED = KEEPINGS[3:]


@dataclass(frozen=True)
class PlanConstraints:
    """Savings and micro-batch that a plan must have, or must not."""

    micro_batch: int | None = None  # samples in one forward; None: to be chosen
    use: Collection[str] = ()  # savings that it must use
    avoid: Collection[str] = ()  # savings that it must not

    def __post_init__(self) -> None:
        for name, savings in (("use", self.use), ("avoid", self.avoid)):
            if isinstance(savings, str):
                raise BadInput(f"{name}={savings!r}: expected a list of memory savings, such as [{savings!r}]")
        if "micro-batch" in {*self.use, *self.avoid}:
            raise BadInput("the micro-batch is asked for by its size: --micro-batch, and not by --use or --avoid")
        known = [name for name in SAVERS if name != "micro-batch"]
        for name in sorted({*self.use, *self.avoid} - set(known)):
            raise BadInput(f"memory saving {name!r} is unknown; there are {', '.join(known)}")
        for name in sorted({*self.use} & {*self.avoid}):
            raise BadInput(f"memory saving {name} is in both --use and --avoid: leave out one of the two")
        if {"recompute", "keep-products"} <= {*self.use}:
            raise BadInput(
                "memory savings recompute and keep-products contradict each other: a block that makes everything again "
                "keeps no products; ask for one of them"
            )
        if "offload" in self.use and (unmet := {"recompute"} & {*self.avoid} | {"keep-products"} & {*self.use}):
            raise BadInput(f"memory saving offload keeps recomputed blocks' inputs: it contradicts {unmet.pop()}")


@dataclass(frozen=True)
class PlanSpace:
    """All plans of a training."""

    training: Training  # what this card does of what is trained
    precision: Precision  # of the working weights
    constraints: PlanConstraints = field(default_factory=PlanConstraints)  # what is asked of plans
    on_card: bool = True  # False: host and device are one, so nothing is won by moving state

    @cached_property
    def _parts(self) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[str, ...]], Mapping[str, int]]:
        """Blocks that may be recomputed, dense layers that may be worked in slices, and networks' gradients' bytes."""
        networks = self.training.build("meta")
        large = {name: layers for name, network in networks.items() if (layers := sliceable(network))}
        sizes = {
            name: sum(4 * p.numel() for p in network.parameters() if p.requires_grad)
            for name, network in networks.items()
        }
        return self.training.recomputable(networks), large, sizes

    @cached_property
    def costly_blocks(self) -> Mapping[str, Sequence[str]]:
        """Blocks that may be recomputed, those first whose recomputation costs most for the memory that it saves.

        Those are the ones with the most weights: of a map with C channels, a layer with W weights multiplies W times a
        pixel and keeps C numbers, and W grows with the square of C.
        """
        networks = self.training.build("meta")

        def weights(network: str, block: str) -> int:
            return sum(p.numel() for p in networks[network].get_submodule(block).parameters())

        return {
            network: sorted(blocks, key=lambda block: -weights(network, block))
            for network, blocks in self.blocks.items()
        }

    @property
    def blocks(self) -> Mapping[str, tuple[str, ...]]:
        """Network -> blocks that may be recomputed, of the networks that have any."""
        return {network: blocks for network, blocks in self._parts[0].items() if blocks}

    @property
    def has_large_layers(self) -> bool:
        """Whether there is any dense layer worth slicing."""
        return bool(self._parts[1])

    @property
    def fp32_bytes(self) -> Mapping[str, int]:
        """Network -> bytes of the gradients that training makes for it, in fp32."""
        return self._parts[2]

    @property
    def keepings(self) -> tuple[Keeping, ...]:
        """Ways to keep activations that make a difference here."""
        if not self.blocks:
            return KEEPINGS[:1]
        return KEEPINGS if self.on_card else KEEPINGS[:3]

    def micro_batches(self) -> list[int]:
        """Micro-batches worth trying, smallest first: whole groups that split the batch as evenly as they can."""
        groups = self.training.batch // self.training.group
        if self.constraints.micro_batch is not None:
            return [self.constraints.micro_batch]
        counts = sorted({*(2**i for i in range(groups.bit_length())), *(3 * 2**i for i in range(groups.bit_length()))})
        return sorted(
            {-(-groups // count) * self.training.group for count in counts if count <= groups} | {self.training.group}
        )

    def plan(
        self,
        micro_batch: int,
        keeping: Keeping,
        *,
        slices: bool = False,
        averages_away: bool = False,
        shards: bool = False,
        optimizer_away: bool = False,
    ) -> Plan:
        """A plan of the given savings."""
        blocks, large, _ = self._parts
        return Plan(
            micro_batch=micro_batch,
            precision=self.precision,
            recompute={} if keeping == "all" else blocks,
            keep_products=keeping == "products",
            offload=keeping in OFFLOADED,
            bring_ahead=keeping == "one ahead",
            in_slices=large if slices else {},
            ema_on_host=averages_away,
            optimizer_on_host=optimizer_away,
            shard_optimizer=shards,
        )

    def thriftiest(self) -> Plan:
        """Every saving at once that is not ruled out."""
        avoid = {*self.constraints.avoid}
        kept = {keeping: {"recompute", "offload"} for keeping in OFFLOADED}
        kept |= {"nothing": {"recompute"}, "products": {"keep-products"}}
        keeping: Keeping = next((k for k in reversed(self.keepings) if not kept.get(k, set()) & avoid), "all")
        return self.plan(
            self.micro_batches()[0],
            keeping,
            slices="dense-slices" not in avoid,
            averages_away=self.on_card and bool(self.training.averaged) and "ema-on-host" not in avoid,
            shards=self.training.ranks > 1 and "shard-optimizer" not in avoid,
            optimizer_away=self.on_card and "optimizer-on-host" not in avoid,
        )

    def every_plan(self) -> Iterator[Plan]:
        """Every combination of savings, over all micro-batches, whatever the constraints."""
        training, away = self.training, self.on_card
        can = (self.has_large_layers, away and bool(training.averaged), training.ranks > 1, away)
        either = [(False, True) if possible else (False,) for possible in can]
        for micro_batch, keeping in product(self.micro_batches(), self.keepings):
            for slices, averages_away, shards, optimizer_away in product(*either):
                yield self.plan(
                    micro_batch,
                    keeping,
                    slices=slices,
                    averages_away=averages_away,
                    shards=shards,
                    optimizer_away=optimizer_away,
                )

    def allowed_plans(self) -> Iterator[Plan]:
        """Every plan that the constraints leave.

        Raises:
            BadInput: a saving is asked for that there is nothing for.
        """
        self.check()
        for plan in self.every_plan():
            used = {str(saver) for saver in savers_of(plan, self.training.batch) if saver != "micro-batch"}
            if {*self.constraints.use} <= used and not used & {*self.constraints.avoid}:
                yield plan

    def check(self) -> None:
        """Refuse a saving that there is nothing for.

        Raises:
            BadInput: one is asked for.
        """
        for name, missing in self._missing().items():
            if name in self.constraints.use:
                raise BadInput(f"no plan uses all savers that are asked for: {name} has no use here, {missing}")

    def _missing(self) -> dict[str, str]:
        """Return savings that there is nothing for, and why."""
        no_blocks = "because these networks have no blocks to recompute"
        one_memory = "because on a CPU host and device are one memory"
        reasons: dict[str, str] = {}
        if not self.blocks:
            reasons |= dict.fromkeys(("recompute", "keep-products", "offload"), no_blocks)
        if not self.has_large_layers:
            reasons["dense-slices"] = f"because no plain dense layer has {LARGE_ELEMENTS:,} weights or more"
        if not self.training.averaged:
            reasons["ema-on-host"] = "because this model has no EMA"
        if self.training.ranks == 1:
            reasons["shard-optimizer"] = "because there is one rank"
        if not self.on_card:
            reasons |= dict.fromkeys(("ema-on-host", "optimizer-on-host", "offload"), one_memory)
        return reasons


def keeping_of(plan: Plan) -> Keeping:
    """Return what a plan keeps of a block's activations."""
    if not plan.recompute:
        return "all"
    if plan.keep_products:
        return "products"
    if plan.offload:
        return "one ahead" if plan.bring_ahead else "nothing here"
    return "nothing"
