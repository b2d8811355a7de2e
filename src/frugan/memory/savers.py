"""The savings that a plan can be made of: each changes cost, never the result beyond rounding."""

from typing import Literal, get_args

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
