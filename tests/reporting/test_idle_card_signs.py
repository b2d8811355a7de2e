"""A card that is busy too little is told of once, with the one of three causes that its numbers point to."""

from typing import Any

import pytest

from frugan.reporting.signs import FIRST_STEPS, LEAST_SAMPLES, IdleCardSigns


def told(card: dict[str, float] | None, waited: float = 0.0, steps: int = 200, first: int = 1) -> list[str]:
    signs = IdleCardSigns()
    return [line for step in range(first, first + steps) for line in signs.look(event(step, card, waited))]


def judged(signs: IdleCardSigns) -> float | None:
    return signs.busy


def event(step: int, card: dict[str, float] | None, waited: float = 0.0) -> dict[str, Any]:
    about = {} if card is None else {"card": {"samples": 1, **card}}
    return {"event": "step", "step": step, "took_seconds": 1.0, "data_seconds": waited, "phases": {}, **about}


@pytest.mark.parametrize(
    ("card", "waited", "cause", "cure"),
    [
        ({"busy": 0.3}, 0.5, "it waits for pictures, 50 % of each step", "data.stored=pixels"),
        ({"busy": 0.3, "others": 1, "others_busy": 0.0}, 0.6, "it waits for pictures", "--workers"),
        ({"busy": 0.3}, 0.1, "the host does not start its many small kernels fast enough.", "training.batch"),
        ({"busy": 0.3, "others": 2}, 0.0, "fast enough; 2 other programs on it, too.", "--micro-batch"),
        ({"busy": 0.95, "others": 1, "others_busy": 0.5}, 0.0, "other programs compute on it, 50 %", "nvidia-smi"),
    ],
)
def test_three_causes(card: dict[str, float], waited: float, cause: str, cure: str) -> None:
    (line,) = told(card, waited)
    own = card["busy"] - card.get("others_busy", 0.0)
    assert line.startswith(f"the card was busy with this training {100 * own:.0f} % of the time, over 30 s: ")
    assert cause in line
    assert cure in line.partition(" What helps: ")[2]


def test_busy_cards_and_those_that_say_nothing_are_left_in_peace() -> None:
    assert told({"busy": 0.61}, 0.2) == []
    assert told(None, 0.9) == []
    assert told({"temperature_c": 40}, 0.9) == []


def test_first_steps_do_not_count_and_enough_are_waited_for() -> None:
    signs = IdleCardSigns()
    for step in range(501, 501 + FIRST_STEPS):
        assert not list(signs.look(event(step, {"busy": 0.0})))
    for step in range(501 + FIRST_STEPS, 501 + FIRST_STEPS + LEAST_SAMPLES - 1):
        assert not list(signs.look(event(step, {"busy": 0.5})))
    assert judged(signs) is None
    (line,) = signs.look(event(1000, {"busy": 0.5}))
    assert "busy with this training 50 %" in line
    assert judged(signs) == 0.5
    assert not list(signs.look(event(1001, {"busy": 0.1})))  # once


def test_a_training_that_starts_again_is_judged_again() -> None:
    signs = IdleCardSigns()
    events = [event(step, {"busy": 0.2}) for step in range(100)]
    lines = [line for each in (*events, {"event": "start", "step": 99}, *events) for line in signs.look(each)]
    assert len(lines) == 2
