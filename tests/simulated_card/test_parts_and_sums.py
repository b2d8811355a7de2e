"""Kernels by Triton's interpreter: given parts of larger maps, and sums that do not fit in half precision."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from frugan.contract.ops import Ops
from frugan.kernels import activation, fir, maps, modulation, norm, pooling, ssim
from frugan.kernels.operation import Operation, operations
from frugan.nn.fir import downsample2d, filtered_leaky_relu, fir_filter
from frugan.setup.ops import kernel
from frugan.training import kernels as tried
from simulated_card.bf16 import rounding
from simulated_card.kernel_settings import SETTINGS

pytest.importorskip("triton.runtime.interpreter", reason="needs Triton: pip install 'frugan[kernels]'")

STARTS: dict[str, Callable[..., Any]] = {
    each.name: each.start for each in operations(activation, fir, modulation, norm, pooling, ssim)
}
"""Operation -> what starts its kernel."""
OF_MAPS = ("leaky_relu", "styled_leaky_relu", "modulation", "fir", "batch_norm", "pooling", "dssim")
"""Kernels that are given maps."""
ORDERS = (torch.channels_last, torch.contiguous_format)
_rounded = rounding()


@pytest.fixture(autouse=True, scope="module")
def _small_tiles() -> Any:
    """A small map has a few programs, with several tiles each where they sum."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TILE": 256, "MOST_WIDE": 64, "MOST_PROGRAMS": 2, "LEAST_SUMMED": 8}.items():
            patch.setattr(maps, name, value)
        patch.setattr(tried, "TOLERANCE", {torch.float32: 1e-3})  # what is in another place is farther off
        yield


@pytest.fixture(scope="module")
def by_kernels() -> Any:
    """The operations start the kernels, on a processor too."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Operation, "__call__", Operation.by_kernel)
        yield


def filters(x: Tensor, bias: Tensor, *, ops: Ops) -> Tensor:
    """Of four taps, which the interpreter takes one after the other."""
    taps = fir_filter((1, 3))
    activated = filtered_leaky_relu(x, bias, taps, padding=(1, 1, 0, 1), ops=ops)
    return downsample2d(activated, taps, ops=ops)


def part_of_a_larger(x: Tensor, axis: int, order: torch.memory_format) -> Tensor:
    """The same numbers, between others along an axis."""
    shape = list(x.shape)
    shape[axis] += 3
    larger = torch.full(shape, 9.0).contiguous(memory_format=order)
    return larger.narrow(axis, 1, x.shape[axis]).copy_(x)


@pytest.mark.parametrize("name", OF_MAPS)
@settings(SETTINGS, max_examples=SETTINGS.max_examples // 4)  # besides the two below, for each kernel
@example((2, 4, 6, 7), torch.channels_last, 1, 1)
@example((1, 4, 6, 7), torch.contiguous_format, 3, 3)
@given(
    st.tuples(st.integers(1, 2), st.sampled_from([1, 4, 9]), st.integers(6, 8), st.integers(6, 8)),
    st.sampled_from(ORDERS),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_parts_of_larger_maps(
    by_kernels: None,
    name: str,
    shape: tuple[int, ...],
    order: torch.memory_format,
    cut: int,
    cut_of_gradient: int,
) -> None:
    """Whatever the axis along which maps, and gradients of what is made of them, are cut out."""
    call, values = kernel(name).case(shape, torch.float32, order, torch.device("cpu"))
    call = filters if name == "fir" else call

    def between_others(*tensors: Tensor, ops: Ops) -> Tensor:
        made = call(*tensors, ops=ops)
        if made.ndim != 4:
            return 1 - made  # of pictures that are much alike: what is left of 1 would show each rounding
        others = made.narrow(cut_of_gradient, 0, 1).detach()
        return torch.cat([others, made, others], cut_of_gradient).contiguous(memory_format=order)

    parts = [part_of_a_larger(each, cut, order) if each.shape[1:] == values[0].shape[1:] else each for each in values]
    assert tried.difference(between_others, parts, kernel(name)()) is None


COUNT = 600
"""Numbers in a sum: each a little more than 1, so that three of them take more digits than half precision has."""


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_that_do_not_fit_in_half_precision(dtype: torch.dtype, order: torch.memory_format) -> None:
    """Exactly: in fp32 they do."""
    ones = torch.ones(1, 3, 24, 25, dtype=dtype).contiguous(memory_format=order)
    value = 1 + torch.finfo(dtype).eps
    gradient = ones * value
    factors, noise, bias = ones[:, :, 0, 0].clone(), ones[:, :1].clone(), torch.zeros(3, dtype=dtype)
    taps, nothing = torch.ones(1, 1, dtype=dtype), (0, 0, 0, 0)
    found = torch.tensor([0.0, 1.0, 1.0])[:, None, None].expand(3, 1, 3).contiguous()
    norm = (found, factors, bias[None], False)
    sums = {
        "bias": STARTS["leaky_relu_slopes"](gradient, ones, None, True)[1],
        "of a product": STARTS["unscaled"](gradient, ones, factors)[1],
        "of its gradient": STARTS["unscaled_twice"](gradient, None, ones, factors, ones, None, None)[2],
        "beside a filter": STARTS["fir_leaky_relu_slopes"](gradient, ones, bias, taps, nothing, None, True)[1],
        "of a norm": STARTS["norm_slopes"](gradient, ones, *norm).flatten(0, 1),
    }
    _, of_bias, of_factors, numbers = STARTS["styled_leaky_relu_slopes"](gradient, ones, ones, factors, noise, None)
    sums |= {"of a style's bias": of_bias, "of a style": of_factors, "of noise": numbers[:, None]}
    expected = {**dict.fromkeys(sums, COUNT), "of a norm": 2 * COUNT, "of noise": 3 * COUNT}
    for name, rows in sums.items():
        assert len(rows) > 1, name
        assert torch.equal(rows.sum(0).double(), torch.full(rows.shape[1:], expected[name] * value).double()), name
