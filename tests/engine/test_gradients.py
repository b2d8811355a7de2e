"""What is judged before an update."""

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from frugan.engine.state.gradients import LARGE_ELEMENTS, SLICE_ELEMENTS, SmallSums, all_finite, share_of_zeros


@pytest.mark.parametrize(
    ("values", "finite"),
    [([0.0, -3e38], True), ([1.0, math.nan], False), ([-math.inf, 1.0], False), ([math.inf, math.nan], False)],
)
def test_one_value_that_is_not_finite_is_enough(values: list[float], finite: bool) -> None:
    assert bool(all_finite(torch.tensor(values))) is finite


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_zeros_of_a_large_gradient_are_counted_in_slices(layout: torch.memory_format) -> None:
    """A card makes a byte of each element that it counts."""
    gradient = torch.ones(48, 512, 32, 16).contiguous(memory_format=layout)
    gradient[5, :, 3] = 0
    gradient[47, 7, 0, 0] = 0

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket is torch.ops.aten.count_nonzero:
                sizes.append(args[0].numel())
            return func(*args, **(kwargs or {}))

    sizes: list[int] = []
    with Counted():
        share = share_of_zeros(gradient)
    assert share.shape == ()
    assert float(share) == pytest.approx((512 * 16 + 1) / gradient.numel(), rel=1e-3)
    assert max(sizes) <= SLICE_ELEMENTS
    assert sum(sizes) == gradient.numel() >= LARGE_ELEMENTS
    assert float(share_of_zeros(torch.tensor([0.0, 1.0, 2.0, 0.0]))) == 0.5
    assert float(share_of_zeros(torch.tensor(0.0))) == 1.0


@pytest.mark.parametrize("kernel", [1, 3])
def test_sums_of_small_gradients_lie_as_their_leaves(kernel: int) -> None:
    """Backward of a convolution gives gradients in another layout than the weight's, which would be copied again."""
    leaf = torch.zeros(6, 4, kernel, kernel, dtype=torch.bfloat16)
    gradient = torch.randn(6, 4, kernel, kernel).bfloat16().to(memory_format=torch.channels_last)
    assert gradient.stride() != leaf.stride()
    sums = SmallSums()
    for _ in range(2):
        leaf.grad = gradient
        sums(leaf)
        sums.add_up()
    total = sums.take(leaf)
    assert total is not None
    assert total.stride() == leaf.stride()
    assert torch.equal(total, 2 * gradient.float())
