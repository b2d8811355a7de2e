"""Durations and when something is due."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frugan.engine.durations import ENDLESS, Clock, Duration
from frugan.errors import BadInput


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("150k steps", 150_000, "steps"),
        ("1 step", 1, "steps"),
        ("25M images", 25_000_000, "images"),
        ("1.5k images", 1500, "images"),
        ("4.1M images", 4_100_000, "images"),  # 4.1 * 1e6 is not a whole number
        ("1.001k steps", 1001, "steps"),
        ("6h", 21600, "seconds"),
        ("90min", 5400, "seconds"),
        ("30s", 30, "seconds"),
        ("5m", 300, "seconds"),
        ("90 min", 5400, "seconds"),
        ("1h30", 5400, "seconds"),
        ("1h 5", 3900, "seconds"),
        ("1h30min", 5400, "seconds"),
        ("1h30s", 3630, "seconds"),
        ("2 hours 30 minutes", 9000, "seconds"),
    ],
)
def test_forms(text: str, amount: float, unit: str) -> None:
    duration = Duration.parse(text)
    assert (duration.amount, duration.unit, str(duration)) == (amount, unit, text)


@pytest.mark.parametrize(
    "text", ["", "5", "5M", "1:30", "h", "30min 1h", "5 weeks", "1.5 steps", "-3 steps", "k steps", "endless"]
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        Duration.parse(text)


def test_number_without_a_unit_is_answered_with_how_to_write_it() -> None:
    with pytest.raises(BadInput, match=r"^--for 300: in which unit\? Write 300min, 300s or 300h$"):
        Duration.parse_seconds("300", "--for")


def test_steps_are_known_where_they_are_counted() -> None:
    assert Duration.parse("9 steps").known_steps(4) == 9
    assert Duration.parse("9 images").known_steps(4) == 3
    for duration in (Duration.parse("9s"), ENDLESS):
        assert duration.known_steps(4) is None
        with pytest.raises(ValueError, match="has no number of steps"):
            duration.steps(4)


@given(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 300))
def test_images_are_due_once_for_every_multiple_reached(images: int, batch: int, steps: int) -> None:
    clock = Clock(Duration.parse(f"{images} images"), batch)
    due = sum(clock.due(step, 0.0) for step in range(1, steps + 1))
    assert due == len({step * batch // images for step in range(1, steps + 1)} - {0})


def test_seconds_are_due_by_the_clock() -> None:
    clock = Clock(Duration.parse("10s"), 8)
    assert [clock.due(1, s) for s in (1.0, 9.9, 10.1, 11.0, 20.0, 20.2)] == [False, False, True, False, True, False]


def test_seconds_are_due_as_often_in_short_sessions() -> None:
    due = 0
    for session in range(5):
        clock = Clock(Duration.parse("6h"), 8, session * 4 * 3600.0)
        due += sum(clock.due(1, (session * 4 + hour) * 3600.0) for hour in (1, 2, 3, 4))
    assert due == 3
