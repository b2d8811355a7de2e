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
    draw: Callable[[TrainingState, Plan], None],
) -> Order:
    """Take part in a training until the first rank ends it.

    Args:
        stages: opens what runs from a step on; its data are closed with it.
        next_plan: gives a plan that takes less when memory runs out on this rank; the other ranks keep theirs.
        draw: draws this rank's part of pictures that are scored; leaves no trace in the state.

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
            elif order is Order.DRAW:
                draw(state, in_force)
            elif order is Order.COLLECT:
                with ranks.collected(state):
                    pass
            else:
                assert step is not None, "the first rank opens a stage before the first step"
                step.run(state, in_force, next_plan=smaller)
    return order
