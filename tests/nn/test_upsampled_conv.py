"""Convolutions of doubled pictures without the doubled picture, and gain and bias with a backward of their own."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.nn.affine import affine
from frugan.nn.upsampled_conv import plus_doubled, upsampled_conv2d


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
    found, wanted = (torch.autograd.grad((y * upstream).sum(), (x, weight, bias)) for y in (made, expected))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "channels-last"])
def test_plus_the_doubled_picture(last: bool) -> None:
    x, small = _random(2, 3, 6, 8, last=last), _random(2, 3, 3, 4, last=last)
    made = plus_doubled(x, small)
    assert torch.equal(made, x + F.interpolate(small, scale_factor=2))
    assert made.stride() == x.stride()
    assert torch.autograd.gradcheck(plus_doubled, (x, small))
    assert torch.autograd.gradgradcheck(plus_doubled, (x, small))


@pytest.mark.parametrize(("gain", "bias"), [((1, 3, 1, 1), (1, 3, 1, 1)), ((2, 3, 1, 1), (2, 1, 4, 5))])
def test_gain_and_bias_and_both_derivatives(gain: tuple[int, ...], bias: tuple[int, ...]) -> None:
    given = (_random(2, 3, 4, 5), _random(*gain), _random(*bias))
    torch.testing.assert_close(affine(*given), given[0] * given[1] + given[2])
    assert torch.autograd.gradcheck(affine, given)
    assert torch.autograd.gradgradcheck(affine, given)
