"""Factors of a map's channels by operations of our own: demodulation with noise, bias, leaky ReLU and clamp behind it
in one pass, and both gradients of modulation in another. Gradients of these gradients are one pass more.

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


def activated_with_style(
    x: Tensor, factors: Tensor, noise: Tensor | None, strength: Tensor | None, bias: Tensor, clamp: float | None
) -> Tensor:
    """clamp(leaky(x·factors + noise·strength + bias)).

    Args:
        x: [N, C, H, W].
        factors: [N, C], of its dtype, as bias.
        noise: [N or 1, 1, H, W]; its product with the strength, a scalar, is rounded to x's dtype.
        bias: [C].
    """
    factors = factors[:, :, None, None]
    if noise is None or strength is None:
        return activated(x * factors, bias, clamp)
    return activated(torch.addcmul((noise * strength).to(x.dtype), x, factors), bias, clamp)


def slopes_with_style(
    gradient: Tensor, made: Tensor, x: Tensor, factors: Tensor, noise: Tensor | None, clamp: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient of x, and sums in fp32.

    Returns:
        Of x [N, C, H, W]; for the bias and for the factors [rows, C], a picture's rows together; for the noise's
        strength one number of each program, of none where there is no noise.
    """
    passed, _ = slopes(gradient, made, clamp, False)
    sums = [each.zero_() for each in _styled_sums(made, grid_of(made, apart=True, summed=True), noise is not None)]
    if made.numel():
        wide = passed.to(sums[0].dtype)
        for rows, values in zip(sums, (wide, wide * x), strict=False):
            rows.view(len(made), -1, made.shape[1])[:, 0] = values.sum((2, 3))
        if noise is not None:
            sums[2][0] = (wide.sum(1, keepdim=True) * noise).sum()
    return passed * factors[:, :, None, None], sums[0], sums[1], sums[2]


def unscaled(gradient: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x·factors: of x [N, C, H, W], and sums for the factors [rows, C], a picture's together, in fp32."""
    sums = room_for_sums(x, grid_of(x, apart=True, summed=True), True).zero_()
    if x.numel():
        sums.view(len(x), -1, x.shape[1])[:, 0] = (gradient.to(sums.dtype) * x).sum((2, 3))
    return gradient * factors[:, :, None, None], sums


def unscaled_twice(
    gradient: Tensor,
    made: Tensor | None,
    x: Tensor,
    factors: Tensor,
    of_x: Tensor | None,
    of_factors: Tensor | None,
    clamp: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `unscaled`, or of `slopes_with_style` where something was made: of what they give for x and factors.

    Args:
        of_x: gradient of what they give for x [N, C, H, W].
        of_factors: of what they give for the factors, [N, C]. One of both may be missing.

    Returns:
        Of their gradient [N, C, H, W]; of x the same, without elements where none comes from the factors; sums for the
        factors [rows, C], a picture's together, in fp32, without rows where none come from x.
    """
    passed = gradient if made is None else slopes(gradient, made, clamp, False)[0]
    to_x, sums = _twice_like(gradient, made, x, factors, of_x, of_factors, clamp)[1:]
    total = torch.zeros_like(x, dtype=sums.dtype)
    if of_x is not None:
        total += of_x.to(sums.dtype) * factors[:, :, None, None]
        if sums.zero_().numel():
            sums.view(len(x), -1, x.shape[1])[:, 0] = (passed.to(sums.dtype) * of_x).sum((2, 3))
    if of_factors is not None:
        total += x.to(sums.dtype) * of_factors[:, :, None, None]
        to_x.copy_(passed * of_factors[:, :, None, None])
    to_gradient = total.to(x.dtype)
    return to_gradient if made is None else slopes(to_gradient, made, clamp, False)[0], to_x, sums


def _styled_sums(made: Tensor, grid: Grid, noisy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Room for those of bias, factors and the noise's strength."""
    bias = room_for_sums(made, grid, True)
    return bias, torch.empty_like(bias), bias.new_empty(grid.rows * grid.blocks if noisy else 0)


# The same in the kernels.


def start_activated_with_style(
    x: Tensor, factors: Tensor, noise: Tensor | None, strength: Tensor | None, bias: Tensor, clamp: float | None
) -> Tensor:
    """As `activated_with_style`."""
    if x.dtype == torch.float64:
        return activated_with_style(x, factors, noise, strength, bias, clamp)
    from frugan.nn import modulation_kernels as kernels  # noqa: PLC0415

    made, grid = torch.empty_like(x), grid_of(x, apart=True, summed=False)
    if made.numel():
        drawn, stride = _drawn(noise, x)
        given = (x, factors.contiguous(), drawn, x if strength is None else strength, bias.contiguous(), made)
        numbers = (grid.pixels, grid.channels, stride, SLOPE, limit_of(clamp, x.dtype) or 0.0)
        constants = {"NOISY": noise is not None, **constants_of(grid, clamp)}
        kernels.activate_styled[grid.rows, grid.blocks](*given, *numbers, **constants)
    return made


def start_slopes_with_style(
    gradient: Tensor, made: Tensor, x: Tensor, factors: Tensor, noise: Tensor | None, clamp: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `slopes_with_style`."""
    if made.dtype == torch.float64:
        return slopes_with_style(gradient, made, x, factors, noise, clamp)
    from frugan.nn import modulation_kernels as kernels  # noqa: PLC0415

    grid, to_x = grid_of(made, apart=True, summed=True), torch.empty_like(made)
    sums = _styled_sums(made, grid, noise is not None)
    if made.numel():
        drawn, stride = _drawn(noise, x)
        numbers = (grid.pixels, grid.channels, grid.loops, stride, SLOPE, limit_of(clamp, made.dtype) or 0.0)
        constants = {"NOISY": noise is not None, **constants_of(grid, clamp)}
        given = (gradient, made, x, factors.contiguous(), drawn, to_x, *sums)
        kernels.slopes_styled[grid.rows, grid.blocks](*given, *numbers, **constants)
    return to_x, *sums


def _drawn(noise: Tensor | None, x: Tensor) -> tuple[Tensor, int]:
    """Noise as kernels read it, and how far apart they find pictures of it."""
    if noise is None:
        return x, 0
    noise = noise if noise[:1].is_contiguous() else noise.contiguous()
    return noise, 0 if len(noise) == 1 else noise.stride(0)


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


def start_unscaled_twice(
    gradient: Tensor,
    made: Tensor | None,
    x: Tensor,
    factors: Tensor,
    of_x: Tensor | None,
    of_factors: Tensor | None,
    clamp: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `unscaled_twice`."""
    if x.dtype == torch.float64:
        return unscaled_twice(gradient, made, x, factors, of_x, of_factors, clamp)
    from frugan.nn import modulation_kernels as kernels  # noqa: PLC0415

    found = to_gradient, to_x, sums = _twice_like(gradient, made, x, factors, of_x, of_factors, clamp)
    grid = grid_of(x, apart=True, summed=of_x is not None)
    if x.numel():
        maps = (gradient, x if made is None else made, x, factors.contiguous(), x if of_x is None else of_x)
        given = (*maps, factors if of_factors is None else of_factors.contiguous(), to_gradient, to_x, sums)
        numbers = (grid.pixels, grid.channels, grid.loops, SLOPE, limit_of(clamp, x.dtype) or 0.0)
        constants = {"SLOPED": made is not None, "OF_X": of_x is not None, "OF_FACTORS": of_factors is not None}
        kernels.unscale_twice[grid.rows, grid.blocks](*given, *numbers, **constants, **constants_of(grid, clamp))
    return found


# As operations of torch's.


def _made_like(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


def _styled_slopes_like(
    gradient: Tensor, made: Tensor, x: Tensor, factors: Tensor, noise: Tensor | None, clamp: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(made), *_styled_sums(made, grid_of(made, apart=True, summed=True), noise is not None)


def _unscaled_like(gradient: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), room_for_sums(x, grid_of(x, apart=True, summed=True), True)


def _twice_like(
    gradient: Tensor,
    made: Tensor | None,
    x: Tensor,
    factors: Tensor,
    of_x: Tensor | None,
    of_factors: Tensor | None,
    clamp: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    to_x = x.new_empty(0) if of_factors is None else torch.empty_like(x)
    grid = grid_of(x, apart=True, summed=of_x is not None)
    return torch.empty_like(x), to_x, room_for_sums(x, grid, of_x is not None)


_MAP, _STYLE = "Tensor gradient, Tensor made", "Tensor x, Tensor factors"
OPERATIONS: Operations = MappingProxyType(
    {
        f"styled_leaky_relu({_STYLE}, Tensor? noise, Tensor? strength, Tensor bias, float? clamp) -> Tensor": (
            activated_with_style,
            start_activated_with_style,
            _made_like,
        ),
        f"styled_leaky_relu_slopes({_MAP}, {_STYLE}, Tensor? noise, float? clamp)"
        " -> (Tensor, Tensor, Tensor, Tensor)": (slopes_with_style, start_slopes_with_style, _styled_slopes_like),
        f"unscaled(Tensor gradient, {_STYLE}) -> (Tensor, Tensor)": (unscaled, start_unscaled, _unscaled_like),
        f"unscaled_twice(Tensor gradient, Tensor? made, {_STYLE}, Tensor? of_x, Tensor? of_factors, float? clamp)"
        " -> (Tensor, Tensor, Tensor)": (unscaled_twice, start_unscaled_twice, _twice_like),
    }
)
_LIBRARY = registered(OPERATIONS)
_operations = torch.ops.frugan


# What layers call; differentiable as often as one asks.


def styled_leaky_relu(
    x: Tensor,
    factors: Tensor,
    noise: Tensor | None,
    strength: Tensor,
    bias: Tensor,
    *,
    clamp: float | None = None,
    kernels: frozenset[str] = frozenset(),
) -> Tensor:
    """clamp(leaky(x·factors + noise·strength + bias)).

    Args:
        x: [N, C, H, W].
        factors: [N, C], of its dtype.
        noise: [N, 1, H, W] or [H, W]; None: there is none.
        strength: of the noise, a scalar; their product is rounded to x's dtype.
        bias: [C].
        clamp, kernels: as `biased_leaky_relu` has them.
    """
    if "styled_leaky_relu" in kernels and not elementwise.is_traced():
        noise = None if noise is None else noise.view(-1, 1, *noise.shape[-2:])
        return cast(Tensor, _StyledLeakyReLU.apply(laid_out(x), factors, noise, strength, bias, clamp))
    factors = factors[:, :, None, None]
    added = None if noise is None else elementwise.scaled_noise(noise, strength, x.dtype)
    x = x * factors if added is None else elementwise.affine(x, factors, added)
    return biased_leaky_relu(x, bias, clamp=clamp, kernels=kernels)


class _StyledLeakyReLU(torch.autograd.Function):
    """Keeps x and its result."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, factors: Tensor, noise: Tensor | None, strength: Tensor, bias: Tensor, clamp: float | None
    ) -> Tensor:
        made = cast(Tensor, _operations.styled_leaky_relu(x, factors, noise, strength, bias.to(x.dtype), clamp))
        ctx.save_for_backward(x, factors, noise, strength, made)
        ctx.clamp = clamp
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradients[0] is None:  # of what only its slopes are asked for, in a gradient of a gradient
            return None, None, None, None, None, None
        x, factors, noise, strength, made = ctx.saved_tensors
        gradient, to_noise = laid_out_like(gradients[0], made), None
        to_x, to_factors, to_strength, to_bias = _StyledSlopes.apply(gradient, made, x, factors, noise, ctx.clamp)
        if ctx.needs_input_grad[2]:  # which no training asks for
            passed, _ = Slopes.apply(gradient, made, ctx.clamp, None, SLOPE)
            to_noise = passed.sum(1, keepdim=True).sum_to_size(noise.shape) * strength
        return to_x, to_factors, to_noise, to_strength, to_bias, None


class _StyledSlopes(torch.autograd.Function):
    """All gradients in one pass, and theirs in another.

    Unless these are to be differentiated in their turn, or come from those of strength or bias: nothing asks for them.
    """

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, made: Tensor, x: Tensor, factors: Tensor, noise: Tensor | None, clamp: float | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        ctx.save_for_backward(gradient, made, x, factors, noise)
        ctx.clamp = clamp
        ctx.set_materialize_grads(False)
        to_x, *sums = _operations.styled_leaky_relu_slopes(gradient, made, x, factors, noise, clamp)
        numbers = None if noise is None else sums.pop()
        to_bias, to_factors, to_strength = _operations.added_up(*sums[:2], numbers, len(x), factors.dtype)
        return to_x, to_factors, None if noise is None else to_strength, to_bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        gradient, made, x, factors, noise = ctx.saved_tensors
        of_x, of_factors, of_strength, of_bias = gradients
        if of_strength is None and of_bias is None and not torch.is_grad_enabled():
            to_gradient, to_x, to_factors = _twice(gradient, made, x, factors, of_x, of_factors, ctx.clamp)
            return to_gradient, None, to_x, to_factors, None, None
        passed, _ = Slopes.apply(gradient, made, ctx.clamp, None, SLOPE)
        of_passed, to_x, to_factors = _twice_by_torch(passed, x, factors, of_x, of_factors)
        to_noise = None
        if of_strength is not None and ctx.needs_input_grad[4]:
            to_noise = passed.sum(1, keepdim=True).sum_to_size(noise.shape) * of_strength
        of_noise = None if of_strength is None else noise * of_strength
        for part in (of_noise, None if of_bias is None else of_bias[:, None, None]):
            if part is not None:
                whole = part.to(made.dtype).expand_as(made)
                of_passed = whole if of_passed is None else of_passed + whole
        to_gradient = None if of_passed is None else Slopes.apply(of_passed, made, ctx.clamp, None, SLOPE)[0]
        return to_gradient, None, to_x, to_factors, to_noise, None


def gradients_of_product(
    gradient: Tensor, x: Tensor, factors: Tensor, kernels: frozenset[str]
) -> tuple[Tensor, Tensor]:
    """Of x·factors, [N, C, H, W] and [N, C, 1, 1]: for each of them. Differentiable where that is asked for."""
    if "modulation" not in kernels:
        return gradient * factors, (gradient * x).sum((2, 3), keepdim=True)
    x = laid_out(x)
    to_x, to_factors = _Unscaled.apply(laid_out_like(gradient, x), x, factors.flatten(1))
    return to_x, to_factors[:, :, None, None]


class _Unscaled(torch.autograd.Function):
    """Both gradients of a product in one pass, and theirs in another, unless these are to be differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(gradient, x, factors)
        ctx.set_materialize_grads(False)
        to_x, rows = _operations.unscaled(gradient, x, factors)
        return to_x, _operations.added_up(None, rows, None, len(x), factors.dtype)[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        gradient, x, factors = ctx.saved_tensors
        of_x, of_factors = gradients
        if torch.is_grad_enabled():
            return _twice_by_torch(gradient, x, factors, of_x, of_factors)
        return _twice(gradient, None, x, factors, of_x, of_factors, None)


def _twice(
    gradient: Tensor,
    made: Tensor | None,
    x: Tensor,
    factors: Tensor,
    of_x: Tensor | None,
    of_factors: Tensor | None,
    clamp: float | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """As `unscaled_twice`, its sums added up; nothing of nothing."""
    if of_x is None and of_factors is None:
        return None, None, None
    of_x = None if of_x is None else laid_out_like(of_x, x)
    to_gradient, to_x, rows = _operations.unscaled_twice(gradient, made, x, factors, of_x, of_factors, clamp)
    to_factors = None if of_x is None else _operations.added_up(None, rows, None, len(x), factors.dtype)[1]
    return to_gradient, None if of_factors is None else to_x, to_factors


def _twice_by_torch(
    gradient: Tensor, x: Tensor, factors: Tensor, of_x: Tensor | None, of_factors: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The same of a product alone, differentiable in its turn."""
    to_gradient = to_x = to_factors = None
    if of_x is not None:
        to_gradient, to_factors = of_x * factors[:, :, None, None], (gradient * of_x).sum((2, 3))
    if of_factors is not None:
        spread = of_factors[:, :, None, None]
        to_gradient, to_x = x * spread if to_gradient is None else to_gradient + x * spread, gradient * spread
    return to_gradient, to_x, to_factors
