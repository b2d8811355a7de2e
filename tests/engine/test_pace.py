"""The time that is left follows what steps take now, and slowness is noticed."""

import pytest

from frugan.engine.step_log import Pace


def test_the_first_step_is_forgotten_and_old_ones_too() -> None:
    pace = Pace()
    pace.add(60.0)
    first = pace.seconds_per_step
    assert first is None  # it makes what later ones find ready
    pace.add(1.0)
    assert pace.seconds_per_step == 1.0
    for _ in range(200):
        pace.add(4.0)
    assert pace.seconds_per_step == pytest.approx(4.0)


def test_slowness_is_noticed_once_and_not_for_one_slow_step() -> None:
    pace = Pace()
    for i in range(40):
        pace.add(30.0 if i % 10 == 9 else 1.0)  # now and then something is saved
        assert pace.slowed() is None
    for _ in range(8):
        pace.add(4.0)
    assert pace.slowed() == pytest.approx(4.0)
    pace.looked()
    for _ in range(30):
        pace.add(4.0)
        assert pace.slowed() is None
    for _ in range(8):
        pace.add(20.0)
    assert pace.slowed() == pytest.approx(5.0)


def test_steps_of_milliseconds_are_no_matter() -> None:
    pace = Pace()
    for seconds in [0.01] * 20 + [0.1] * 20:
        pace.add(seconds)
        assert pace.slowed() is None
