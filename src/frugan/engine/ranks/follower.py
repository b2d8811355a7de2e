"""The training loop of every rank but the first: it does what the first one says, and writes nothing."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from frugan.engine.plan import Plan
from frugan.engine.ranks.group import RankGroup
from frugan.engine.ranks.ranks import Order
from frugan.engine.retries import NextPlan
from frugan.engine.state import TrainingState
from frugan.engine.step import Step


def follow(
    ranks: RankGroup,
    state: TrainingState,
    plan: Plan,
    stages: Callable[[int], AbstractContextManager[Step]],
    next_plan: NextPlan,
    by_speed: Callable[[Step, Plan], Plan],
) -> Order:
    """Take part in a training until the first rank ends it.

    Args:
        stages: opens what runs from a step on; its data are closed with it.
        next_plan: gives a plan that takes less when memory runs out on this rank; the other ranks keep theirs.
        by_speed: takes its share by the time that a step takes on each rank, and gives a plan for it.

    Returns:
        How it ended: STOP, OVER, or AGAIN.
    """
    in_force = plan

    def smaller(before: Plan, phase: str, message: str) -> Plan:
        nonlocal in_force
        in_force = next_plan(before, phase, message)
        return in_force

    with ExitStack() as opened:
        step: Step | None = None
        while (order := ranks.hear()) not in (Order.STOP, Order.OVER, Order.AGAIN):
            if order is Order.STAGE:
                opened.close()
                step = opened.enter_context(stages(state.step))
            elif order is Order.COMPARE:
                ranks.agree(state)
            elif order is Order.COLLECT:
                with ranks.collected(state):
                    pass
            elif order is Order.TIME:
                assert step is not None, "the first rank opens a stage before it times a step"
                in_force = by_speed(step, in_force)
            else:
                assert step is not None, "the first rank opens a stage before the first step"
                step.run(state, in_force, next_plan=smaller)
    return order
