"""The nonlinearity between two filters, held to plain torch: values, gradients, and what it keeps for them."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract import filtered_nonlinearity as module
from frugan.families.stylegan3.filtered_nonlinearity import filtered_nonlinearity
from frugan.stepmemory import Dataless, measure

SLOPE, GAIN = 0.2, math.sqrt(2)
Padding = tuple[int, int, int, int]


def plain(
    x: Tensor,
    bias: Tensor,
    up_filter: Tensor | None,
    down_filter: Tensor | None,
    up: int,
    down: int,
    padding: Padding,
    gain: float,
    slope: float,
    clamp: float | None,
) -> Tensor:
    """By torch's own derivatives, in as many steps as there are."""

    def square(taps: Tensor | None) -> Tensor:
        if taps is None:
            return x.new_ones(1, 1)
        return torch.outer(taps, taps) if taps.ndim == 1 else taps

    first = square(up_filter).to(x.dtype) * up**2
    second = square(down_filter).to(x.dtype)
    count, channels, height, width = x.shape
    x = x + bias.to(x.dtype)[:, None, None]
    spread = F.pad(x[..., None, :, None], (0, up - 1, 0, 0, 0, up - 1)).reshape(
        count, channels, height * up, width * up
    )
    spread = F.pad(spread, padding)
    x = F.conv2d(spread, first.flip((0, 1)).expand(channels, 1, *first.shape), groups=channels)
    x = torch.where(x > 0, x, x * slope) * gain
    x = x if clamp is None else x.clamp(-clamp, clamp)
    return F.conv2d(x, second.flip((0, 1)).expand(channels, 1, *second.shape), groups=channels, stride=down)


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    numbers = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))
    return numbers.to(dtype)


def filters(kind: str) -> tuple[Tensor | None, Tensor | None]:
    """Filters that are the same from no side."""
    first, second = {
        "lines": (random(5), random(4)),
        "a square below": (random(5), random(4, 3)),
        "a square above": (random(3, 4), random(4)),
        "none": (None, None),
    }[kind]
    return first, second


def derivatives(call: object, x: Tensor, bias: Tensor, *of: object) -> list[Tensor]:
    """Result, gradients, and gradients of a penalty on these."""
    assert callable(call)
    x, bias = x.detach().requires_grad_(), bias.detach().requires_grad_()
    result = call(x, bias, *of)
    weights = random(*result.shape).to(result.dtype).requires_grad_()
    first = torch.autograd.grad(result, [x, bias], weights, create_graph=True)
    second = torch.autograd.grad([first[0].square().sum() + first[1].square().sum()], [weights])
    return [result, *first, *second]


@pytest.mark.parametrize("kind", ["lines", "a square below", "a square above", "none"])
@pytest.mark.parametrize(("up", "down"), list(product((1, 2, 4), repeat=2)))
def test_values_and_gradients_of_plain_torch(up: int, down: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For odd sides and paddings of both signs, in pieces of samples, of channels, and in one."""
    x, bias = random(3, 4, 9, 7), random(4)
    for padding, piece in (((2, 3, 1, 0), 2**23), ((7, 6, 8, 5), 600), ((-1, 2, 3, -2), 1)):
        monkeypatch.setattr(module, "PIECE", piece)
        for clamp in (None, 1.3):
            of = (*filters(kind), up, down, padding, GAIN, SLOPE, clamp)
            expected = derivatives(plain, x, bias, *of)
            for order in (torch.contiguous_format, torch.channels_last):
                found = derivatives(filtered_nonlinearity, x.contiguous(memory_format=order), bias, *of)
                for one, other in zip(found, expected, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12 * float(other.detach().abs().max()))


ORDERS = (torch.contiguous_format, torch.channels_last)
RATES = (2, 2, (2, 3, 1, 0), GAIN, SLOPE)


def test_derivatives_of_derivatives() -> None:
    x, bias = random(2, 2, 5, 4).requires_grad_(), random(2).requires_grad_()

    def call(x: Tensor, bias: Tensor) -> Tensor:
        return filtered_nonlinearity(x, bias, random(5), random(3, 4), *RATES, 0.9)

    assert torch.autograd.gradcheck(call, (x, bias))
    assert torch.autograd.gradgradcheck(call, (x, bias))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precision(dtype: torch.dtype, order: torch.memory_format) -> None:
    """Of numbers with so few digits that the map in between is not rounded: every pixel takes the slope it should."""
    x = (random(2, 8, 12, 13) * 2).round().clamp(-3, 3).to(dtype).contiguous(memory_format=order) / 2
    bias, taps = random(8, dtype=torch.float32).round() / 2, torch.tensor([1, -1, 2, 1]) / 2
    of = (taps, taps.flip(0), 2, 2, (2, 3, 1, 0), 1.0, 0.25, 1.45)
    found = derivatives(filtered_nonlinearity, x, bias, *of)
    expected = derivatives(plain, x.double(), bias.double(), *of)
    assert [one.dtype for one in found] == [dtype, dtype, torch.float32, dtype]
    assert found[0].is_contiguous(memory_format=order)
    for one, other in zip(found, expected, strict=True):
        near = 4 * torch.finfo(dtype).eps * float(other.detach().abs().max())
        torch.testing.assert_close(one.double(), other, rtol=0, atol=near)


def test_filters_of_many_digits_in_fp32() -> None:
    x, bias = random(2, 8, 12, 13).float(), random(8).float()
    of = (random(12) / 2, random(12) / 2, 2, 2, (11, 10, 11, 10), GAIN, SLOPE, 2.0)
    found = derivatives(filtered_nonlinearity, x, bias, *of)
    expected = derivatives(plain, x.double(), bias.double(), *of)
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).detach().norm() / other.detach().norm()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_bias_takes_sums_that_do_not_fit_in_half_precision(dtype: torch.dtype) -> None:
    value = 1 + torch.finfo(dtype).eps
    bias = torch.ones(3, requires_grad=True)
    x = torch.ones(2, 3, 30, 20, dtype=dtype)
    result = filtered_nonlinearity(x, bias, None, None, 1, 1, (0, 0, 0, 0), 1.0, SLOPE, None)
    result.backward(torch.full_like(x, value))
    assert bias.grad is not None
    assert torch.equal(bias.grad, torch.full((3,), 1200 * value))


def test_a_bias_that_is_frozen_takes_no_gradient() -> None:
    x = random(1, 2, 5, 5).requires_grad_()
    result = filtered_nonlinearity(x, random(2), random(4), random(4), *RATES, None)
    (to_x,) = torch.autograd.grad(result.sum(), x)
    assert to_x.shape == x.shape


@pytest.mark.parametrize("order", ORDERS)
def test_a_quarter_of_a_byte_for_a_pixel_is_all_that_is_kept(order: torch.memory_format) -> None:
    """And nothing in between is there for more than a piece."""
    kept = list[Tensor]()
    x = random(3, 4, 9, 8).contiguous(memory_format=order).requires_grad_()

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        filtered_nonlinearity(x, random(4), random(6), random(6), 2, 2, (5, 4, 5, 4), GAIN, SLOPE, 2.0)
    codes = [tensor for tensor in kept if tensor.ndim == 4]
    assert [(tensor.shape, tensor.dtype) for tensor in codes] == [((3, 4, 6, 20), torch.uint8)]
    assert all(tensor.numel() <= 6 for tensor in kept if tensor.ndim != 4)
    assert codes[0].is_contiguous(memory_format=order)


def test_a_step_without_data_takes_what_a_real_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 20000)
    monkeypatch.setattr("frugan.contract.cpu_ways.taken_for", lambda x: False)  # plans go the card's way
    taken = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            x, bias = torch.ones(8, 16, 32, 32, requires_grad=True), torch.ones(16, requires_grad=True)
            taps = torch.ones(12)

        def step() -> None:
            filtered_nonlinearity(x, bias, taps, taps, 2, 2, (11, 10, 11, 10), GAIN, SLOPE, 256.0).sum().backward()  # noqa: B023
            x.grad = bias.grad = None  # noqa: B023

        memory = measure(step, {"batch": [x]}, dataless=Dataless() if device == "meta" else None)
        taken.append(memory.peak.size_bytes)
    assert taken[0] == taken[1]
    # the map, the result, codes (a quarter of it) and gradients; the map in between would be four times as large
    assert taken[0] < 4 * x.nbytes


def test_a_map_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(ValueError, match="6 and 6 taps leave nothing of 3 pixels at 2 times the rate"):
        filtered_nonlinearity(random(1, 1, 3, 3), random(1), random(6), random(6), 2, 2, (0, 0, 0, 0), 1.0, SLOPE, None)
