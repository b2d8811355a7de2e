"""What is judged before an update."""

import math

import pytest
import torch

from frugan.engine.gradients import all_finite


@pytest.mark.parametrize(
    ("values", "finite"),
    [([0.0, -3e38], True), ([1.0, math.nan], False), ([-math.inf, 1.0], False), ([math.inf, math.nan], False)],
)
def test_one_value_that_is_not_finite_is_enough(values: list[float], finite: bool) -> None:
    assert bool(all_finite(torch.tensor(values))) is finite
