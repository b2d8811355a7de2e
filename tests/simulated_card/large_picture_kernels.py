"""Kernels that store places which those of our own would read or write, in Triton's language."""
# ruff: noqa: ANN001, ANN202, ANN201
# mypy: ignore-errors

import triton
import triton.language as tl

from frugan.kernels.programs.activation import _places
from frugan.kernels.programs.fir import _samples


@triton.jit
def _to(found, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Of a tile's places [BLOCK_P, BLOCK_C]."""
    return found + tl.arange(0, BLOCK_P)[:, None] * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]


@triton.jit
def of_a_tile(
    found, first, first_channel, pixels, channels,
    LAST: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """As kernels for maps have them."""
    c = first_channel + tl.arange(0, BLOCK_C)
    begins, within, inside = _places(first, c, pixels, channels, LAST, BLOCK_P)
    tl.store(_to(found, BLOCK_P, BLOCK_C), begins + within, mask=inside)


@triton.jit
def of_samples(
    found, first, first_channel, pixels, channels,
    LAST: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """As filters have them."""
    c = first_channel + tl.arange(0, BLOCK_C)
    within = _samples(first + tl.arange(0, BLOCK_P), c, pixels, channels, LAST)
    tl.store(_to(found, BLOCK_P, BLOCK_C), within)
