"""Convolutions of doubled pictures without the doubled picture, and means of a convolution without its own."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.nn.linear_maps import (
    folds_means,
    plus_doubled,
    plus_doubled_in_one_pass,
    pooled_conv2d,
    upsampled_conv2d,
)


def _random(*shape: int, last: bool = False) -> Tensor:
    made = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))
    return (made.contiguous(memory_format=torch.channels_last) if last else made).requires_grad_()


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "channels-last"])
@pytest.mark.parametrize(("side", "transposed"), [(2, False), (3, True), (5, True)])
def test_as_the_convolution_of_the_doubled_picture(side: int, transposed: bool, last: bool) -> None:
    """On both sides of where the way changes: 4 and 9 places for 8 channels."""
    x, weight, bias = _random(2, 3, side, side, last=last), _random(8, 3, 3, 3, last=last), _random(8)
    assert (side * side >= len(weight)) == transposed
    made = upsampled_conv2d(x, weight, bias)
    expected = F.conv2d(F.interpolate(x, scale_factor=2), weight, bias, padding=1)
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(made)
    gradients, wanted = (torch.autograd.grad((y * upstream).sum(), (x, weight, bias)) for y in (made, expected))
    for a, b in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "channels-last"])
def test_plus_the_doubled_picture(last: bool) -> None:
    x, small = _random(2, 3, 4, 6, last=last), _random(2, 3, 2, 3, last=last)
    made = plus_doubled(x, small)
    assert torch.equal(made, x + F.interpolate(small, scale_factor=2))
    assert torch.equal(plus_doubled_in_one_pass(x, small), made)
    assert made.stride() == x.stride()
    assert torch.autograd.gradcheck(plus_doubled, (x, small))
    assert torch.autograd.gradgradcheck(plus_doubled, (x, small), fast_mode=True)


@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "channels-last"])
def test_means_folded_into_the_convolution(last: bool, penalised: bool) -> None:
    """Itself, its derivatives, and those of a penalty on its gradient, where that is what it is made for."""
    x, weight, bias = _random(2, 3, 6, 4, last=last), _random(5, 3, 3, 3, last=last), _random(5)
    ends = []
    for made in (
        pooled_conv2d(x, weight, bias, penalised=penalised),
        F.avg_pool2d(F.conv2d(x, weight, bias, padding=1), 2),
    ):
        gradients = torch.autograd.grad((made.sin()).sum(), (x, weight, bias), create_graph=penalised)
        seconds = torch.autograd.grad(gradients[0].square().sum(), (x, weight)) if penalised else ()
        ends.append([made, *gradients, *seconds])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_means_are_folded_where_a_map_is_larger_than_its_channels_are_many() -> None:
    """However many samples there are."""
    weight = torch.empty(16, 2, 3, 3)
    assert [folds_means(side**2, weight) for side in (4, 7, 8, 16)] == [False, False, True, True]
