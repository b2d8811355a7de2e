"""Kernels for ReLU and means, by Triton's interpreter on a processor: they give torch's bits."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from frugan.kernels import pooling
from frugan.kernels.operation import operations
from simulated_card.bf16 import rounding
from simulated_card.kernel_settings import SETTINGS
from simulated_card.other_order import in_another_order

pytest.importorskip("triton.runtime.interpreter", reason="needs Triton: pip install 'frugan[kernels]'")

PAIRS = {each.name: (each.plain, each.start) for each in operations(pooling)}
"""Operation -> the same in torch and by the kernel."""
_rounded = rounding()


@pytest.fixture(autouse=True, scope="module")
def _small_tiles() -> Any:
    """Small maps have several programs along both axes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TILE": 128, "MOST_WIDE": 16}.items():
            patch.setattr(pooling, name, value)
        yield


def cases(size: int, channels: int, height: int, width: int, dtype: torch.dtype) -> dict[str, tuple[Tensor, ...]]:
    """Of all operations, by maps of which some numbers are 0, and some -0; height and width of the small ones."""
    generator = torch.Generator().manual_seed(size + channels + height + width)

    def random(times: int) -> Tensor:
        x = torch.randn(size, channels, times * height, times * width, generator=generator)
        x = x.where(torch.rand(x.shape, generator=generator) > 0.1, -0.0)
        return x.to(dtype).contiguous(memory_format=torch.channels_last)

    x, gradient, other, small = random(2), random(2), random(2), random(1)
    return {
        "pooled_beside_relu": (x,),
        "pooled_plus": (x, small),
        "pooled_relu": (x,),
        "pooled_beside_relu_slopes": (gradient, x, small),
        "passed_plus": (gradient, x, other),
        "pooled_relu_slopes": (small, x),
    }


def ends(name: str, way: int, values: tuple[Tensor, ...]) -> list[Tensor]:
    made = PAIRS[name][way](*values)
    return [made] if isinstance(made, Tensor) else list(made)


@SETTINGS
@given(
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 7),
    st.integers(1, 7),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_each_gives_torchs_bits(size: int, channels: int, height: int, width: int, dtype: torch.dtype) -> None:
    for name, values in cases(size, channels, height, width, dtype).items():
        for one, other in zip(ends(name, 0, values), ends(name, 1, values), strict=True):
            assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride()), name
            assert torch.equal(one, other), name


def test_two_orders_of_programs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program reads or writes what another one writes."""
    each = cases(2, 21, 5, 3, torch.float16)
    forwards = {name: ends(name, 1, values) for name, values in each.items()}
    dims = in_another_order(monkeypatch)
    for name, values in each.items():
        assert all(torch.equal(*pair) for pair in zip(forwards[name], ends(name, 1, values), strict=True))
        assert dims[0] > 1
        assert name == "passed_plus" or dims[1] > 1


def test_what_is_not_a_number_stays_so() -> None:
    """A training that diverges must be seen to."""
    x = torch.full((1, 2, 2, 2), float("nan")).contiguous(memory_format=torch.channels_last)
    small, ones = x[:, :, :1, :1], torch.ones_like(x)
    for name, values in {
        "pooled_beside_relu": (x,),
        "pooled_plus": (ones, small),
        "pooled_relu": (x,),
        "pooled_beside_relu_slopes": (ones, ones, small),
        "passed_plus": (x, ones, ones),
        "pooled_relu_slopes": (small, ones),
    }.items():
        assert all(made.isnan().all() for made in ends(name, 1, values)), name
    assert PAIRS["passed_plus"][1](ones, x, ones).eq(2).all()  # torch's ReLU passes a gradient where it gave no number
