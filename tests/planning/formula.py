"""Predictions by a formula instead of a run, so that many questions can be asked."""

from collections.abc import Callable

from frugan.engine.plan import Plan
from frugan.engine.run.training import Stage, Training
from frugan.planning.plan_space import keeping_of
from frugan.planning.prediction import Prediction, Target
from frugan.stepmemory.work import Work

MIB = 2**20

PredictionsBy = Callable[[Callable[..., Prediction]], None]
"""The fixture `predictions_by`."""


def prediction(
    plan: Plan, stage: Stage, batch: int, *, rough: bool, sample_bytes: int = MIB, blocks: int | None = None
) -> Prediction:
    """Return it; `blocks` is the number of those that may be recomputed, None where all or none are."""
    kept = {"all": 1.0, "products": 0.6, "nothing": 0.25, "one ahead": 0.12, "nothing here": 0.1}[keeping_of(plan)]
    share = sum(map(len, plan.recompute.values())) / blocks if blocks is not None else 1.0
    kept = 1 - share * (1 - kept)
    parts = {
        "parameters": 40 * MIB,
        "gradients": 0 if rough else 40 * MIB,
        "averages": 0 if plan.ema_on_host else 20 * MIB,
        "optimizer": 0 if plan.optimizer_on_host else (40 if plan.shard_optimizer else 80) * MIB,
        "saved activations": int(plan.micro_batch * sample_bytes * kept),
    }
    live = sum(parts.values())
    macs = 1e12 * (1 + share * {"all": 0.0, "products": 0.0}.get(keeping_of(plan), 0.3))
    moved = 1e10 * (1 + share * {"all": 0.0, "products": 0.2, "nothing": 0.3}.get(keeping_of(plan), 0.32))
    moved += 20 * MIB * plan.ema_on_host
    host = 80 * MIB * plan.optimizer_on_host + 20 * MIB * plan.shard_optimizer
    host += batch * sample_bytes * (plan.offload and not plan.bring_ahead)
    beside = batch * sample_bytes * (plan.offload + plan.bring_ahead) + 20 * MIB * plan.ema_on_host
    work = Work(macs, moved, 1000 * batch / plan.micro_batch, host, beside_bytes=beside)
    by_phase = {phase.name: live for phase in stage.phases}
    return Prediction(live, int(1.1 * live), f"{stage.phases[0].name}/block", stage.name, parts, by_phase, work)


def predicted_by_formula(
    training: Training, plan: Plan, target: Target, stage: Stage, *, rough: bool = False, dataless: object = None
) -> Prediction:
    """In place of `frugan.planning.prediction.predict`."""
    return prediction(plan, stage, training.batch, rough=rough)
