"""Linear maps that keep nothing of their input."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from frugan.contract import cpu_ways
from frugan.nn.linear_maps import conv2d, grouped_conv2d, mean_pool2d

CASES = [(1, 1, 0), (3, 1, 1), (3, 2, 0), (3, 2, 1)]
"""Kernel, stride, padding."""


def _random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    made = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))
    return made.to(dtype).contiguous(memory_format=torch.channels_last)


def _kept(function: Callable[[Tensor], Tensor], x: Tensor) -> set[int]:
    """Addresses of the memory that autograd keeps."""
    addresses: set[int] = set()

    def keep(tensor: Tensor) -> Tensor:
        addresses.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        function(x)
    return addresses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("kernel", "stride", "padding"), CASES)
def test_a_convolution_with_a_weight_that_learns_nothing(
    kernel: int, stride: int, padding: int, dtype: torch.dtype
) -> None:
    """The bits of torch's, value and gradient, of an odd side too."""
    weight, bias = _random(8, 4, kernel, kernel, dtype=dtype), torch.linspace(-1, 1, 8, dtype=dtype)
    for side in (8, 9):
        ours, theirs = (_random(2, 4, side, side, dtype=dtype).requires_grad_() for _ in range(2))
        made = conv2d(ours, weight, bias, stride=stride, padding=padding)
        expected = F.conv2d(theirs, weight, bias, stride, padding)
        assert torch.equal(made, expected)
        upstream = _random(*made.shape, dtype=dtype)
        (gradient,), (wanted,) = (torch.autograd.grad(y, x, upstream) for y, x in ((made, ours), (expected, theirs)))
        assert torch.equal(gradient, wanted)
        assert gradient.stride() == wanted.stride()


@pytest.mark.parametrize(("kernel", "stride", "padding"), CASES)
def test_its_derivatives(kernel: int, stride: int, padding: int) -> None:
    x, weight, bias = _random(2, 3, 5, 4).requires_grad_(), _random(2, 3, kernel, kernel), torch.ones(2).double()

    def convolved(x: Tensor) -> Tensor:
        return conv2d(x, weight, bias, stride=stride, padding=padding)

    assert torch.autograd.gradcheck(convolved, (x,))
    assert torch.autograd.gradgradcheck(convolved, (x,))


def test_a_convolution_in_groups() -> None:
    """Values and both derivatives, of a weight that learns nothing."""
    x, weight = _random(2, 6, 5, 4).requires_grad_(), _random(4, 3, 3, 3)

    def convolved(x: Tensor) -> Tensor:
        return conv2d(x, weight, padding=1, groups=2)

    torch.testing.assert_close(convolved(x), F.conv2d(x, weight, padding=1, groups=2))
    assert torch.autograd.gradcheck(convolved, (x,))
    assert torch.autograd.gradgradcheck(lambda x: convolved(x).square(), (x,))


def test_a_convolution_in_groups_that_learns() -> None:
    """Values, gradients and second derivatives in both, of torch's."""
    x, weight = _random(2, 6, 5, 4).requires_grad_(), _random(4, 3, 3, 3).requires_grad_()

    def convolved(x: Tensor, weight: Tensor) -> Tensor:
        return grouped_conv2d(x, weight, padding=1, groups=2)

    torch.testing.assert_close(convolved(x, weight), F.conv2d(x, weight, padding=1, groups=2))
    assert torch.autograd.gradcheck(convolved, (x, weight))
    assert torch.autograd.gradgradcheck(lambda x, weight: convolved(x, weight).square(), (x, weight))


def test_what_is_kept() -> None:
    """Only where the weight learns is the input needed again."""
    x, weight = _random(2, 3, 4, 4).requires_grad_(), _random(2, 3, 3, 3)
    own = x.untyped_storage().data_ptr()
    assert own not in _kept(lambda x: conv2d(x, weight), x)
    assert own in _kept(lambda x: conv2d(x, weight.requires_grad_()), x)
    assert not _kept(mean_pool2d, x)
    assert own in _kept(lambda x: F.avg_pool2d(x, 2), x)  # should torch mend it, ours is not needed any more


def test_a_weight_that_learns_gets_its_gradient() -> None:
    x, weight, bias = _random(2, 3, 4, 4).requires_grad_(), _random(2, 3, 3, 3).requires_grad_(), torch.ones(2).double()
    for learning in ((weight,), (weight, bias.requires_grad_())):
        gradients = torch.autograd.grad(conv2d(x, weight, bias, padding=1).square().sum(), (x, *learning))
        wanted = torch.autograd.grad(F.conv2d(x, weight, bias, padding=1).square().sum(), (x, *learning))
        assert all(torch.equal(a, b) for a, b in zip(gradients, wanted, strict=True))
    with_bias_alone = conv2d(x, weight.detach(), bias, padding=1)
    assert torch.autograd.grad(with_bias_alone.sum(), bias)[0].tolist() == [32.0, 32.0]


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("card", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_means_of_four(
    dtype: torch.dtype, card: bool, order: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits of torch's, value and gradient, in the way of processors and in that of cards."""
    monkeypatch.setattr(cpu_ways, "taken_for", lambda x: not card)
    start = _random(2, 3, 6, 4, dtype=dtype).contiguous(memory_format=order)
    ours, theirs = (start.clone().requires_grad_() for _ in range(2))
    made, expected = mean_pool2d(ours), F.avg_pool2d(theirs, 2)
    assert torch.equal(made, expected)
    upstream = _random(*made.shape, dtype=dtype).contiguous(memory_format=order)
    (gradient,), (wanted,) = (torch.autograd.grad(y, x, upstream) for y, x in ((made, ours), (expected, theirs)))
    assert torch.equal(gradient, wanted)
    assert gradient.stride() == wanted.stride()


def test_derivatives_of_means() -> None:
    x = _random(2, 3, 4, 6).requires_grad_()
    assert torch.autograd.gradcheck(mean_pool2d, (x,))
    assert torch.autograd.gradgradcheck(mean_pool2d, (x,))


class _Called(TorchDispatchMode):
    """Notes what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_the_gradient_of_what_is_held_constant_is_one_convolution() -> None:
    """Torch's own way stands a dummy in for the input, in whose order cuDNN would copy the gradient, and back."""
    x = _random(2, 4, 8, 8).requires_grad_()
    made = conv2d(x, _random(8, 4, 3, 3), padding=1)
    upstream = _random(*made.shape)
    with _Called() as called:
        torch.autograd.grad(made, x, upstream)
    assert "convolution.default" in called.operations
    assert not [name for name in called.operations if "convolution_backward" in name or "expand" in name]
