"""Factors of a map's channels: demodulation with noise, bias, leaky ReLU and clamp behind it in one pass, and both
gradients of modulation in another. Gradients of these gradients are one pass more.

The programs are in `programs.modulation` and give what torch's operations give, up to the last bit: a product and a sum
may be rounded once instead of twice. Sums are as in `activation`.
"""

from typing import Any, cast

import torch
from torch import Tensor

from frugan.contract.elementwise import SLOPE, limit_of
from frugan.contract.kernel import Call
from frugan.contract.ops import Ops
from frugan.kernels.activation import Slopes, activated, add_up, slopes
from frugan.kernels.kernel import CLAMP, TritonKernel, some_bias, some_factors, some_map
from frugan.kernels.maps import Grid, constants_of, grid_of, laid_out, laid_out_like, room_for_sums
from frugan.kernels.operation import like_first, operation

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
    gradient: Tensor, result: Tensor, x: Tensor, factors: Tensor, noise: Tensor | None, clamp: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient of x, and sums in fp32.

    Returns:
        Of x [N, C, H, W]; for the bias and for the factors [rows, C], a picture's rows together; for the noise's
        strength one number of each program, of none where there is no noise.
    """
    passed, _ = slopes(gradient, result, clamp, False)
    sums = [room.zero_() for room in _styled_sums(result, grid_of(result, apart=True, summed=True), noise is not None)]
    if result.numel():
        wide = passed.to(sums[0].dtype)
        for rows, values in zip(sums, (wide, wide * x), strict=False):
            rows.view(len(result), -1, result.shape[1])[:, 0] = values.sum((2, 3))
        if noise is not None:
            sums[2][0] = (wide.sum(1, keepdim=True) * noise).sum()
    return passed * factors[:, :, None, None], sums[0], sums[1], sums[2]


def plain_unscaled(gradient: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x·factors: of x [N, C, H, W], and sums for the factors [rows, C], a picture's together, in fp32."""
    sums = room_for_sums(x, grid_of(x, apart=True, summed=True), True).zero_()
    if x.numel():
        sums.view(len(x), -1, x.shape[1])[:, 0] = (gradient.to(sums.dtype) * x).sum((2, 3))
    return gradient * factors[:, :, None, None], sums


def plain_unscaled_twice(
    gradient: Tensor,
    result: Tensor | None,
    x: Tensor,
    factors: Tensor,
    of_x: Tensor | None,
    of_factors: Tensor | None,
    clamp: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of what `plain_unscaled` gives for x and factors, or `slopes_with_style` where there is a result.

    Args:
        of_x: gradient of what they give for x [N, C, H, W].
        of_factors: of what they give for the factors, [N, C]. One of both may be missing.

    Returns:
        Of their gradient [N, C, H, W]; of x the same, without elements where none comes from the factors; sums for the
        factors [rows, C], a picture's together, in fp32, without rows where none come from x.
    """
    passed = gradient if result is None else slopes(gradient, result, clamp, False)[0]
    to_x, sums = _twice_like(gradient, result, x, factors, of_x, of_factors, clamp)[1:]
    total = torch.zeros_like(x, dtype=sums.dtype)
    if of_x is not None:
        total += of_x.to(sums.dtype) * factors[:, :, None, None]
        if sums.zero_().numel():
            sums.view(len(x), -1, x.shape[1])[:, 0] = (passed.to(sums.dtype) * of_x).sum((2, 3))
    if of_factors is not None:
        total += x.to(sums.dtype) * of_factors[:, :, None, None]
        to_x.copy_(passed * of_factors[:, :, None, None])
    to_gradient = total.to(x.dtype)
    return to_gradient if result is None else slopes(to_gradient, result, clamp, False)[0], to_x, sums


def _styled_sums(result: Tensor, grid: Grid, noisy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Room for those of bias, factors and the noise's strength."""
    bias = room_for_sums(result, grid, True)
    return bias, torch.empty_like(bias), bias.new_empty(grid.rows * grid.blocks if noisy else 0)


def _styled_slopes_like(
    gradient: Tensor, result: Tensor, x: Tensor, factors: Tensor, noise: Tensor | None, clamp: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(result), *_styled_sums(result, grid_of(result, apart=True, summed=True), noise is not None)


def _unscaled_like(gradient: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), room_for_sums(x, grid_of(x, apart=True, summed=True), True)


def _twice_like(
    gradient: Tensor,
    result: Tensor | None,
    x: Tensor,
    factors: Tensor,
    of_x: Tensor | None,
    of_factors: Tensor | None,
    clamp: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    to_x = x.new_empty(0) if of_factors is None else torch.empty_like(x)
    grid = grid_of(x, apart=True, summed=of_x is not None)
    return torch.empty_like(x), to_x, room_for_sums(x, grid, of_x is not None)


# The same by kernels.

_MAP, _STYLE = "Tensor gradient, Tensor result", "Tensor x, Tensor factors"


@operation(
    f"styled_leaky_relu({_STYLE}, Tensor? noise, Tensor? strength, Tensor bias, float? clamp) -> Tensor",
    plain=activated_with_style,
    like=like_first,
)
def styled_leaky_relu(
    x: Tensor, factors: Tensor, noise: Tensor | None, strength: Tensor | None, bias: Tensor, clamp: float | None
) -> Tensor:
    from frugan.kernels.programs import modulation as programs

    result, grid = torch.empty_like(x), grid_of(x, apart=True, summed=False)
    if result.numel():
        drawn, stride = _drawn(noise, x)
        arguments = (x, factors.contiguous(), drawn, x if strength is None else strength, bias.contiguous(), result)
        numbers = (grid.pixels, grid.channels, stride, SLOPE, limit_of(clamp, x.dtype) or 0.0)
        constants = {"NOISY": noise is not None, **constants_of(grid, clamp)}
        programs.activate_styled[grid.rows, grid.blocks](*arguments, *numbers, **constants)
    return result


@operation(
    f"styled_leaky_relu_slopes({_MAP}, {_STYLE}, Tensor? noise, float? clamp) -> (Tensor, Tensor, Tensor, Tensor)",
    plain=slopes_with_style,
    like=_styled_slopes_like,
)
def styled_leaky_relu_slopes(
    gradient: Tensor, result: Tensor, x: Tensor, factors: Tensor, noise: Tensor | None, clamp: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from frugan.kernels.programs import modulation as programs

    grid, to_x = grid_of(result, apart=True, summed=True), torch.empty_like(result)
    sums = _styled_sums(result, grid, noise is not None)
    if result.numel():
        drawn, stride = _drawn(noise, x)
        numbers = (grid.pixels, grid.channels, grid.loops, stride, SLOPE, limit_of(clamp, result.dtype) or 0.0)
        constants = {"NOISY": noise is not None, **constants_of(grid, clamp)}
        arguments = (gradient, result, x, factors.contiguous(), drawn, to_x, *sums)
        programs.slopes_styled[grid.rows, grid.blocks](*arguments, *numbers, **constants)
    return to_x, *sums


def _drawn(noise: Tensor | None, x: Tensor) -> tuple[Tensor, int]:
    """Noise as kernels read it, and how far apart they find pictures of it."""
    if noise is None:
        return x, 0
    noise = noise if noise[:1].is_contiguous() else noise.contiguous()
    return noise, 0 if len(noise) == 1 else noise.stride(0)


@operation(f"unscaled(Tensor gradient, {_STYLE}) -> (Tensor, Tensor)", plain=plain_unscaled, like=_unscaled_like)
def unscaled(gradient: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    from frugan.kernels.programs import modulation as programs

    grid, to_x = grid_of(x, apart=True, summed=True), torch.empty_like(x)
    sums = room_for_sums(x, grid, True)
    if x.numel():
        constants = constants_of(grid, None)
        del constants["CLAMPED"]
        arguments = (gradient, x, factors.contiguous(), to_x, sums)
        programs.unscale[grid.rows, grid.blocks](*arguments, grid.pixels, grid.channels, grid.loops, **constants)
    return to_x, sums


@operation(
    f"unscaled_twice(Tensor gradient, Tensor? result, {_STYLE}, Tensor? of_x, Tensor? of_factors, float? clamp)"
    " -> (Tensor, Tensor, Tensor)",
    plain=plain_unscaled_twice,
    like=_twice_like,
)
def unscaled_twice(
    gradient: Tensor,
    result: Tensor | None,
    x: Tensor,
    factors: Tensor,
    of_x: Tensor | None,
    of_factors: Tensor | None,
    clamp: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    from frugan.kernels.programs import modulation as programs

    found = to_gradient, to_x, sums = _twice_like(gradient, result, x, factors, of_x, of_factors, clamp)
    grid = grid_of(x, apart=True, summed=of_x is not None)
    if x.numel():
        maps = (gradient, x if result is None else result, x, factors.contiguous(), x if of_x is None else of_x)
        arguments = (*maps, factors if of_factors is None else of_factors.contiguous(), to_gradient, to_x, sums)
        numbers = (grid.pixels, grid.channels, grid.loops, SLOPE, limit_of(clamp, x.dtype) or 0.0)
        constants = {"SLOPED": result is not None, "OF_X": of_x is not None, "OF_FACTORS": of_factors is not None}
        programs.unscale_twice[grid.rows, grid.blocks](*arguments, *numbers, **constants, **constants_of(grid, clamp))
    return found


# Differentiable as often as one asks.


class _StyledLeakyReLU(torch.autograd.Function):
    """Keeps x and its result."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, factors: Tensor, noise: Tensor | None, strength: Tensor, bias: Tensor, clamp: float | None
    ) -> Tensor:
        result = styled_leaky_relu(x, factors, noise, strength, bias.to(x.dtype), clamp)
        ctx.save_for_backward(x, factors, noise, strength, result)
        ctx.clamp = clamp
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradients[0] is None:  # of what only its slopes are asked for, in a gradient of a gradient
            return None, None, None, None, None, None
        x, factors, noise, strength, result = ctx.saved_tensors
        gradient, to_noise = laid_out_like(gradients[0], result), None
        to_x, to_factors, to_strength, to_bias = _StyledSlopes.apply(gradient, result, x, factors, noise, ctx.clamp)
        if ctx.needs_input_grad[2]:  # which no training asks for
            passed, _ = Slopes.apply(gradient, result, ctx.clamp, None, SLOPE)
            to_noise = passed.sum(1, keepdim=True).sum_to_size(noise.shape) * strength
        return to_x, to_factors, to_noise, to_strength, to_bias, None


class _StyledSlopes(torch.autograd.Function):
    """All gradients in one pass, and theirs in another.

    Unless these are to be differentiated in their turn, or come from those of strength or bias: nothing asks for them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        gradient: Tensor,
        result: Tensor,
        x: Tensor,
        factors: Tensor,
        noise: Tensor | None,
        clamp: float | None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        ctx.save_for_backward(gradient, result, x, factors, noise)
        ctx.clamp = clamp
        ctx.set_materialize_grads(False)
        to_x, *sums = styled_leaky_relu_slopes(gradient, result, x, factors, noise, clamp)
        numbers = None if noise is None else sums.pop()
        to_bias, to_factors, to_strength = add_up(sums[0], sums[1], numbers, len(x), factors.dtype)
        return to_x, to_factors, None if noise is None else to_strength, to_bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        gradient, result, x, factors, noise = ctx.saved_tensors
        of_x, of_factors, of_strength, of_bias = gradients
        if of_strength is None and of_bias is None and not torch.is_grad_enabled():
            to_gradient, to_x, to_factors = _twice(gradient, result, x, factors, of_x, of_factors, ctx.clamp)
            return to_gradient, None, to_x, to_factors, None, None
        passed, _ = Slopes.apply(gradient, result, ctx.clamp, None, SLOPE)
        of_passed, to_x, to_factors = _twice_by_torch(passed, x, factors, of_x, of_factors)
        to_noise = None
        if of_strength is not None and ctx.needs_input_grad[4]:
            to_noise = passed.sum(1, keepdim=True).sum_to_size(noise.shape) * of_strength
        of_noise = None if of_strength is None else noise * of_strength
        for part in (of_noise, None if of_bias is None else of_bias[:, None, None]):
            if part is not None:
                whole = part.to(result.dtype).expand_as(result)
                of_passed = whole if of_passed is None else of_passed + whole
        to_gradient = None if of_passed is None else Slopes.apply(of_passed, result, ctx.clamp, None, SLOPE)[0]
        return to_gradient, None, to_x, to_factors, to_noise, None


class _Unscaled(torch.autograd.Function):
    """Both gradients of a product in one pass, and theirs in another, unless these are to be differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(gradient, x, factors)
        ctx.set_materialize_grads(False)
        to_x, rows = unscaled(gradient, x, factors)
        return to_x, add_up(None, rows, None, len(x), factors.dtype)[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        gradient, x, factors = ctx.saved_tensors
        of_x, of_factors = gradients
        if torch.is_grad_enabled():
            return _twice_by_torch(gradient, x, factors, of_x, of_factors)
        return _twice(gradient, None, x, factors, of_x, of_factors, None)


def _twice(
    gradient: Tensor,
    result: Tensor | None,
    x: Tensor,
    factors: Tensor,
    of_x: Tensor | None,
    of_factors: Tensor | None,
    clamp: float | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of a product's gradients, their sums added up; nothing of nothing."""
    if of_x is None and of_factors is None:
        return None, None, None
    of_x = None if of_x is None else laid_out_like(of_x, x)
    to_gradient, to_x, rows = unscaled_twice(gradient, result, x, factors, of_x, of_factors, clamp)
    to_factors = None if of_x is None else add_up(None, rows, None, len(x), factors.dtype)[1]
    return to_gradient, None if of_factors is None else to_x, to_factors


def _twice_by_torch(
    gradient: Tensor, x: Tensor, factors: Tensor, of_x: Tensor | None, of_factors: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of a product's gradients by torch, differentiable in their turn."""
    to_gradient = to_x = to_factors = None
    if of_x is not None:
        to_gradient, to_factors = of_x * factors[:, :, None, None], (gradient * of_x).sum((2, 3))
    if of_factors is not None:
        spread = of_factors[:, :, None, None]
        to_gradient, to_x = x * spread if to_gradient is None else to_gradient + x * spread, gradient * spread
    return to_gradient, to_x, to_factors


class StyledLeakyReLU(TritonKernel):
    """Factors, noise, bias, activation and clamp."""

    def styled_leaky_relu(
        self,
        x: Tensor,
        factors: Tensor,
        noise: Tensor | None,
        strength: Tensor,
        bias: Tensor,
        clamp: float | None = None,
    ) -> Tensor:
        noise = None if noise is None else noise.view(-1, 1, *noise.shape[-2:])
        return cast(Tensor, _StyledLeakyReLU.apply(laid_out(x), factors, noise, strength, bias, clamp))

    @staticmethod
    def case(
        shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
    ) -> tuple[Call, list[Tensor]]:
        """A map, factors, noise, its strength and a bias."""
        x, factors = some_map(shape, dtype, layout, device), some_factors(shape, dtype, device)
        noise = torch.linspace(-1, 1, shape[0] * shape[2] * shape[3], device=device).view(shape[0], 1, *shape[2:])
        return _activate, [x, factors, noise, torch.tensor(0.75, device=device), some_bias(shape[1], dtype, device)]


def _activate(x: Tensor, factors: Tensor, noise: Tensor, strength: Tensor, bias: Tensor, *, ops: Ops) -> Tensor:
    return ops.styled_leaky_relu(x, factors, noise, strength, bias, CLAMP)


class Modulation(TritonKernel):
    """Gradients of maps times factors."""

    def product_gradients(self, gradient: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        x = laid_out(x)
        to_x, to_factors = _Unscaled.apply(laid_out_like(gradient, x), x, factors.flatten(1))
        return to_x, to_factors[:, :, None, None]

    @staticmethod
    def case(
        shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
    ) -> tuple[Call, list[Tensor]]:
        """A map and factors."""
        return _multiply, [some_map(shape, dtype, layout, device), some_factors(shape, dtype, device)]


def _multiply(x: Tensor, factors: Tensor, *, ops: Ops) -> Tensor:
    return cast(Tensor, _Product.apply(x, factors[:, :, None, None], ops))


class _Product(torch.autograd.Function):
    """[N, C, H, W] times [N, C, 1, 1], by whose gradients the kernel is tried."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor, ops: Ops) -> Tensor:
        ctx.save_for_backward(x, factors)
        ctx.ops = ops
        return x * factors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, factors = ctx.saved_tensors
        return *ctx.ops.product_gradients(gradients[0], x, factors), None
