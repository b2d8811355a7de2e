"""Factors of a map's channels by operations of our own: demodulation with noise, bias, leaky ReLU and clamp behind it
in one pass, and both gradients of modulation in another.

Their kernels are in `modulation_kernels` and give what torch's operations give, up to the last bit: a product and a sum
may be rounded once instead of twice. Sums are as in `fused_activation`.
"""

from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

from frugan.nn import elementwise
from frugan.nn.elementwise import SLOPE, limit_of
from frugan.nn.fused_activation import (
    Grid,
    Slopes,
    activated,
    biased_leaky_relu,
    constants_of,
    grid_of,
    laid_out,
    laid_out_like,
    room_for_sums,
    slopes,
)
from frugan.nn.own_operations import Operations, registered

# What is to be computed, in torch's operations.


def activated_with_style(x: Tensor, factors: Tensor, noise: Tensor | None, bias: Tensor, clamp: float | None) -> Tensor:
    """clamp(leaky(x·factors + noise + bias)): [N, C, H, W], [N, C], [N or 1, 1, H, W], [C], of one dtype."""
    factors = factors[:, :, None, None]
    return activated(x * factors if noise is None else torch.addcmul(noise, x, factors), bias, clamp)


def slopes_with_style(
    gradient: Tensor, made: Tensor, x: Tensor, factors: Tensor, clamp: float | None, noisy: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient of x, and sums in fp32.

    Returns:
        Of x [N, C, H, W]; for the bias and for the factors [rows, C], a picture's rows together; for the noise
        [blocks, N, 1, H, W], 0 of them where there is none.
    """
    passed, _ = slopes(gradient, made, clamp, False)
    sums = [each.zero_() for each in _styled_sums(made, grid_of(made, apart=True, summed=True), noisy)]
    if made.numel():
        wide = passed.to(sums[0].dtype)
        for rows, values in zip(sums, (wide, wide * x), strict=False):
            rows.view(len(made), -1, made.shape[1])[:, 0] = values.sum((2, 3))
        if noisy:
            sums[2][0] = wide.sum(1, keepdim=True)
    return passed * factors[:, :, None, None], sums[0], sums[1], sums[2]


def unscaled(gradient: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x·factors: of x [N, C, H, W], and sums for the factors [rows, C], a picture's together, in fp32."""
    sums = room_for_sums(x, grid_of(x, apart=True, summed=True), True).zero_()
    if x.numel():
        sums.view(len(x), -1, x.shape[1])[:, 0] = (gradient.to(sums.dtype) * x).sum((2, 3))
    return gradient * factors[:, :, None, None], sums


def _styled_sums(made: Tensor, grid: Grid, noisy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Room for those of bias, factors and noise."""
    bias = room_for_sums(made, grid, True)
    noise = bias.new_empty(grid.blocks if noisy else 0, len(made), 1, *made.shape[2:])
    return bias, torch.empty_like(bias), noise


# The same in the kernels.


def start_activated_with_style(
    x: Tensor, factors: Tensor, noise: Tensor | None, bias: Tensor, clamp: float | None
) -> Tensor:
    """As `activated_with_style`."""
    if x.dtype == torch.float64:
        return activated_with_style(x, factors, noise, bias, clamp)
    from frugan.nn import modulation_kernels as kernels  # noqa: PLC0415

    made, grid = torch.empty_like(x), grid_of(x, apart=True, summed=False)
    if made.numel():
        stride = 0 if noise is None or len(noise) == 1 else grid.pixels
        given = (x, factors.contiguous(), x if noise is None else noise.contiguous(), bias.contiguous(), made)
        numbers = (grid.pixels, grid.channels, stride, SLOPE, limit_of(clamp, x.dtype) or 0.0)
        constants = {"NOISY": noise is not None, **constants_of(grid, clamp)}
        kernels.activate_styled[grid.rows, grid.blocks](*given, *numbers, **constants)
    return made


def start_slopes_with_style(
    gradient: Tensor, made: Tensor, x: Tensor, factors: Tensor, clamp: float | None, noisy: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `slopes_with_style`."""
    if made.dtype == torch.float64:
        return slopes_with_style(gradient, made, x, factors, clamp, noisy)
    from frugan.nn import modulation_kernels as kernels  # noqa: PLC0415

    grid, to_x = grid_of(made, apart=True, summed=True), torch.empty_like(made)
    sums = _styled_sums(made, grid, noisy)
    if made.numel():
        numbers = (grid.pixels, grid.channels, grid.loops, grid.pictures, SLOPE, limit_of(clamp, made.dtype) or 0.0)
        constants = {"NOISY": noisy, **constants_of(grid, clamp)}
        given = (gradient, made, x, factors.contiguous(), to_x, *sums)
        kernels.slopes_styled[grid.rows, grid.blocks](*given, *numbers, **constants)
    return to_x, *sums


def start_unscaled(gradient: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """As `unscaled`."""
    if x.dtype == torch.float64:
        return unscaled(gradient, x, factors)
    from frugan.nn import modulation_kernels as kernels  # noqa: PLC0415

    grid, to_x = grid_of(x, apart=True, summed=True), torch.empty_like(x)
    sums = room_for_sums(x, grid, True)
    if x.numel():
        constants = constants_of(grid, None)
        del constants["CLAMPED"]
        given = (gradient, x, factors.contiguous(), to_x, sums)
        kernels.unscale[grid.rows, grid.blocks](*given, grid.pixels, grid.channels, grid.loops, **constants)
    return to_x, sums


# As operations of torch's.


def _made_like(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


def _styled_slopes_like(
    gradient: Tensor, made: Tensor, x: Tensor, factors: Tensor, clamp: float | None, noisy: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(made), *_styled_sums(made, grid_of(made, apart=True, summed=True), noisy)


def _unscaled_like(gradient: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), room_for_sums(x, grid_of(x, apart=True, summed=True), True)


_MAP, _STYLE = "Tensor gradient, Tensor made", "Tensor x, Tensor factors"
OPERATIONS: Operations = MappingProxyType(
    {
        f"styled_leaky_relu({_STYLE}, Tensor? noise, Tensor bias, float? clamp) -> Tensor": (
            activated_with_style,
            start_activated_with_style,
            _made_like,
        ),
        f"styled_leaky_relu_slopes({_MAP}, {_STYLE}, float? clamp, bool noisy) -> (Tensor, Tensor, Tensor, Tensor)": (
            slopes_with_style,
            start_slopes_with_style,
            _styled_slopes_like,
        ),
        f"unscaled(Tensor gradient, {_STYLE}) -> (Tensor, Tensor)": (unscaled, start_unscaled, _unscaled_like),
    }
)
_LIBRARY = registered(OPERATIONS)
_operations = torch.ops.frugan


# What layers call; differentiable as often as one asks.


def styled_leaky_relu(
    x: Tensor,
    factors: Tensor,
    noise: Tensor | None,
    bias: Tensor,
    *,
    clamp: float | None = None,
    kernels: frozenset[str] = frozenset(),
) -> Tensor:
    """clamp(leaky(x·factors + noise + bias)).

    Args:
        x: [N, C, H, W].
        factors: [N, C], of its dtype.
        noise: [N, 1, H, W] or [H, W], of its dtype.
        bias: [C].
        clamp, kernels: as `biased_leaky_relu` has them.
    """
    if "styled_leaky_relu" in kernels and not elementwise.is_traced():
        noise = None if noise is None else noise.view(-1, 1, *noise.shape[-2:])
        return cast(Tensor, _StyledLeakyReLU.apply(laid_out(x), factors, noise, bias, clamp))
    factors = factors[:, :, None, None]
    x = x * factors if noise is None else elementwise.affine(x, factors, noise)
    return biased_leaky_relu(x, bias, clamp=clamp, kernels=kernels)


class _StyledLeakyReLU(torch.autograd.Function):
    """Keeps x and its result. All gradients in one pass, unless these are to be differentiated in their turn."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, factors: Tensor, noise: Tensor | None, bias: Tensor, clamp: float | None
    ) -> Tensor:
        made = cast(Tensor, _operations.styled_leaky_relu(x, factors, noise, bias.to(x.dtype), clamp))
        ctx.save_for_backward(x, factors, made)
        ctx.clamp, ctx.noise_shape = clamp, None if noise is None else noise.shape
        ctx.sums = bias.dtype if ctx.needs_input_grad[3] else None
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, factors, made = ctx.saved_tensors
        noisy = ctx.noise_shape is not None
        if torch.is_grad_enabled():
            passed, to_bias = Slopes.apply(gradients[0], made, ctx.clamp, ctx.sums)
            to_noise = passed.sum_to_size(ctx.noise_shape) if noisy else None
            return passed * factors[:, :, None, None], (passed * x).sum((2, 3)), to_noise, to_bias, None
        given = laid_out_like(gradients[0], made)
        to_x, bias_rows, factor_rows, noise_rows = _operations.styled_leaky_relu_slopes(
            given, made, x, factors, ctx.clamp, noisy
        )
        to_bias, to_factors = _operations.added_up(bias_rows, factor_rows, len(x), factors.dtype)
        to_noise = _sum_of(noise_rows).sum_to_size(ctx.noise_shape) if noisy else None
        return to_x, to_factors, to_noise, to_bias, None


def _sum_of(rows: Tensor) -> Tensor:
    """Over the first axis; one row is its own sum."""
    return rows[0] if len(rows) == 1 else rows.sum(0)


def gradients_of_product(
    gradient: Tensor, x: Tensor, factors: Tensor, kernels: frozenset[str]
) -> tuple[Tensor, Tensor]:
    """Of x·factors, [N, C, H, W] and [N, C, 1, 1]: for each of them. Differentiable where that is asked for."""
    if "modulation" not in kernels or torch.is_grad_enabled():
        return gradient * factors, (gradient * x).sum((2, 3), keepdim=True)
    x = laid_out(x)
    to_x, rows = _operations.unscaled(laid_out_like(gradient, x), x, factors.flatten(1))
    return to_x, _operations.added_up(None, rows, len(x), factors.dtype)[1][:, :, None, None]
