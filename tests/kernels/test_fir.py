"""Filters as operations of our own: what torch's convolutions give, and derivatives; how many passes there are."""

from typing import Any

import pytest
import torch
from torch import Tensor

from frugan.contract.layers import use_ops
from frugan.contract.ops import PLAIN, Ops
from frugan.families.stylegan2.config import StyleGAN2Networks
from frugan.families.stylegan2.networks import Discriminator
from frugan.kernels import fir
from frugan.kernels.fir import Fir
from frugan.kernels.operation import operations
from frugan.nn.equalised import EqualisedConv2d
from frugan.nn.fir import downsample2d, filtered_leaky_relu, fir_filter, upfirdn2d, upsample2d
from frugan.setup.ops import kernel_names, ops_of
from frugan.stepmemory.work import WorkCounter

KERNEL = Fir()
ORDERS = (torch.channels_last, torch.contiguous_format)
ONE_SIDED = fir_filter((1, 3, 2))
"""Not the same from both sides."""


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    made = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))
    return made.to(dtype)


def layers(x: Tensor, bias: Tensor, ops: Ops, clamp: float | None = 0.7) -> Tensor:
    """Filters as layers have them."""
    made = filtered_leaky_relu(x, bias, ONE_SIDED, padding=(2, 1, 2, 2), clamp=clamp, ops=ops)
    made = upfirdn2d(downsample2d(made, fir_filter(), ops=ops), ONE_SIDED, flip=True, gain=3, ops=ops)
    return upsample2d(made, fir_filter(), ops=ops)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("clamp", [None, 0.7])
def test_it_is_what_torch_gives(dtype: torch.dtype, order: torch.memory_format, clamp: float | None) -> None:
    """Forward, gradients, and gradients of a penalty on these."""
    near = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    sides = []
    for ops in (KERNEL, PLAIN):
        x = random(2, 5, 6, 7, dtype=dtype).contiguous(memory_format=order).requires_grad_()
        bias = random(5, dtype=torch.float32).requires_grad_()
        made = layers(x, bias, ops, clamp)
        plain = torch.autograd.grad(made.float().square().sum(), [x, bias], retain_graph=True)
        first = torch.autograd.grad(made.float().square().sum(), [x, bias], create_graph=True)
        penalty = sum((each.float().square().sum() for each in first), torch.zeros(()))
        sides.append([made, *plain, *first, *torch.autograd.grad(penalty, [x, bias])])
    for own, torchs in zip(*sides, strict=True):
        assert own.dtype == torchs.dtype
        torch.testing.assert_close(own, torchs, rtol=near, atol=near * float(torchs.detach().abs().max()))


@pytest.mark.parametrize("clamp", [None, 0.7])
def test_derivatives(clamp: float | None) -> None:
    """As often as one asks: the gradient of what is activated is linear in what it is given, and so is its own."""
    x, bias = random(1, 2, 4, 5).requires_grad_(), random(2).requires_grad_()

    def call(x: Tensor, bias: Tensor) -> Tensor:
        return layers(x, bias, KERNEL, clamp)

    def gradients(weights: Tensor) -> tuple[Tensor, ...]:
        made = filtered_leaky_relu(x, bias, ONE_SIDED, padding=(2, 1, 2, 2), clamp=clamp, ops=KERNEL)
        return torch.autograd.grad(made, [x, bias], weights, create_graph=True)

    assert torch.autograd.gradcheck(call, (x, bias))
    assert torch.autograd.gradgradcheck(call, (x, bias), fast_mode=True)
    assert torch.autograd.gradgradcheck(gradients, (random(1, 2, 6, 6).requires_grad_(),), fast_mode=True)


def values(order: torch.memory_format) -> dict[str, tuple[Any, ...]]:
    """Of each operation what it may be given."""
    x, bias, taps = random(2, 5, 6, 7).float().contiguous(memory_format=order), torch.ones(5), torch.ones(4, 3)
    of = (taps, (2, 1, 2, -1), 0.7)
    made = torch.ones(2, 5, 4, 8).contiguous(memory_format=order)
    return {
        "fir": (x, taps, 2, 1, (2, 1, 2, -1)),
        "fir_leaky_relu": (x, bias, *of),
        "fir_sloped": (x, x, bias, *of),
        "fir_leaky_relu_slopes": (made, x, bias, taps.flip((0, 1)), (0, 1, 1, 4), 0.7, True),
    }


@pytest.mark.parametrize("order", ORDERS)
def test_without_data_it_is_of_the_same_shapes_and_strides(order: torch.memory_format) -> None:
    assert values(order).keys() == {operation.name for operation in operations(fir)}
    for name, given in values(order).items():
        operation = getattr(torch.ops.frugan, name)
        filled = operation(*given)
        empty = operation(*(each.to("meta") if isinstance(each, Tensor) else each for each in given))
        pairs = [(empty, filled)] if isinstance(empty, Tensor) else list(zip(empty, filled, strict=True))
        for one, other in pairs:
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype), name


@pytest.mark.parametrize("half", [torch.float16, torch.float32])
def test_an_activation_and_a_filter_are_one_pass(half: torch.dtype) -> None:
    """Between two convolutions a map is read and written once less, there and back, than by a pass for each."""
    first, second = EqualisedConv2d(16, 16, 3, clamp=0.7), EqualisedConv2d(16, 16, 3, resample="down", clamp=0.7)
    counts = []
    for ops in (ops_of(kernel_names()), ops_of(["leaky_relu"])):
        work = []
        for layer in (first, second):
            use_ops(layer.to("meta", half), ops)
        x = torch.empty(2, 16, 64, 64, device="meta", dtype=half, requires_grad=True)
        for times in (1, 2):
            with WorkCounter() as counter:
                made = second.after(first, x)
                for _ in range(times - 1):
                    made.backward(torch.empty_like(made))
            work.append(counter.work)
        counts.append((work[0], work[1].bytes_moved - work[0].bytes_moved))
    maps = x.nbytes
    (fused, fused_back), (apart, apart_back) = counts
    assert apart.bytes_moved - fused.bytes_moved == pytest.approx(2 * maps, rel=0.1)
    assert apart_back - fused_back == pytest.approx(2 * maps, rel=0.1)


def test_a_discriminator(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it gives, and gradients of a penalty on its gradient; layers of it may be frozen."""
    config = StyleGAN2Networks(resolution=16, channel_base=256, channel_max=16, frozen_discriminator_layers=2)
    torch.manual_seed(1)
    discriminator = Discriminator(config).double()
    learning = [each for each in discriminator.parameters() if each.requires_grad]
    for parameter in discriminator.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    pictures = random(4, 3, 16, 16).requires_grad_()
    calls, sides, activated = list[str](), [], fir._Activated.apply

    def counted(*of: Any) -> Any:
        calls.append("called")
        return activated(*of)

    monkeypatch.setattr(fir._Activated, "apply", counted)
    for ops in (KERNEL, PLAIN):
        use_ops(discriminator, ops)
        made = discriminator(pictures)
        (first,) = torch.autograd.grad(made.sum(), pictures, create_graph=True)
        sides.append([made, first, *torch.autograd.grad(first.square().sum() + made.sum(), learning)])
    assert len(calls) == 2
    for own, torchs in zip(*sides, strict=True):
        torch.testing.assert_close(own, torchs)
