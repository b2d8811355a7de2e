"""Updates that are run again: while fp16 looks for its first loss scale, and by a smaller plan when memory runs out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from frugan.engine.out_of_memory import ran_out_of_memory, release_memory
from frugan.engine.plan import Plan
from frugan.engine.precision import LossScale
from frugan.engine.state import TrainingState
from frugan.engine.update import PhaseResult, Update
from frugan.errors import TrainingFailed

RunUpdate = Callable[[TrainingState, Plan, Update], PhaseResult]

NextPlan = Callable[[Plan, str, str], Plan]
"""(plan that ran out of memory, phase, torch's message) -> a plan that takes less. Raises where there is none."""


def until_sound(
    run: RunUpdate, state: TrainingState, plan: Plan, update: Update, next_plan: NextPlan | None
) -> tuple[PhaseResult, Plan]:
    """Run an update, again at half the loss scale while that is too high for the first one, and again by a plan that
    takes less if memory runs out before anything has moved.

    With the first, fp16 trains on the same pictures as fp32 from the first on. Leaving them out starts another run:
    with 3 to 20 first steps skipped, `saehd-demo-64` had up to 20 % more loss after 500 steps, in fp32.

    Returns:
        What it did, and the plan by which it was run.
    """
    scale = state.loss_scales[update.phase.optimizer]
    while True:
        try:
            result = run(state, plan, update)
        except RuntimeError as error:
            if next_plan is None or not ran_out_of_memory(error):
                raise
            message = str(error)
        else:
            if _is_too_high(scale, result):
                continue
            state.skipped[result.phase] += ~result.accepted
            return result, plan
        release_memory(state.device)
        plan = next_plan(plan, update.phase.name, message)
        state.follow(plan)


def _is_too_high(scale: LossScale, result: PhaseResult) -> bool:
    """Whether a loss scale that no update was accepted by so far may be the reason that this one was not."""
    if scale.found:
        return False
    scale.found = bool(result.accepted)
    return not scale.found and result.finite_terms() and float(result.loss_scale) > 1


@contextmanager
def no_way_back(phase: str) -> Iterator[None]:
    """Memory that runs out inside cannot be mended by a repetition: a part of the update has moved.

    Raises:
        TrainingFailed: it did.
    """
    try:
        yield
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        raise TrainingFailed(
            f"memory ran out in the midst of the update of phase {phase}, which cannot be repeated: resume from the "
            f"last checkpoint with a smaller --memory ({error})"
        ) from None
