"""How fast each rank is, and which share of a batch lets all of them be done at about the same moment."""

from collections.abc import Sequence

from frugan.engine.out_of_memory import ran_out_of_memory, release_memory
from frugan.engine.plan import Plan
from frugan.engine.ranks.place import deal
from frugan.engine.ranks.ranks import Ranks
from frugan.engine.rehearsal import rehearse
from frugan.engine.state import TrainingState
from frugan.engine.step import Step

TIMED = 2
"""Steps that are timed after a first one, which makes what later ones find ready; the shorter one counts."""


def time_ranks(ranks: Ranks, step: Step, state: TrainingState, plan: Plan) -> list[float] | None:
    """Seconds of a step on each rank, timed on all at once as they train; None: memory ran out on one.

    Every rank calls it. Nothing moves.
    """
    seconds: float | None
    ranks.gather(0.0)  # all begin together
    try:
        seconds = min([rehearse(step, state, plan, ahead) for ahead in range(1 + TIMED)][1:])
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        seconds = None
    if seconds is None:
        release_memory(state.device)
    found = ranks.gather(seconds)
    return None if None in found else [each for each in found if each is not None]


def shares_by_speed(seconds: Sequence[float], now: Sequence[int], batch: int, group: int) -> tuple[int, ...]:
    """Samples of each rank, so that all are done at about the same moment.

    Args:
        seconds: of a step on each rank.
        now: samples that it had in it.
        batch: samples per update.
        group: samples that are normalised or compared together.
    """
    speeds = [count / each for count, each in zip(now, seconds, strict=True)]
    return tuple(len(share.samples) for share in deal(batch, group, len(speeds), speeds))
