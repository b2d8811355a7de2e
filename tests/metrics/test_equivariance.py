"""Pictures that are known everywhere, so that their moved ones are too."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from frugan.metrics.equivariance import decibels, rotation_error, translation_error

SIDE = 40


def waves(x: Tensor, y: Tensor, highest: float) -> Tensor:
    """Sum of random waves [3, ...] up to a frequency in cycles per pixel, at places in pixels."""
    random = torch.Generator().manual_seed(0)
    radius, angle, *phases = torch.rand(5, 100, 1, 1, generator=random, dtype=torch.float64) * 2 * math.pi
    radius = highest * (radius / (2 * math.pi)).sqrt()
    turns = 2 * math.pi * radius * (angle.cos() * x + angle.sin() * y)
    return torch.stack([torch.sin(turns + phase).mean(0) * 5 for phase in phases]).float()


def moved(right: float = 0.0, down: float = 0.0, degrees: float = 0.0, highest: float = 0.3) -> Tensor:
    """The waves turned to the left, and then translated."""
    at = torch.arange(SIDE, dtype=torch.float64) + 0.5 - SIDE / 2
    x, y = at[None] - right, at[:, None] - down
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return waves(cosine * x - sine * y, sine * x + cosine * y, highest)


def ratio(error: float | None) -> float:
    assert error is not None
    return decibels([error])[0]


def test_whole_pixels_are_compared_as_they_are() -> None:
    still, other = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    expected = np.mean(np.square(other.numpy()[:, 2:, :-3] - still.numpy()[:, :-2, 3:]))
    assert translation_error(still, other, -3, 2) == pytest.approx(float(expected))
    assert ratio(translation_error(moved(), moved(3, -2), 3, -2)) > 130
    assert ratio(translation_error(moved(), moved(3, -2), -3, -2)) < 20


def test_parts_of_pixels_are_filtered() -> None:
    still, other = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(2)).double().numpy()
    places = np.arange(16)
    taps = np.sinc(places[:, None] - 1.25 - places) * np.sinc((places[:, None] - 1.25 - places) / 3)
    taps *= np.abs(places[:, None] - 1.25 - places) < 3
    expected = (other - still @ (taps / taps.sum(1, keepdims=True)).T)[:, :, 4:15]  # as far as the filter reaches
    found = translation_error(torch.from_numpy(still).float(), torch.from_numpy(other).float(), 1.25, 0)
    assert found == pytest.approx(float(np.mean(np.square(expected))), rel=1e-5)
    assert ratio(translation_error(moved(), moved(2.4, -1.7), 2.4, -1.7)) > 40
    assert ratio(translation_error(moved(highest=0.05), moved(2.4, -1.7, highest=0.05), 2.4, -1.7)) > 65
    assert ratio(translation_error(moved(), moved(2.4, -1.7), 2.4, -1.2)) < 30


@pytest.mark.parametrize("degrees", [0.0, 30.0, 90.0, -135.0])
def test_turns(degrees: float) -> None:
    assert ratio(rotation_error(moved(), moved(degrees=degrees), degrees)) > 65
    assert ratio(rotation_error(moved(), moved(degrees=degrees), degrees + 2)) < 40


def test_what_no_turned_grid_holds_does_not_count() -> None:
    """The finest checks are beyond the frequencies of a grid that is turned by an eighth."""
    at = torch.arange(SIDE)
    checks = ((at[None] + at[:, None]) % 2 * 2.0 - 1).expand(3, -1, -1)
    assert ratio(translation_error(moved(), moved() + checks, 0, 0)) < 10
    assert ratio(rotation_error(moved(), moved(degrees=45) + checks, 45)) > 45


def test_too_small_to_turn() -> None:
    for side, known in ((12, False), (16, True)):
        assert (rotation_error(torch.zeros(1, side, side), torch.zeros(1, side, side), 45) is not None) is known


def test_decibels() -> None:
    assert decibels([0.04] * 3) == pytest.approx((20.0, 0.0))
    value, width = decibels([0.03, 0.05])  # the mean of two values with a standard error of 0.01
    assert value == pytest.approx(20.0)
    assert width == pytest.approx(10 / math.log(10) * 1.96 * 0.01 / 0.04)
    assert decibels([0.0])[0] == pytest.approx(10 * math.log10(4e14))
