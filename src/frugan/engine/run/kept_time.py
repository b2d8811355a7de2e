"""A time that a training keeps: its length is decided again when steps become slower or faster than was thought."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from frugan.engine.durations import Clock, Length

TOLERANCE = 0.03
"""Share of the time by which the end may be expected too late or too early before the length is decided again, and as
much of the time that is left: far from the end there is time to wait and see."""
WINDOW = 0.06
"""Share of the time whose last steps tell the pace: what takes less is a hiccup."""
RECENT = 0.02
"""Share of the time whose last steps tell that the pace has changed, where they differ by SUDDEN from it."""
SUDDEN = 1.4
"""Factor between the pace of recent steps and that of the steps before, either way."""
ROW = 0.002
"""Share of the time whose steps are kept as one row."""
PAUSE = 0.03
"""Share of the time between two decisions."""
LEAST_STEPS = 2
"""Steps that tell a pace, and at least as many as all phases come round in."""
RESERVED = 0.1
"""Share of the time left for grids, scores and checkpoints as long as some were not made yet."""
MOST_FOR_SCORES = 0.25
"""Share of the time that scores may take in all; where they would take more, there is one at the end."""
MOST_CYCLE = 64
"""Steps that tell a pace are at most this many, however long a cycle is."""
LATEST = 0.1
"""Share of the time by which a score may put the end off."""
CHEAP_AGAIN = 0.7
"""Part of that share which scores must come down to before there are more of them again."""
NEWS = 0.2
"""Change of the length, as a share of the last one that people heard of, from which on they hear of it."""
DIGITS = 3
"""Digits of the number of steps that are left: more would be noise."""


class Work(Enum):
    """Work between steps that takes time."""

    SAVE = "checkpoints"
    DRAW = "sample grids"
    SCORE = "scores"


@dataclass(frozen=True)
class NewLength:
    """A length in place of another."""

    steps: int  # in all
    before: int  # steps in all so far
    slowdown: float  # how many times as long as before a step takes
    seconds_left: float  # until the end
    step_seconds: float  # that a step takes now
    told: int | None = None  # steps in all that people heard of last; None: too near to this for them to hear of it
    told_slowdown: float = 1.0  # how many times as long as then a step takes


@dataclass
class KeptTime:
    """Decides how many steps a training has so that it ends when its time is over, with all that comes between steps.

    All times are on one clock that the caller reads.
    """

    seconds: float  # that the training takes in all, over all resumptions
    length: Length  # of the training; read here, and changed by the caller
    spent: float = 0.0  # part of the time that was over before the first step's clock began: the setup
    cycle: int = 1  # steps in which all phases come round
    _runs: deque[tuple[int, float]] = field(
        default_factory=deque
    )  # the last steps, some in a row: their number, seconds
    _began: float | None = None  # when the last step began
    _between: float = 0.0  # seconds since then that were no step's
    _took: dict[Work, float] = field(default_factory=dict)  # the last of a kind, in steps of that time
    _first: float = 0.0  # what the first score is expected to take besides, in steps of that time
    _pace: float | None = None  # seconds a step that the present length was decided by
    _dear: bool = False  # whether scores take too much of the time
    _told: int = field(init=False)  # the last length that was told to people; at first, that of the start
    _slowdown: float = 1.0  # how many times as long as then a step takes
    _decided_at: float = -math.inf  # seconds of training at the last decision

    def __post_init__(self) -> None:
        self._told = self.length.steps

    def begins(self, now: float) -> None:
        """Note that a step begins, which ends the one before it."""
        if self._began is not None:
            self._add(max(0.0, now - self._began - self._between))
            recent, before = self._mean_of(RECENT), self._mean_of(WINDOW)
            is_sudden = recent is not None and before is not None and not 1 / SUDDEN < recent / before < SUDDEN
            kept = self._last(RECENT if is_sudden else WINDOW)[0]
            while sum(count for count, _ in self._runs) > kept:
                self._runs.popleft()
        self._began, self._between = now, 0.0

    def did(self, work: Work | None, seconds: float) -> None:
        """Note work between two steps; None: such as does not come again."""
        self._between += seconds
        if work is not None and (pace := self.pace) is not None:
            expected, besides = self._took.get(work, 0.0), self._first if work is Work.SCORE else 0.0
            self._took[work] = max(expected, seconds / pace - besides) if besides else seconds / pace
            self._first -= besides

    def expect_score(self, seconds: float, first: float) -> None:
        """Note what a score is thought to take before one was taken, and the first one besides."""
        if (pace := self.pace) is not None:
            self._took[Work.SCORE], self._first = seconds / pace, first / pace

    @property
    def knows_no_score(self) -> bool:
        """Whether nothing tells what scores take, though something tells what steps take."""
        return self.pace is not None and Work.SCORE not in self._took

    @property
    def pace(self) -> float | None:
        """Seconds a step takes now; None: too few were seen."""
        return self._mean_of(WINDOW)

    def left(self, seconds: float) -> float:
        """Return the seconds left after `seconds` of training."""
        return max(0.0, self.seconds - self.spent - seconds)

    def affords_score(self, clock: Clock, step: int, seconds: float) -> bool:
        """Return whether scores that are due after `step` steps, and `seconds`, are in proportion to the time."""
        cost = self.score_seconds
        if cost is None:
            return True
        if cost > self.left(seconds) + LATEST * self.seconds:
            return False
        if not self._are_dear(clock):
            return True
        return step >= self.length.steps and self.scores_at_end(clock)

    def scores_at_end(self, clock: Clock) -> bool:
        """Return whether there is a score at the end, where those on the way take too much of the time."""
        is_due = isinstance(clock.every, float) and math.isclose(1 / clock.every, round(1 / clock.every))
        return is_due and (self.score_seconds or 0.0) <= MOST_FOR_SCORES * self.seconds

    @property
    def score_seconds(self) -> float | None:
        """Seconds that the next score is expected to take; None: no score was taken or predicted."""
        cost = self._cost(Work.SCORE, self.pace or 0.0)
        return None if cost is None else cost + self._first * (self.pace or 0.0)

    def decide(self, step: int, seconds: float, clocks: Mapping[Work, Clock]) -> NewLength | None:
        """Return a new length if by the present one the training would end too early or too late; None: it is fine.

        Args:
            step: steps done.
            seconds: of training so far.
            clocks: when work between steps is due.
        """
        before, pace = self.length.steps, self.pace
        if step <= self.length.decided[-1][0] or step >= before or pace is None:
            return None
        if seconds < self._decided_at + PAUSE * self.seconds or self._last(1.0)[1] < RECENT * self.seconds:
            return None
        left = self.left(seconds)
        if self._pace is None:
            # where the start took all of the time, nothing is left to have a pace
            self._pace = (1 - RESERVED) * left / (before - step) if left else pace
        between = self._between_steps(step, before, pace, left, clocks)
        if abs((before - step) * pace + between - left) <= TOLERANCE * (self.seconds + left):
            return None
        # shares of the length come as often whatever it is; intervals in steps do not, so it is done twice
        steps = before
        for _ in range(2):
            between = self._between_steps(step, steps, pace, left, clocks)
            steps = step + _rounded(max(1.0, (left - between) / pace))
        if steps == before:
            return None
        slowdown, self._pace, self._decided_at = pace / self._pace, pace, seconds
        self._slowdown *= slowdown
        new = NewLength(steps, before, slowdown, left, pace)
        if abs(steps - self._told) >= NEWS * self._told:
            new = replace(new, told=self._told, told_slowdown=self._slowdown)
            self._told, self._slowdown = steps, 1.0
        return new

    def _mean_of(self, share: float) -> float | None:
        """Return the mean of the last steps that take this share of the time; None: fewer than a cycle were seen."""
        count, total = self._last(share)
        return total / count if count >= self._least else None

    def _add(self, seconds: float) -> None:
        """Add a step; short ones are kept by the row, as there may be many."""
        count, before = self._runs[-1] if self._runs else (0, 0.0)
        if self._runs and before < ROW * self.seconds:
            self._runs.pop()
            self._runs.append((count + 1, before + seconds))
        else:
            self._runs.append((1, seconds))

    @property
    def _least(self) -> int:
        return max(LEAST_STEPS, min(self.cycle, MOST_CYCLE))

    def _last(self, share: float) -> tuple[int, float]:
        """Return the number of the last steps that take this share of the time, and their seconds; of all, if less."""
        steps, total = 0, 0.0
        for count, seconds in reversed(self._runs):
            steps, total = steps + count, total + seconds
            if steps >= self._least and total >= share * self.seconds:
                break
        return steps, total

    def _cost(self, work: Work, pace: float) -> float | None:
        """Return the seconds of work between steps at a pace; None: none was done yet."""
        return None if work not in self._took else self._took[work] * pace

    def _between_steps(self, step: int, steps: int, pace: float, left: float, clocks: Mapping[Work, Clock]) -> float:
        """Return the seconds of all work between the steps that are left, and after the last one."""
        costs = {work: self._cost(work, pace) for work in clocks}
        known = 0.0
        for work, cost in costs.items():
            if cost is None:
                continue
            clock = clocks[work]
            if work is Work.SCORE:
                is_dear = self._are_dear(clock)
                scores = int(self.scores_at_end(clock)) if is_dear else clock.times_left(step, steps, left)
                known += cost * scores + self._first * pace * (scores > 0)
            else:  # the end has its own
                times = clock.times_left(step, steps, left)
                known += cost * (times + (0 if isinstance(clock.every, float) else 1))
        return max(known, RESERVED * left) if None in costs.values() else known

    def _are_dear(self, clock: Clock) -> bool:
        """Return whether all scores of the training would take more than their share of the time."""
        times = clock.times_left(0, self.length.steps, self.seconds)
        cost = (times * self._took.get(Work.SCORE, 0.0) + min(1, times) * self._first) * (self.pace or 0.0)
        most = MOST_FOR_SCORES * self.seconds
        self._dear = cost > (most * CHEAP_AGAIN if self._dear else most)
        return self._dear


def _rounded(steps: float) -> int:
    """Round down to some digits."""
    unit = 10 ** max(0, len(str(int(steps))) - DIGITS)
    return int(steps // unit * unit)
