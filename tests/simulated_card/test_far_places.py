"""Kernels find their places in maps of more than 2^31 numbers: by Triton's interpreter, and without these maps."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from frugan.kernels import activation, filtered_nonlinearity, fir, maps, modulation, norm, pooling, ssim
from frugan.kernels.operation import operations
from simulated_card.far_places import FarMaps, far_maps

pytest.importorskip("triton.runtime.interpreter", reason="needs Triton: pip install 'frugan[kernels]'")

ORDERS = (torch.channels_last, torch.contiguous_format)
LARGE = 2**31
"""Numbers that a place of 32 bits cannot count."""
Shape = tuple[int, int, int, int]
SHAPES: Mapping[str, Shape] = {
    "pictures of 1 billion numbers": (5, 1000, 1034, 1022),
    "a picture of 3 billion numbers": (1, 3000, 1034, 1022),
}
FUSED = (activation, modulation, norm, pooling, fir, filtered_nonlinearity, ssim)
"""Kernels on maps. Those on matrices take 64 bits between matrices, and a matrix has fewer numbers."""
OF_FEW = {"activation.add_up", "norm.statistics", "norm.gather"}
"""Kernels on rows of sums, of which there are about a thousand."""


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> FarMaps:
    """Kernels without memory; a program does little, as the interpreter takes its time over each tile."""
    small = {"TILE": 64, "MOST_WIDE": 16, "MOST_PROGRAMS": 1 << 40, "LEAST_SUMMED": 8, "WIDE": 16}
    for module in (maps, pooling, ssim, filtered_nonlinearity):
        for name in small.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, small[name])
    return far_maps(
        monkeypatch, *(import_module(module.__name__.replace("kernels", "kernels.programs")) for module in FUSED)
    )


def calls(shape: Shape, order: torch.memory_format) -> dict[str, tuple[Any, ...]]:
    """What the operations on maps are given; ssim's maps are of fp32 and contiguous, those that are pooled are not."""
    count, channels, height, width = shape

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    x, gradient, made, of_x = (empty(*shape).contiguous(memory_format=order) for _ in range(4))
    factors, noise, strength, bias = empty(count, channels), empty(count, 1, height, width), empty(), empty(channels)
    taps, padding = empty(4, 4), (2, 1, 2, 1)
    found = empty(3, count, channels, dtype=torch.float32)
    norm = (found, factors, empty(count, channels))
    line, of_codes = empty(4), (count, channels, -(-2 * height // 4), 2 * width)  # a filter that keeps sizes
    codes = empty(*of_codes, dtype=torch.uint8).contiguous(memory_format=order)
    given: dict[str, tuple[Any, ...]] = {
        "leaky_relu": (x, bias, 1.0),
        "leaky_relu_slopes": (gradient, made, 1.0, True),
        "styled_leaky_relu": (x, factors, noise, strength, bias, 1.0),
        "styled_leaky_relu_slopes": (gradient, made, x, factors, noise, 1.0),
        "unscaled": (gradient, x, factors),
        "unscaled_twice": (gradient, made, x, factors, of_x, factors, 1.0),
        "norm_moments": (x, count),
        "norm_applied": (x, *norm, True),
        "norm_slopes": (gradient, x, *norm, True),
        "norm_unapplied": (gradient, x, *norm, empty(2, count, channels, dtype=torch.float32), True),
        "fir": (x, taps, 1, 1, padding),
        "fir_leaky_relu": (x, bias, taps, padding, 1.0),
        "fir_sloped": (gradient, x, bias, taps, padding, 1.0),
        "filtered_nonlinearity": (x, bias, line, line, 2, 2, padding, 0.2, 1.0),
        "filtered_by_codes": (gradient, codes, line, line, 2, 2, padding, 0.2, 1.0, (height, width), True),
        "fir_leaky_relu_slopes": (gradient, x, bias, taps, (1, 2, 1, 2), 1.0, True),
    }
    if order == torch.channels_last:
        small = empty(count, channels, height // 2, width // 2).contiguous(memory_format=order)
        return given | {
            "pooled_beside_relu": (x,),
            "pooled_plus": (x, small),
            "pooled_relu": (x,),
            "pooled_beside_relu_slopes": (gradient, x, small),
            "passed_plus": (gradient, x, of_x),
            "pooled_relu_slopes": (small, x),
        }
    a, b = (empty(*shape, dtype=torch.float32) for _ in range(2))
    spread, weights = empty(4, *shape, dtype=torch.float32), empty(count * channels, dtype=torch.float32)
    return given | {
        "ssim_moments": (a, b),
        "ssim_likeness": (spread, 1.0, 1.0, True, True),
        "ssim_gathered": (spread, 3, a, b, weights),
    }


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_offsets_have_64_bits_where_maps_are_large(shape: Shape, far: FarMaps) -> None:
    starts = {each.name: each.start for each in operations(*FUSED)}
    for order in ORDERS:
        for name, given in calls(shape, order).items():
            far.maps.clear()
            starts[name](*given)
            assert not far.strays, (name, order)
            for each in (map_ for map_ in far.maps if map_.last >= 0 and map_.elements > LARGE):
                assert each.first <= each.elements // 100, (name, order)
                assert each.last >= each.elements * 99 // 100, (name, order)
                if each.written:
                    assert (each.first, each.last) == (0, each.elements - 1), (name, order)
    assert far.started == far.kernels - OF_FEW
