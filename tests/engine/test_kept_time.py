"""A training that keeps a time, on a made-up clock: a machine that becomes slower or faster."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from frugan.engine.durations import Clock, Course, Duration, Length
from frugan.engine.run.kept_time import KeptTime, NewLength, Work

SETUP = 5.0
COSTS = {Work.SAVE: 0.5, Work.DRAW: 1.0, Work.SCORE: 6.0}
Slowdown = Callable[[float], float]
"""How many times as long as at first everything takes, by the share of the time that is over."""

MACHINES: dict[str, Slowdown] = {
    "as thought": lambda over: 1,
    "four times slower": lambda over: 4 if over > 0.1 else 1,
    "four times slower, late": lambda over: 4 if over > 0.8 else 1,
    "four times slower, very late": lambda over: 4 if over > 0.95 else 1,
    "four times faster": lambda over: 0.25 if over > 0.1 else 1,
    "four times faster, late": lambda over: 0.25 if over > 0.8 else 1,
    "slower for a while": lambda over: 4 if 0.2 < over < 0.4 else 1,
    "ever slower": lambda over: 1 + 3 * min(1.0, over),
    "slower from the start": lambda over: 3,
    "faster from the start": lambda over: 1 / 3,
}


@dataclass
class MadeUp:
    """A training on a made-up clock."""

    over: float  # share of the promised time that was taken in the end
    decisions: list[NewLength] = field(default_factory=list)
    length: Length = field(default_factory=lambda: Length.of(1))
    did: list[Work] = field(default_factory=list)
    seconds: float = 0.0  # of training


def trained(
    seconds: float,
    step_seconds: float,
    slowdown: Slowdown,
    *,
    every: Sequence[Duration | float] = (1 / 8, 1 / 8, 1 / 4),
    costs: dict[Work, float] = COSTS,
    uneven: tuple[float, float] = (0.9, 1.2),
    first_score: float = 0.0,
    is_expected: bool = False,
    before: MadeUp | None = None,
) -> MadeUp:
    draws, now, step = random.Random(0), 0.0, 0
    length = Length.of(int(0.9 * seconds / step_seconds))
    if before is not None:  # it was over, and is given more time
        length, now, step = before.length, before.seconds, before.length.steps
        length.decide(step, step + int((seconds - SETUP - now) / (now / step)))
    kept = KeptTime(seconds, length, SETUP)
    clocks = {work: Clock(every[at], 8, 0.0, length) for at, work in enumerate(Work)}
    result = MadeUp(0.0, length=length)

    def factor() -> float:
        return slowdown((now + SETUP) / seconds)

    while step < length.steps:
        if (new := kept.decide(step, now, clocks)) is not None:
            length.decide(step, new.steps)
            result.decisions.append(new)
        kept.begins(now)
        now += step_seconds * factor() * draws.uniform(*uneven)
        step += 1
        if is_expected and kept.knows_no_score:
            kept.expect_score(costs[Work.SCORE] * factor(), first_score * factor())
        for work, clock in clocks.items():
            if not clock.due(step, now) or (work is Work.SCORE and not kept.affords_score(clock, step, now)):
                continue
            is_first = work is Work.SCORE and work not in result.did
            result.did.append(work)
            took = (costs[work] + first_score * is_first) * factor()
            now += took
            kept.did(work, took)
    result.over, result.seconds = (now + SETUP) / seconds, now
    return result


@pytest.mark.parametrize("step_seconds", [0.1, 0.3, 1.5])
@pytest.mark.parametrize("machine", MACHINES)
def test_the_end_is_kept_within_a_tenth_on_whatever_machine(machine: str, step_seconds: float) -> None:
    run = trained(600, step_seconds, MACHINES[machine])
    assert run.over == pytest.approx(1, abs=0.1)
    assert len(run.decisions) <= 30
    assert run.did[-1] is Work.SCORE or run.did.count(Work.SCORE) >= 3


def test_a_machine_that_stays_as_it_was_timed_hardly_moves_the_length() -> None:
    run = trained(600, 0.3, MACHINES["as thought"], uneven=(0.95, 1.05))
    assert len(run.decisions) <= 2
    assert all(abs(new.slowdown - 1) < 0.1 for new in run.decisions)


@pytest.mark.parametrize("machine", ["as thought", "faster from the start", "slower for a while"])
def test_a_training_that_is_over_and_gets_more_time_saves_draws_and_scores_in_it(machine: str) -> None:
    first = trained(720, 0.3, MACHINES[machine])
    more = trained(1200, 0.3, MACHINES[machine], before=first)
    assert more.over == pytest.approx(1, abs=0.1)
    assert [more.did.count(work) for work in Work] == [8, 8, 4]
    assert more.did[-1] is Work.SCORE
    dear = trained(1200, 0.3, MACHINES[machine], costs=COSTS | {Work.SCORE: 150.0}, before=first)
    assert dear.over == pytest.approx(1, abs=0.1)
    assert dear.did[-1] is Work.SCORE


def test_steps_that_are_added_at_the_end_change_no_value_that_has_come_to_its_last() -> None:
    length = Length.of(8)
    length.decide(4, 6)
    length.decide(6, 16)
    length.decide(11, 14)
    assert [length.at(step) for step in (5, 6, 7, 14)] == pytest.approx([0.75, 1, 1, 1])
    clock = Clock(0.5, 8, 0.0, length)
    assert [step for step in range(1, 15) if clock.due(step, 0.0)] == [4, 6, 11, 14]


@pytest.mark.parametrize("machine", ["ever slower", "four times slower", "four times faster", "slower for a while"])
def test_whoever_hears_of_lengths_knows_each_within_a_fifth(machine: str) -> None:
    """By many small changes too: each line says the length of the line before it."""
    run = trained(600, 0.3, MACHINES[machine])
    heard = run.length.decided[0][1]
    lines = 0
    for new in run.decisions:
        assert (new.told is not None) == (abs(new.steps - heard) >= heard / 5)
        if new.told is not None:
            assert new.told == heard
            assert (new.told_slowdown > 1) == (new.steps < heard)
            heard, lines = new.steps, lines + 1
    assert len(run.decisions) > lines >= 1


def test_a_hiccup_changes_nothing() -> None:
    run = trained(600, 0.3, lambda over: 4 if 0.5 < over < 0.505 else 1, uneven=(1, 1))
    assert not any(800 < step < 1200 for step, _ in run.length.decided)


def test_scores_that_would_take_most_of_the_time_are_left_to_the_end() -> None:
    run = trained(300, 0.3, MACHINES["as thought"], costs=COSTS | {Work.SCORE: 60.0})
    assert run.over == pytest.approx(1, abs=0.1)
    assert run.did.count(Work.SCORE) == 2  # the first, which told what one takes, and the last


@pytest.mark.parametrize("machine", ["as thought", "four times slower", "slower from the start"])
def test_a_first_score_that_would_take_the_time_is_left_out(machine: str) -> None:
    """It judges damaged pictures too, once; nobody has to have taken it to know."""
    run = trained(360, 0.3, MACHINES[machine], first_score=420.0, is_expected=True)
    assert run.over == pytest.approx(1, abs=0.1)
    assert Work.SCORE not in run.did
    assert trained(360, 0.3, MACHINES[machine], first_score=420.0).over > 1.4


@pytest.mark.parametrize(("first_score", "scores"), [(40.0, 4), (80.0, 1)])
def test_a_first_score_that_takes_long_is_counted_once(first_score: float, scores: int) -> None:
    """The steps make room for it; where it takes most of what scores may take, it is the one at the end."""
    run = trained(360, 0.3, MACHINES["as thought"], first_score=first_score, is_expected=True)
    assert run.over == pytest.approx(1, abs=0.1)
    assert run.did.count(Work.SCORE) == scores
    assert run.did[-1] is Work.SCORE


def test_a_score_at_the_end_of_a_time_that_is_over_is_left_out() -> None:
    length = Length.of(20)
    kept, clock = KeptTime(100.0, length), Clock(0.5, 8, 0.0, length)
    for step in range(20):
        kept.begins(float(5 * step))
    kept.expect_score(12.0, 0.0)
    assert kept.affords_score(clock, 20, 97.0)
    assert not kept.affords_score(clock, 20, 99.0)


def test_a_start_that_took_all_of_the_time_leaves_a_step() -> None:
    """Quick96 on a busy machine: 93 s of 2 min for the start, and 40 for a step."""
    length = Length.of(100_000)
    kept = KeptTime(120.0, length, spent=123.0)
    for step in range(6):
        kept.begins(40.0 * step)
    new = kept.decide(5, 200.0, {})
    assert new is not None
    assert new.steps == 6


def test_work_by_the_clock_and_by_steps_is_counted_too() -> None:
    every = Duration.parse("100 steps"), Duration.parse("800 images"), Duration.parse("60s")
    run = trained(900, 0.3, MACHINES["four times slower"], every=every)
    assert run.over == pytest.approx(1, abs=0.1)


def test_progress_goes_on_evenly_from_where_it_is() -> None:
    length = Length.of(1000)
    length.decide(400, 600)
    assert [length.at(step) for step in (0, 200, 400, 500, 600, 700)] == pytest.approx([0, 0.2, 0.4, 0.7, 1, 1])
    length.decide(500, 1100)
    assert [length.at(step) for step in (400, 500, 800, 1100)] == pytest.approx([0.4, 0.7, 0.85, 1])
    assert length.earlier == ((400, 1000), (500, 600))
    assert Length.of(1100, length.earlier) == length
    assert [length.steps_at(step) for step in (0, 399, 400, 499, 500, 2000)] == [1000, 1000, 600, 600, 1100, 1100]
    with pytest.raises(ValueError, match="at step 450"):
        length.decide(450, 900)


def test_a_schedule_over_the_length_bends_and_does_not_jump() -> None:
    length = Length.of(1000)
    whole = Course(8000, length=length, share=1.0)
    half = Course(4000, cosine=True, length=length, share=0.5)
    fixed = Course(4000, cosine=True, length=length)  # a number of images
    before = [course.at(8 * 400) for course in (whole, half, fixed)]
    length.decide(400, 600)
    assert [course.at(8 * 400) for course in (whole, half, fixed)] == pytest.approx(before)
    assert whole.at(8 * 500) == pytest.approx(0.7)
    assert half.at(8 * 433) < 1 == half.at(8 * 434)
    assert fixed.at(8 * 434) < 1


def test_shares_of_the_length_come_due_as_often_whatever_becomes_of_it() -> None:
    length = Length.of(1000)
    clock = Clock(0.25, 8, 0.0, length)
    due = [step for step in range(1, 301) if clock.due(step, 0.0)]
    length.decide(300, 400)
    due += [step for step in range(301, 401) if clock.due(step, 0.0)]
    assert due == [250, 329, 365, 400]
    assert clock.times_left(300, 400, 0.0) == 3
