"""Gain and bias with a backward of their own; along rows in half precision on a CPU, with the same bits."""

import pytest
import torch
from torch import Tensor

from frugan.contract import elementwise as module
from frugan.contract.elementwise import affine


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("given", [(2, 5, 1, 1), (1, 5, 1, 1), (5, 1, 1)])
def test_repeated_along_rows_is_the_same(given: tuple[int, ...], order: torch.memory_format) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, 4).bfloat16().contiguous(memory_format=order)
    gain, bias = torch.randn(given).bfloat16(), torch.randn(given).bfloat16()
    y = affine(x, gain, bias)
    assert torch.equal(y, torch.addcmul(bias, x, gain))
    assert y.stride() == x.stride()
    repeated = len(given) == 4 and order is torch.channels_last
    assert (module._along_rows(gain, x).shape[-1] == 4) is repeated


@pytest.mark.parametrize(("gain", "bias"), [((1, 3, 1, 1), (1, 3, 1, 1)), ((2, 3, 1, 1), (2, 1, 2, 3))])
def test_gain_and_bias_and_both_derivatives(gain: tuple[int, ...], bias: tuple[int, ...]) -> None:
    given = (_random(2, 3, 2, 3), _random(*gain), _random(*bias))
    torch.testing.assert_close(affine(*given), given[0] * given[1] + given[2])
    assert torch.autograd.gradcheck(affine, given)
    assert torch.autograd.gradgradcheck(affine, given, fast_mode=True)
