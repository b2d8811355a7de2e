"""The strip of loss curves: one colour a side, all steps, whatever their number."""

import math

import numpy as np
import pytest

from frugan.reporting.grids import COLOURS, HEIGHT, STRIP_MARGIN, loss_strip


def _rows_of(strip: np.ndarray, curve: int) -> dict[int, float]:
    """Column -> mean row of a curve's own colour, below the caption."""
    where = (strip == np.array(COLOURS[curve])).all(2)
    where[:STRIP_MARGIN] = False
    return {int(x): float(np.flatnonzero(where[:, x]).mean()) for x in np.flatnonzero(where.any(0))}


@pytest.mark.parametrize("steps", [1, 7, 300, 5000])
def test_a_falling_loss_falls_over_the_whole_width(steps: int) -> None:
    values = np.linspace(1.0, 0.5, steps)
    strip = loss_strip({"src": list(values)}, f"step {steps:,}", 330)
    assert strip.shape == (HEIGHT, 330, 3)
    rows = _rows_of(strip, 0)
    assert min(rows) <= 1
    assert max(rows) >= 328
    if steps > 1:
        assert rows[max(rows)] > rows[min(rows)] + 10  # lower on the picture is a larger row


def test_both_sides_are_drawn_and_gaps_are_passed_over() -> None:
    src, dst = [0.8] * 400, [0.2] * 400
    src[100:200] = [math.nan] * 100
    dst[7] = math.inf
    strip = loss_strip({"src": src, "dst": dst}, "step 400", 200)
    source, destination = _rows_of(strip, 0), _rows_of(strip, 1)
    assert source[10] < destination[10]
    assert len(destination) == 200
    empty: list[dict[str, list[float]]] = [{}, {"src": []}, {"src": [math.nan] * 5}, {"src": [0.0, 0.0]}]
    for nothing in empty:
        assert loss_strip(nothing, "step 5", 100).shape == (HEIGHT, 100, 3)
