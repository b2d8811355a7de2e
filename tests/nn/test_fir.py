"""Filters in half precision on a CPU, which upsample another way there, give what fp32 gives."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from frugan.nn.fir import upfirdn2d


class Transposed(TorchDispatchMode):
    """Counts transposed convolutions."""

    found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default and args[6]:
            self.found += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("padding", [(2, 1, 2, 1), (3, 0, 1, 2), (-1, 2, 2, -1)])
@pytest.mark.parametrize("flip", [False, True])
def test_upsampling_in_half_on_a_cpu(padding: tuple[int, int, int, int], flip: bool) -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(2, 3, 5, 6).bfloat16(), torch.randn(12)
    fir = torch.randn(4, 3).bfloat16().float()
    with Transposed() as used:
        in_half = both(x, fir, weights, padding, flip)
    assert used.found == 0
    with Transposed() as used:
        in_full = both(x.float(), fir, weights, padding, flip)
    assert used.found > 0
    for half, full in zip(in_half, in_full, strict=True):
        assert half.shape == full.shape
        assert float((half - full).abs().max()) < 0.02 * float(full.abs().max())


def both(x: Tensor, fir: Tensor, weights: Tensor, padding: Any, flip: bool) -> tuple[Tensor, Tensor]:
    """What is upsampled, and what flows back through a downsampling."""
    made = upfirdn2d(x, fir, up=2, padding=padding, flip=flip)
    given = x.clone().requires_grad_()
    less = upfirdn2d(given, fir, down=2, padding=(1, 2, 1, 2), flip=flip)
    scaled = less * weights[: less.shape[-1]].to(x.dtype)
    (gradient,) = torch.autograd.grad(scaled.sum(), given)
    return made.float(), gradient.float()
