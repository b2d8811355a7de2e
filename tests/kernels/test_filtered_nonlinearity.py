"""The nonlinearity between two filters as operations of our own: what plain torch gives, and derivatives."""

from typing import Any

import pytest
import torch
from torch import Tensor

from frugan.contract.ops import PLAIN, Ops
from frugan.families.stylegan3.filtered_nonlinearity import filtered_nonlinearity
from frugan.kernels import filtered_nonlinearity as kernel
from frugan.kernels.filtered_nonlinearity import FilteredNonlinearity
from frugan.kernels.operation import operations
from frugan.setup.ops import kernel_names, ops_of
from frugan.stepmemory.work import WorkCounter

ORDERS = (torch.channels_last, torch.contiguous_format)
LINES = (torch.tensor([1.0, 3, 2]), torch.tensor([2.0, 1, 1, 3]))


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def layer(x: Tensor, bias: Tensor, ops: Ops) -> Tensor:
    return filtered_nonlinearity(x, bias, *LINES, 2, 2, (3, 2, 1, 4), 1.5, 0.2, 2.0, ops)


@pytest.mark.parametrize("order", ORDERS)
def test_it_is_what_torch_gives(order: torch.memory_format) -> None:
    """Forward, gradients, and gradients of a penalty on these; of a part of a larger map too."""
    x, bias = random(2, 5, 6, 9).contiguous(memory_format=order), random(5)
    for of in (x, x[:, :, :, 1:8]):
        sides = []
        for ops in (FilteredNonlinearity(), PLAIN):
            leaves = [of.detach().requires_grad_(), bias.clone().requires_grad_()]
            result = layer(leaves[0], leaves[1], ops)
            first = torch.autograd.grad(result.square().sum(), leaves, create_graph=True)
            penalty = first[0].square().sum() + first[1].square().sum()
            sides.append([result, *first, *torch.autograd.grad(penalty, leaves)])
        for one, other in zip(*sides, strict=True):
            torch.testing.assert_close(one, other)


def test_derivatives() -> None:
    x, bias = random(1, 2, 4, 5).requires_grad_(), random(2).requires_grad_()

    def call(x: Tensor, bias: Tensor) -> Tensor:
        return layer(x, bias, FilteredNonlinearity())

    assert torch.autograd.gradcheck(call, (x, bias))
    assert torch.autograd.gradgradcheck(call, (x, bias), fast_mode=True)


@pytest.mark.parametrize("order", ORDERS)
def test_without_data_it_is_of_the_same_shapes_and_strides(order: torch.memory_format) -> None:
    x, bias = random(2, 5, 6, 7).float().contiguous(memory_format=order), torch.ones(5)
    of = (*LINES, 2, 2, (3, 2, 1, 4), 0.2, 2.0)
    result, codes = kernel.coded(x, bias, *of)
    values: dict[str, tuple[Any, ...]] = {
        "filtered_nonlinearity": (x, bias, *of),
        "filtered_by_codes": (result, codes, *of, (6, 7), True),
    }
    assert values.keys() == {operation.name for operation in operations(kernel)}
    for name, given in values.items():
        operation = getattr(torch.ops.frugan, name)
        filled = operation(*given)
        empty = operation(*(value.to("meta") if isinstance(value, Tensor) else value for value in given))
        pairs = [(empty, filled)] if isinstance(empty, Tensor) else list(zip(empty, filled, strict=True))
        for one, other in pairs:
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype), name


def test_nothing_in_between_is_moved() -> None:
    """A map is read, and made, once forward and once back; of the map in between two bits for each pixel."""
    ops = ops_of(kernel_names())
    x = torch.empty(2, 16, 64, 64, device="meta", dtype=torch.float16, requires_grad=True)
    bias, taps = torch.empty(16, device="meta", requires_grad=True), torch.empty(12, device="meta")
    with WorkCounter() as counter:
        result = filtered_nonlinearity(x, bias, taps, taps, 2, 2, (11, 10, 11, 10), 1.4, 0.2, 256.0, ops)
        result.backward(torch.empty_like(result))
    codes = 2 * 16 * 35 * 138
    maps = 5 * x.nbytes  # forward and backward, and once more for the bias
    assert counter.work.bytes_moved == pytest.approx(maps + 2 * codes, rel=0.01)
