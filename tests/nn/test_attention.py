"""Self-attention through the fused kernel equals the formula."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from frugan.nn.attention import SelfAttention


def _formula(layer: SelfAttention, x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    theta = layer.theta(x).view(batch, -1, height * width)
    phi = F.max_pool2d(layer.phi(x), 2).view(batch, -1, height * width // 4)
    g = F.max_pool2d(layer.g(x), 2).view(batch, -1, height * width // 4)
    beta = torch.softmax(theta.transpose(1, 2) @ phi, -1)  # [B, HW, HW/4]
    attended = (g @ beta.transpose(1, 2)).view(batch, channels // 2, height, width)
    return torch.add(layer.gamma * layer.o(attended), x)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_equals_the_formula_forward_and_backward(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    layer = SelfAttention(32, lambda a, b: nn.Conv2d(a, b, 1, bias=False))
    nn.init.constant_(layer.gamma, 0.7)
    x = torch.randn(2, 32, 16, 16).to(memory_format=layout).requires_grad_()
    ours, theirs = layer(x), _formula(layer, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(ours)
    wanted = [x, *layer.parameters()]
    for a, b in zip(
        torch.autograd.grad((ours * weight).sum(), wanted),
        torch.autograd.grad((theirs * weight).sum(), wanted),
        strict=True,
    ):
        assert float((a - b).norm()) <= 1e-5 * float(b.norm())


def test_starts_as_identity() -> None:
    layer = SelfAttention(8, lambda a, b: nn.Conv2d(a, b, 1, bias=False))
    x = torch.randn(1, 8, 4, 4)
    assert torch.equal(layer(x), x)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_never_stores_the_map(layout: torch.memory_format) -> None:
    """The unfused path would keep [HW, HW/4] numbers per sample for backward."""
    layer = SelfAttention(16, lambda a, b: nn.Conv2d(a, b, 1, bias=False))
    side = 32
    x = torch.randn(1, 16, side, side).to(memory_format=layout).requires_grad_()
    largest = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    assert largest < side**2 * side**2 // 4


def test_a_gradient_may_be_differentiated() -> None:
    """What R1 needs; the fused kernels have no second derivative."""
    torch.manual_seed(0)
    layer = SelfAttention(16, lambda a, b: nn.Conv2d(a, b, 1, bias=False))
    nn.init.constant_(layer.gamma, 0.7)
    x = torch.randn(2, 16, 8, 8, requires_grad=True)
    ours, theirs = layer(x, True), _formula(layer, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    penalties = []
    for made in (ours, theirs):
        (slope,) = torch.autograd.grad(made.square().sum(), x, create_graph=True)
        penalties.append(torch.autograd.grad(slope.square().sum(), list(layer.parameters())))
    for a, b in zip(*penalties, strict=True):
        assert float((a - b).norm()) <= 1e-5 * float(b.norm())


class _Attended(TorchDispatchMode):
    """Notes in which type attention is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "scaled_dot_product" in func.__name__:
            self.types.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("channels", "side", "computed"),
    [(16, 32, torch.float32), (64, 16, torch.float32), (64, 32, torch.bfloat16)],
    ids=["small heads", "few keys", "large"],
)
def test_in_half_precision(channels: int, side: int, computed: torch.dtype) -> None:
    """A CPU computes small heads and few keys in fp32, since its half precision is slower there."""
    torch.manual_seed(0)
    layer = SelfAttention(channels, lambda a, b: nn.Conv2d(a, b, 1, bias=False)).requires_grad_(False)
    layer.gamma.fill_(0.7)
    x = torch.randn(2, channels, side, side, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    exact = _formula(copy.deepcopy(layer).double(), x.double())
    with _Attended() as attended:
        found = layer.to(torch.bfloat16)(x)
    assert attended.types == {computed}
    assert found.dtype == torch.bfloat16
    assert float((found.double() - exact).abs().max()) <= 0.06
