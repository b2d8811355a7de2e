"""The savings that a plan can be made of: each changes cost, never the result beyond rounding."""

from dataclasses import dataclass
from typing import Literal

from frugan.engine.plan import Plan

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


@dataclass(frozen=True)
class Saver:
    """A saving.

    Attributes:
        name: as options and reports give it.
        saves: what of.
        costs: what for.
    """

    name: SaverName
    saves: str
    costs: str


SAVERS: tuple[Saver, ...] = (
    Saver("micro-batch", "activations of all but a few samples", "smaller products, more kernels to start"),
    Saver("keep-products", "activations that are cheap to make again", "traffic, no products"),
    Saver("recompute", "all activations within blocks", "most of a forward again"),
    Saver("offload", "what recomputed blocks are given", "its way to host memory and back"),
    Saver("dense-slices", "working copies and half gradients of large dense layers", "a second cast, more kernels"),
    Saver("ema-on-host", "the averaged weights", "a copy to the host each step"),
    Saver(
        "shard-optimizer",
        "the optimizers' state of other cards' weights",
        "weights from card to card at each update",
    ),
    Saver("optimizer-on-host", "the optimizers' state", "its way to the card and back at each update"),
)
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
    return tuple(saver.name for saver in SAVERS if used[saver.name])
