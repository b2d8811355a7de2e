"""Large dense layers in slices: what is cast, and how often. That results stay is tested with the engine."""

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from frugan.engine.state.gradients import SliceSum, sliced_forward, slices_of


class Casts(TorchDispatchMode):
    """Notes shapes that are cast to half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and kwargs.get("dtype") == torch.bfloat16:
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


def test_the_input_is_cast_once_for_all_slices_and_its_gradient_adds_up_in_fp32() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 40, bias=False)
    total = SliceSum(layer.weight)
    slices = slices_of(layer.weight, total) + slices_of(layer.weight, total)  # one of 4 M weights holds all of it
    x = torch.randn(3, 6, requires_grad=True)
    with Casts() as casts:
        out = sliced_forward(layer, slices, torch.bfloat16, x)
        out.float().sum().backward()
    assert casts.shapes.count((3, 6)) == 1
    assert casts.shapes.count((40, 6)) == 2 * len(slices)  # a slice is cast when it is used, forward and backward
    assert out.shape == (3, 80)
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    torch.testing.assert_close(x.grad, 2 * layer.weight.detach().sum(0).expand(3, 6), rtol=2e-2, atol=2e-2)
    assert total.value is not None
    torch.testing.assert_close(total.value, 2 * x.detach().sum(0).expand(40, 6), rtol=2e-2, atol=2e-2)
