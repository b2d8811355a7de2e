"""Gain and bias in half precision on a CPU, repeated along rows there, are the same bits."""

import pytest
import torch

from frugan.nn import affine as module
from frugan.nn.affine import affine


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("given", [(2, 5, 1, 1), (1, 5, 1, 1), (5, 1, 1)])
def test_repeated_along_rows_is_the_same(given: tuple[int, ...], order: torch.memory_format) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, 4).bfloat16().contiguous(memory_format=order)
    gain, bias = torch.randn(given).bfloat16(), torch.randn(given).bfloat16()
    found = affine(x, gain, bias)
    assert torch.equal(found, torch.addcmul(bias, x, gain))
    assert found.stride() == x.stride()
    repeated = len(given) == 4 and order is torch.channels_last
    assert (module._along_rows(gain, x).shape[-1] == 4) is repeated
