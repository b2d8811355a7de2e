"""The time that is left follows what steps take now, and slowness is noticed."""

import pytest

from frugan.engine.run.step_log import StepTimer


def test_the_first_step_is_forgotten_and_old_ones_too() -> None:
    timer = StepTimer()
    timer.add(60.0)
    first = timer.seconds_per_step
    assert first is None  # it makes what later ones find ready
    timer.add(1.0)
    assert timer.seconds_per_step == 1.0
    for _ in range(200):
        timer.add(4.0)
    assert timer.seconds_per_step == pytest.approx(4.0)


def test_slowness_is_noticed_once_and_not_for_one_slow_step() -> None:
    timer = StepTimer()
    for i in range(40):
        timer.add(30.0 if i % 10 == 9 else 1.0)  # now and then something is saved
        assert timer.slowed() is None
    for _ in range(8):
        timer.add(4.0)
    assert timer.slowed() == pytest.approx(4.0)
    timer.looked()
    for _ in range(30):
        timer.add(4.0)
        assert timer.slowed() is None
    for _ in range(8):
        timer.add(20.0)
    assert timer.slowed() == pytest.approx(5.0)


def test_steps_of_milliseconds_are_no_matter() -> None:
    timer = StepTimer()
    for seconds in [0.01] * 20 + [0.1] * 20:
        timer.add(seconds)
        assert timer.slowed() is None
