"""The kernel of the nonlinearity between two filters, by Triton's interpreter: it gives what plain torch gives."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from frugan.contract.filtered_nonlinearity import Nonlinearity
from frugan.contract.ops import PLAIN
from frugan.kernels import filtered_nonlinearity as kernel
from frugan.kernels import maps
from frugan.kernels.filtered_nonlinearity import FilteredNonlinearity, by_codes, coded
from frugan.kernels.operation import Operation
from frugan.training.kernels import difference
from simulated_card.bf16 import rounding
from simulated_card.other_order import in_another_order

pytest.importorskip("triton.runtime.interpreter", reason="needs Triton: pip install 'frugan[kernels]'")

ORDERS = (torch.channels_last, torch.contiguous_format)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NEAR = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
PADDING = (4, 3, 2, 5)
_rounded = rounding()
long = pytest.mark.long


@pytest.fixture(autouse=True, scope="module")
def _small_tiles() -> Iterator[None]:
    """A small map has several programs along rows, columns and channels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "WIDE", 16)
        yield


def of_few_digits(shape: tuple[int, ...], dtype: torch.dtype, order: torch.memory_format | None = None) -> Tensor:
    """Halves from -1.5 to 1.5: what is between the filters is not rounded, and takes the slope that it should."""
    numbers = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape)))
    x = numbers.to(dtype) / 2
    return x if order is None else x.contiguous(memory_format=order)


def filters(kind: str, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Filters that are the same from no side."""
    line, other = torch.tensor([1, -1, 2, 1, -2], dtype=dtype), torch.tensor([2, 1, 1, -1], dtype=dtype)
    square = torch.tensor([[1, 2, -1], [0, 1, 1], [1, -1, 0], [2, 0, 1]], dtype=dtype)
    return {
        "lines": (line, other),
        "a square below": (line, square),
        "a square above": (square, line),
        "nothing above": (None, other),
        "nothing below": (other, None),
    }[kind]


def held_to_torch(operation: Operation[Any, Any], *values: Any) -> None:
    """Hold what an operation gives by its kernel to what it gives in torch."""
    expected, found = operation.plain(*values), operation.start(*values)
    pairs = [(found, expected)] if isinstance(found, Tensor) else list(zip(found, expected, strict=True))
    for one, other in pairs:
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
        if one.dtype == torch.uint8 or not one.numel():
            assert torch.equal(one, other)
        else:
            near = NEAR[one.dtype] * max(1.0, float(other.abs().max()))
            torch.testing.assert_close(one, other, rtol=0, atol=near)


@pytest.mark.parametrize(
    ("kind", "dtype", "order"),
    [
        ("lines", torch.float32, ORDERS[0]),
        ("lines", torch.float16, ORDERS[1]),
        ("a square below", torch.bfloat16, ORDERS[0]),
        ("a square above", torch.float16, ORDERS[1]),
        pytest.param("lines", torch.bfloat16, ORDERS[0], marks=long),
        pytest.param("a square below", torch.float32, ORDERS[1], marks=long),
        pytest.param("a square above", torch.float32, ORDERS[0], marks=long),
    ],
    ids=str,
)
def test_the_operation_and_its_adjoint(kind: str, dtype: torch.dtype, order: torch.memory_format) -> None:
    """Of a map that takes several programs along rows and columns."""
    x, bias = of_few_digits((1, 3, 6, 7), dtype, order), of_few_digits((3,), dtype)
    of = (*filters(kind, dtype), 2, 2, PADDING, 0.25, 1.45)
    held_to_torch(coded, x, bias, *of)
    result, codes = coded.plain(x, bias, *of)
    held_to_torch(by_codes, of_few_digits(tuple(result.shape), dtype, order), codes, *of, (6, 7), True)


def test_pictures_and_blocks_of_channels() -> None:
    """And the operation for known codes, which a gradient of a gradient needs."""
    x, bias = of_few_digits((2, 18, 3, 2), torch.float32, ORDERS[0]), of_few_digits((18,), torch.float32)
    of = (*filters("lines", torch.float32), 2, 2, PADDING, 0.25, None)
    held_to_torch(coded, x, bias, *of)
    _, codes = coded.plain(x, bias, *of)
    held_to_torch(by_codes, x, codes, *of, (3, 2), False)


@pytest.mark.parametrize(
    ("up", "down", "kind", "padding"),
    [
        (4, 2, "lines", (-1, 3, 2, -2)),
        (2, 4, "lines", (7, 6, 9, 5)),
        (1, 2, "nothing above", (0, 1, -1, 2)),
        pytest.param(2, 1, "nothing below", (3, 2, 1, 4), marks=long),
        pytest.param(1, 4, "a square below", (3, 2, 5, 4), marks=long),
        pytest.param(4, 1, "a square above", (3, 2, 5, 4), marks=long),
        pytest.param(1, 1, "lines", (6, -1, 5, 4), marks=long),
    ],
)
def test_rates_and_paddings(up: int, down: int, kind: str, padding: tuple[int, int, int, int]) -> None:
    x, bias = of_few_digits((1, 2, 4, 5), torch.float32, ORDERS[1]), of_few_digits((2,), torch.float32)
    of = (*filters(kind, torch.float32), up, down, padding, 0.2, None)
    held_to_torch(coded, x, bias, *of)
    result, codes = coded.plain(x, bias, *of)
    held_to_torch(by_codes, of_few_digits(tuple(result.shape), torch.float32), codes, *of, (4, 5), True)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=long), torch.float16])
def test_the_case_that_a_card_compares(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Derivatives too, and theirs."""
    monkeypatch.setattr(Operation, "__call__", Operation.by_kernel)
    case = FilteredNonlinearity.case((1, 2, 4, 3), dtype, ORDERS[0], torch.device("cpu"))
    assert difference(*case, FilteredNonlinearity()) is None


def test_parts_of_larger_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some channels, and with a gradient that is a single number."""
    monkeypatch.setattr(Operation, "__call__", Operation.by_kernel)
    larger = of_few_digits((1, 4, 4, 3), torch.float32, ORDERS[0])
    of = Nonlinearity(2, 2, (3, 2, 3, 2), 0.25, None)
    line, sides = torch.tensor([1.0, 3, 3, 1]), []
    for ops in (FilteredNonlinearity(), PLAIN):
        whole, bias = larger.clone().requires_grad_(), torch.ones(2, requires_grad=True)
        result = ops.filtered_nonlinearity(whole[:, 1:3], bias, line, line, of)
        sides.append([result, *torch.autograd.grad(result.sum(), [whole, bias])])
    for one, other in zip(*sides, strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_is_made_of_no_pictures() -> None:
    x, taps = torch.empty(0, 3, 5, 4), torch.ones(4)
    held_to_torch(coded, x, torch.ones(3), taps, taps, 2, 2, PADDING, 0.2, None)


def test_two_orders_of_programs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program writes what another one writes, codes included."""
    x, bias = torch.randn(1, 18, 5, 7), torch.randn(18)
    of = (*filters("lines", torch.float32), 2, 2, PADDING, 0.2, 1.0)
    before = coded.start(x, bias, *of)
    dims = in_another_order(monkeypatch)
    after = coded.start(x, bias, *of)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert dims[0] > 1
    assert dims[1] > 1


def test_without_filters_it_is_plain_torch() -> None:
    x, bias = torch.randn(1, 2, 3, 3), torch.randn(2)
    of = Nonlinearity(1, 1, (0, 0, 0, 0), 1.0, 0.5)
    ways = (FilteredNonlinearity(), PLAIN)
    found, expected = (ops.filtered_nonlinearity(x, bias, None, None, of) for ops in ways)
    assert torch.equal(found, expected)
    assert maps.is_channels_last(found) == maps.is_channels_last(expected)
