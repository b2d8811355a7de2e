"""Averages move all together, exactly where that is asked for, and not at all where they are held back."""

import pytest
import torch
from torch import Tensor

from frugan.engine.state.ema import LARGE_ELEMENTS, copy_accepted, ema_lerp

HELD_BACK = torch.zeros((), dtype=torch.float64)


def _tensors(scale: float, dtype: torch.dtype) -> list[Tensor]:
    random = torch.Generator().manual_seed(round(scale))
    shapes = ((1000,), (3, 4, 5, 5), (), (LARGE_ELEMENTS,))
    made = [torch.randn(shape, generator=random, dtype=dtype) * scale for shape in shapes]
    return [each.contiguous(memory_format=torch.channels_last) if each.ndim == 4 else each for each in made]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", [1e-4, 0.3, 0.9, 1.0])
def test_they_follow(weight: float, dtype: torch.dtype) -> None:
    """At weight 1 the small values arrive exactly, though the average was large."""
    averages, values = _tensors(100, dtype), _tensors(1e-9, dtype)
    expected = [torch.lerp(a, v, weight) for a, v in zip(averages, values, strict=True)]
    ema_lerp(averages, values, torch.tensor(weight, dtype=torch.float64))
    for average, wanted, value in zip(averages, expected, values, strict=True):
        torch.testing.assert_close(average, wanted, rtol=1e-6, atol=1e-6)
        assert weight < 1 or torch.equal(average, value)


def test_another_layout_is_followed_too() -> None:
    average = torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    value = torch.arange(96.0).view(2, 3, 4, 4)
    ema_lerp([average], [value], torch.tensor(0.5))
    assert torch.equal(average, value / 2)


def test_what_is_held_back_stays() -> None:
    averages = _tensors(1, torch.float32)
    before = [each.clone() for each in averages]
    ema_lerp(averages, _tensors(100, torch.float32), HELD_BACK)
    assert all(torch.equal(a, b) for a, b in zip(averages, before, strict=True))


def test_a_copy_that_is_held_back_stays_even_before_what_is_not_finite() -> None:
    averages = _tensors(1, torch.float32)
    before = [each.clone() for each in averages]
    copy_accepted(averages, [torch.full_like(each, torch.nan) for each in averages], torch.tensor(False))
    assert all(torch.equal(a, b) for a, b in zip(averages, before, strict=True))


def test_copies_of_several_dtypes() -> None:
    targets = [torch.zeros(2), torch.zeros(3, dtype=torch.int64), torch.zeros(1, 2)]
    values = [torch.ones(2), torch.arange(3), torch.full((1, 2), 7.0)]
    copy_accepted(targets, values, torch.tensor(True))
    assert all(torch.equal(a, b) for a, b in zip(targets, values, strict=True))
