"""Batch normalisation with gain, bias and ReLU: a map is read twice and written once forward, and backward two are read
twice and one is written.

Torch's own operations take six passes forward and thirteen backward, and keep what was normalised beside what is given.
Here neither it nor what is made is kept: what was given, and the group's statistics, tell both.

The programs in `programs.norm` give what torch's operations give up to rounding: once, where torch stores normalised
values in half precision and rounds again. Sums are in fp32, one row for each program, in another order than torch's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract.elementwise import affine
from frugan.contract.kernel import Call
from frugan.contract.ops import Ops
from frugan.kernels.kernel import TritonKernel, some_factors, some_map
from frugan.kernels.maps import OF_ROWS, WARPS, Grid, grid_of, is_channels_last, laid_out, laid_out_like
from frugan.kernels.operation import like_first, like_second, operation

EPS = 1e-4
"""Added to the variances of the case that is tried."""


class Rows(NamedTuple):
    """How the pixels of a map are divided for its statistics."""

    grid: Grid
    units: int  # that are told apart: groups, or pictures

    @classmethod
    def of(cls, x: Tensor, groups: int) -> "Rows":
        """By shape and layout alone: where channels lie side by side, a group's pictures are one."""
        if is_channels_last(x):
            x = x.permute(0, 2, 3, 1).unflatten(0, (groups, -1)).flatten(1, 2).permute(0, 3, 1, 2)
        return cls(grid_of(x, apart=True, summed=True), len(x))

    @property
    def chunk(self) -> int:
        """Pixels of a row."""
        return self.grid.block_p * self.grid.loops


# What is to be computed, in torch's operations. Maps are [N, C, H, W], in one of the two layouts; gains and biases
# [N, C], or [1, C] for all pictures, of the map's dtype. Groups are pictures in a row, as many in each.


def moments(x: Tensor, groups: int) -> Tensor:
    """Mean and sum of squared deviations of some pixels each [2, rows, C], in fp32; a group's rows together."""
    found = _moments_like(x, groups)
    wide = x.to(found.dtype).unflatten(0, (groups, -1))  # [groups, pictures, C, H, W]
    variance, mean = torch.var_mean(wide, (1, 3, 4), correction=0)
    rows = found.unflatten(1, (groups, -1))  # [2, groups, rows, C]
    rows[0], rows[1] = mean[:, None], 0
    rows[1, :, 0] = variance * (wide.shape[1] * x.shape[2:].numel())
    return found


def statistics(rows: Tensor, groups: int, pixels: int, chunk: int, eps: float, biased: bool) -> Tensor:
    """Mean and reciprocal deviation of each group, and the variance that is observed [3, groups, C].

    Args:
        rows: as `moments` gives them.
        pixels, chunk: of a unit, and of each of its rows but the last.
        eps: added to the variance before the root.
        biased: whether the observed one is over n samples, and not n - 1.
    """
    means, squares = rows.unflatten(1, (groups, -1))  # [groups, rows, C]
    weights = torch.arange(means.shape[1], device=rows.device) % -(-pixels // chunk)
    weights = (pixels - weights * chunk).clamp_max(chunk).to(rows.dtype)[:, None]
    count = _count(means.shape[1], pixels, chunk)
    mean = (means * weights).sum(1) / count
    whole = squares.sum(1) + (weights * (means - mean[:, None]).square()).sum(1)
    return torch.stack([mean, (whole / count + eps).rsqrt(), whole / (count if biased else count - 1)])


def applied(x: Tensor, found: Tensor, gains: Tensor, biases: Tensor, relu: bool) -> Tensor:
    """relu(gain·normalised + bias), or without the ReLU."""
    result = _made(_normal(x, found), gains, biases, x.dtype)
    return laid_out_like(result.relu_() if relu else result, x)


def slopes(gradient: Tensor, x: Tensor, found: Tensor, gains: Tensor, biases: Tensor, relu: bool) -> Tensor:
    """Sums of the gradient before the ReLU, and of it times what was normalised [2, rows, C], a picture's together."""
    sums, normal = _slopes_like(gradient, x).zero_(), _normal(x, found)
    passed = _passed(gradient, normal, gains, biases, relu)
    if x.numel():
        rows = sums.view(2, len(x), -1, x.shape[1])
        rows[0, :, 0], rows[1, :, 0] = passed.sum((2, 3)), (passed * normal).sum((2, 3))
    return sums


def gathered(sums: Tensor, gains: Tensor, pictures: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of gains and biases [N, C], of shared ones [groups, C], and their sums by gain [2, groups, C]."""
    of_each = sums.view(2, pictures, -1, sums.shape[2]).sum(2)  # [2, N, C]
    totals = (of_each * gains).view(2, groups, -1, sums.shape[2]).sum(2)
    if len(gains) == 1:
        of_each = of_each.view(2, groups, -1, sums.shape[2]).sum(2)
    to_biases, to_gains = of_each.to(gains.dtype)
    return to_gains.clone(), to_biases.clone(), totals


def unapplied(
    gradient: Tensor, x: Tensor, found: Tensor, gains: Tensor, biases: Tensor, totals: Tensor, relu: bool
) -> Tensor:
    """Gradient of x."""
    normal = _normal(x, found)
    passed = _passed(gradient, normal, gains, biases, relu) * gains[:, :, None, None]
    of_mean, of_deviation = (_spread(total, x) / _pixels(x, found) for total in totals)
    scale = _spread(found[1], x)
    return laid_out_like(((passed - of_mean - normal * of_deviation) * scale).to(x.dtype), x)


def _count(rows: int, pixels: int, chunk: int) -> int:
    """Pixels of all rows of a group."""
    return rows // -(-pixels // chunk) * pixels


def _pixels(x: Tensor, found: Tensor) -> int:
    """Number of pixels of a group."""
    return x.numel() // max(1, x.shape[1] * found.shape[1])


def _spread(values: Tensor, x: Tensor) -> Tensor:
    """Repeat values of groups [groups, C] for their pictures [N, C, 1, 1]."""
    return values.repeat_interleave(len(x) // max(1, len(values)), 0)[:, :, None, None]


def _normal(x: Tensor, found: Tensor) -> Tensor:
    return (x.to(found.dtype) - _spread(found[0], x)) * _spread(found[1], x)


def _made(normal: Tensor, gains: Tensor, biases: Tensor, dtype: torch.dtype) -> Tensor:
    return (normal * gains[:, :, None, None] + biases[:, :, None, None]).to(dtype)


def _passed(gradient: Tensor, normal: Tensor, gains: Tensor, biases: Tensor, relu: bool) -> Tensor:
    passed = gradient.to(normal.dtype)
    return passed.masked_fill(_made(normal, gains, biases, gradient.dtype) <= 0, 0) if relu else passed


def _moments_like(x: Tensor, groups: int) -> Tensor:
    return x.new_empty(2, Rows.of(x, groups).grid.rows, x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32))


def _statistics_like(rows: Tensor, groups: int, *_: object) -> Tensor:
    return rows.new_empty(3, groups, rows.shape[2])


def _slopes_like(_: Tensor, x: Tensor, *__: object) -> Tensor:
    rows = grid_of(x, apart=True, summed=True).rows
    return x.new_empty(2, rows, x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32))


def _gathered_like(sums: Tensor, gains: Tensor, pictures: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    result = gains.new_empty(groups if len(gains) == 1 else pictures, sums.shape[2])
    return result, torch.empty_like(result), sums.new_empty(2, groups, sums.shape[2])


# The same by kernels.

_MAP, _WAY = "Tensor x, Tensor found", "Tensor gains, Tensor biases"


@operation("norm_moments(Tensor x, int groups) -> Tensor", plain=moments, like=_moments_like)
def norm_moments(x: Tensor, groups: int) -> Tensor:
    from frugan.kernels.programs import norm as programs

    found, (grid, _) = _moments_like(x, groups), Rows.of(x, groups)
    if x.numel():
        programs.moments[grid.rows, grid.blocks](
            x, found[0], found[1], grid.pixels, grid.channels, grid.loops, **_constants(grid)
        )
    return found


@operation(
    "norm_statistics(Tensor rows, int groups, int pixels, int chunk, float eps, bool biased) -> Tensor",
    plain=statistics,
    like=_statistics_like,
)
def norm_statistics(rows: Tensor, groups: int, pixels: int, chunk: int, eps: float, biased: bool) -> Tensor:
    from frugan.kernels.programs import norm as programs

    found, channels = _statistics_like(rows, groups), rows.shape[2]
    if found.numel():
        of_each = rows.shape[1] // groups
        count = _count(of_each, pixels, chunk)
        numbers = (of_each, channels, pixels, chunk, float(count), float(count if biased else count - 1), eps)
        programs.statistics[groups, -(-channels // OF_ROWS["BLOCK_C"])](rows[0], rows[1], found, *numbers, **OF_ROWS)
    return found


@operation(f"norm_applied({_MAP}, {_WAY}, bool relu) -> Tensor", plain=applied, like=like_first)
def norm_applied(x: Tensor, found: Tensor, gains: Tensor, biases: Tensor, relu: bool) -> Tensor:
    from frugan.kernels.programs import norm as programs

    result, grid = torch.empty_like(x), grid_of(x, apart=True, summed=False)
    if result.numel():
        arguments = (
            x,
            found,
            gains,
            biases,
            result,
            grid.pixels,
            grid.channels,
            *_groups(x, found),
            _step(gains),
            _step(biases),
        )
        programs.apply[grid.rows, grid.blocks](*arguments, RELU=relu, **_constants(grid))
    return result


@operation(f"norm_slopes(Tensor gradient, {_MAP}, {_WAY}, bool relu) -> Tensor", plain=slopes, like=_slopes_like)
def norm_slopes(gradient: Tensor, x: Tensor, found: Tensor, gains: Tensor, biases: Tensor, relu: bool) -> Tensor:
    from frugan.kernels.programs import norm as programs

    sums, grid = _slopes_like(gradient, x), grid_of(x, apart=True, summed=True)
    if x.numel():
        numbers = (grid.pixels, grid.channels, grid.loops, *_groups(x, found), _step(gains), _step(biases))
        arguments = (gradient, x, found, gains, biases, sums[0], sums[1])
        programs.slopes[grid.rows, grid.blocks](*arguments, *numbers, RELU=relu, **_constants(grid))
    return sums


@operation(
    "norm_gathered(Tensor sums, Tensor gains, int pictures, int groups) -> (Tensor, Tensor, Tensor)",
    plain=gathered,
    like=_gathered_like,
)
def norm_gathered(sums: Tensor, gains: Tensor, pictures: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    from frugan.kernels.programs import norm as programs

    result, channels = _gathered_like(sums, gains, pictures, groups), sums.shape[2]
    if sums.numel():
        to_gains, to_biases, totals = result
        arguments = (sums[0], sums[1], gains, to_biases, to_gains, totals)
        numbers = (sums.shape[1] // pictures, channels, pictures // groups, _step(gains))
        programs.gather[groups, -(-channels // OF_ROWS["BLOCK_C"])](
            *arguments, *numbers, SHARED=len(gains) == 1, **OF_ROWS
        )
    return result


@operation(
    f"norm_unapplied(Tensor gradient, {_MAP}, {_WAY}, Tensor totals, bool relu) -> Tensor",
    plain=unapplied,
    like=like_second,
)
def norm_unapplied(
    gradient: Tensor, x: Tensor, found: Tensor, gains: Tensor, biases: Tensor, totals: Tensor, relu: bool
) -> Tensor:
    from frugan.kernels.programs import norm as programs

    to_x, grid = torch.empty_like(x), grid_of(x, apart=True, summed=False)
    if to_x.numel():
        numbers = (grid.pixels, grid.channels, *_groups(x, found), _step(gains), _step(biases), 1 / _pixels(x, found))
        arguments = (gradient, x, found, gains, biases, totals, to_x)
        programs.unapply[grid.rows, grid.blocks](*arguments, *numbers, RELU=relu, **_constants(grid))
    return to_x


def _constants(grid: Grid) -> dict[str, Any]:
    """Constants that a program is compiled for."""
    return {"LAST": grid.last, "BLOCK_P": grid.block_p, "BLOCK_C": grid.block_c, "num_warps": WARPS}


def _groups(x: Tensor, found: Tensor) -> tuple[int, int]:
    """Pictures of a group, and groups."""
    return len(x) // found.shape[1], found.shape[1]


def _step(values: Tensor) -> int:
    """From one picture's to the next."""
    return 0 if len(values) == 1 else values.stride(0)


def _side_by_side(values: Tensor) -> Tensor:
    """Rows of which each lies in one piece."""
    return values if values.stride(1) == 1 else values.contiguous()


# Differentiable as often as one asks.


def normalised(
    x: Tensor, gains: Tensor, biases: Tensor, *, groups: int, eps: float, biased: bool, relu: bool
) -> tuple[Tensor, Tensor]:
    """relu(gain·normalised + bias) by each group's own statistics, or without the ReLU.

    Args:
        x: [N, C, H, W].
        gains, biases: [N, C], or [1, C] for all pictures, of its dtype.
        groups: of pictures in a row, as many in each.
        eps: added to the variance.
        biased: whether the variance that is observed is over n samples, and not n - 1.

    Returns:
        [N, C, H, W], and of each group mean, reciprocal deviation and variance [3, groups, C], in fp32.
    """
    gains, biases = _side_by_side(gains), _side_by_side(biases)
    result, found = _Normalised.apply(laid_out(x), gains, biases, groups, eps, biased, relu)
    return result, found


def by_torch(x: Tensor, gains: Tensor, biases: Tensor, groups: int, eps: float, *, relu: bool) -> Tensor:
    """Compute what `normalised` does in operations that torch differentiates."""
    parts = [F.batch_norm(part, None, None, training=True, eps=eps) for part in x.chunk(groups)]
    result = affine(torch.cat(parts), gains[:, :, None, None], biases[:, :, None, None])
    return F.relu(result) if relu else result


class _Normalised(torch.autograd.Function):
    """Keeps what it is given and the statistics."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gains: Tensor, biases: Tensor, groups: int, eps: float, biased: bool, relu: bool
    ) -> tuple[Tensor, Tensor]:
        rows = Rows.of(x, groups)
        found = norm_statistics(norm_moments(x, groups), groups, rows.grid.pixels, rows.chunk, eps, biased)
        ctx.save_for_backward(x, gains, biases, found)
        ctx.mark_non_differentiable(found)
        ctx.set_materialize_grads(False)
        ctx.eps, ctx.relu = eps, relu
        return norm_applied(x, found, gains, biases, relu), found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradients[0] is None:
            return (None,) * 7
        x, gains, biases, found = ctx.saved_tensors
        groups = found.shape[1]
        if torch.is_grad_enabled():
            x, gains, biases = inputs = [
                tensor.view_as(tensor) for tensor in (x, gains, biases)
            ]  # one may depend on another
            wanted = [tensor for tensor, wants in zip(inputs, ctx.needs_input_grad, strict=False) if wants]
            result = by_torch(x, gains, biases, groups, ctx.eps, relu=ctx.relu)
            of = iter(torch.autograd.grad(result, wanted, gradients[0], create_graph=True))
            return *(next(of) if wants else None for wants in ctx.needs_input_grad[:3]), None, None, None, None
        gradient = laid_out_like(gradients[0], x)
        way = (x, found, gains, biases)
        sums = norm_slopes(gradient, *way, ctx.relu)
        to_gains, to_biases, totals = norm_gathered(sums, gains, len(x), groups)
        to_x = norm_unapplied(gradient, *way, totals, ctx.relu) if ctx.needs_input_grad[0] else None
        if len(gains) == 1 < groups:
            to_gains, to_biases = (rows.sum(0, keepdim=True) for rows in (to_gains, to_biases))
        return to_x, to_gains, to_biases, None, None, None, None


class BatchNorm(TritonKernel):
    """Statistics, gain, bias and ReLU."""

    def batch_norm(
        self,
        x: Tensor,
        gain: Tensor,
        bias: Tensor,
        *,
        group: int,
        eps: float,
        biased: bool,
        relu: bool,
        room: Callable[[int], Tensor],
        observe: Callable[[Tensor, Tensor], None],
    ) -> Tensor:
        y, found = normalised(x, gain, bias, groups=len(x) // group, eps=eps, biased=biased, relu=relu)
        for mean, _, variance in found.unbind(1):
            observe(mean, variance)
        return y

    @staticmethod
    def case(
        shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
    ) -> tuple[Call, list[Tensor]]:
        """A map, and a gain and a bias for each picture; nothing near 0, where rounding decides what ReLU gives."""
        x, factors = some_map(shape, dtype, layout, device), some_factors(shape, dtype, device)
        return _normalise, [torch.where(x < 0, x / 8 - 1, x / 8 + 1), factors, (factors.flip(0) - 1) / 16]


def _normalise(x: Tensor, gains: Tensor, biases: Tensor, *, ops: Ops) -> Tensor:
    def room(count: int) -> Tensor:
        return torch.zeros(count, device=x.device)

    def observe(mean: Tensor, variance: Tensor) -> None: ...

    return ops.batch_norm(x, gains, biases, group=len(x), eps=EPS, biased=False, relu=True, room=room, observe=observe)
