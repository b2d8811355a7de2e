"""Convolution whose weights each sample scales by its style, without a copy of the weights per sample.

Source: Karras et al. 2019 (arXiv 1912.04958), section 2.2. The input is scaled instead of the weight, and demodulation
needs only the weight's squares: Σ(w·s)² = s²·Σw² is one product of matrices, where the release makes [N, O, I, k, k].
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract import cpu_ways
from frugan.contract.elementwise import affine, is_wanted
from frugan.contract.layers import sums_of_squares
from frugan.contract.ops import PLAIN, Ops
from frugan.nn.fir import KeptKernels, upfirdn2d
from frugan.nn.linear_maps import gradients_of_convolution

EPS = 1e-8


def modulated_conv2d(
    x: Tensor,
    weight: Tensor,
    styles: Tensor,
    *,
    demodulate: bool = True,
    squares: Tensor | None = None,
    gain: float = 1.0,
    upsample_by: Tensor | None = None,
    kept: KeptKernels | None = None,
    noise: Tensor | None = None,
    ops: Ops = PLAIN,
) -> Tensor:
    """Convolve with weight·style for each sample; with demodulation, each sample's weights then have norm 1.

    Args:
        x: [N, I, H, W]; computed in its dtype.
        weight: [O, I, k, k], of x's dtype. With `upsample_by` a true convolution, otherwise a correlation.
        styles: [N, I], fp32 (also where x is half).
        demodulate: divide by the norm of each output channel's scaled weights.
        squares: sums of the weight's squares, divided by gain², [O, I], fp32; None: they are computed here.
        gain: norm of the weights after demodulation, instead of 1.
        upsample_by: a filter [T, T], with which the side doubles.
        kept: cached kernels of this filter.
        noise: added after demodulation, [N, 1, H', W'] or [H', W'], of x's dtype.
        ops: operations that filter, and find gradients of products.

    Returns:
        [N, O, H', W'].
    """
    if not demodulate:
        y = scaled_conv2d(x, weight, styles, upsample_by=upsample_by, kept=kept, ops=ops)
        return y if noise is None else y + noise
    y, factors = demodulated_conv2d(
        x, weight, styles, squares=squares, gain=gain, upsample_by=upsample_by, kept=kept, ops=ops
    )
    factors = factors[:, :, None, None]
    return y * factors if noise is None else affine(y, factors, noise)


def demodulated_conv2d(
    x: Tensor,
    weight: Tensor,
    styles: Tensor,
    *,
    squares: Tensor | None = None,
    gain: float = 1.0,
    eps: float = EPS,
    padding: int | None = None,
    upsample_by: Tensor | None = None,
    kept: KeptKernels | None = None,
    ops: Ops = PLAIN,
) -> tuple[Tensor, Tensor]:
    """Convolve like `modulated_conv2d` and leave demodulation to the caller.

    Args:
        eps: added to the sums of squares.
        padding: see `scaled_conv2d`.

    Returns:
        The map [N, O, H', W'], and the factors that it is to be multiplied by [N, O].
    """
    if x.dtype == torch.float16:
        # Demodulation undoes any scale; this one keeps sums in fp16 below x's largest value times √(I·k·k).
        styles = styles / styles.detach().abs().amax(1, keepdim=True).clamp_min(EPS)
    y = scaled_conv2d(x, weight, styles, padding=padding, upsample_by=upsample_by, kept=kept, ops=ops)
    squares = sums_of_squares(weight) / gain**2 if squares is None else squares
    return y, demodulation(squares, styles, eps / gain**2, y.dtype)


def scaled_conv2d(
    x: Tensor,
    weight: Tensor,
    styles: Tensor,
    *,
    padding: int | None = None,
    upsample_by: Tensor | None = None,
    kept: KeptKernels | None = None,
    ops: Ops = PLAIN,
) -> Tensor:
    """Convolve like `modulated_conv2d` without demodulation.

    Args:
        padding: zeros around x, where nothing is upsampled; None: as many as leave its size.
    """
    factors = styles.to(x.dtype)[:, :, None, None]  # [N, I, 1, 1]
    if upsample_by is None:
        padding = weight.shape[2] // 2 if padding is None else padding
        return cast(Tensor, _ScaledConvolution.apply(x, factors, weight.view_as(weight), padding, ops))
    turned = cast(Tensor, _Turned.apply(weight)) if cpu_ways.taken_for(weight) else weight.transpose(0, 1)
    spread = cast(Tensor, _ScaledConvolution.apply(x, factors, turned, None, ops))  # [N, O, 2·H + 1, ..]
    taps = upsample_by.shape[0]
    before, after = (taps + 1) // 2 - 1, (taps - 2) // 2
    around = (before, after, before, after)
    return upfirdn2d(spread, upsample_by, padding=around, gain=4, kept=kept, ops=ops)


class _Turned(torch.autograd.Function):
    """[O, I, k, k] -> [I, O, k, k], a view, whose gradient is laid out in channels-last like the weight's.

    Autograd would copy it into that layout number by number, which takes a CPU up to five times as long as transposing
    a matrix and copying its rows.
    """

    @staticmethod
    def forward(_ctx: Any, weight: Tensor) -> Tensor:
        return weight.transpose(0, 1)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients  # [I, O, k, k]
        if torch.is_grad_enabled():
            return gradient.transpose(0, 1)
        inputs, outputs, height, width = gradient.shape
        matrix = gradient.permute(0, 2, 3, 1).reshape(inputs, -1).t().contiguous()  # [k·k·O, I]
        taps_first = matrix.view(height, width, outputs, inputs)
        return taps_first.permute(2, 0, 1, 3).contiguous().permute(0, 3, 1, 2)  # [O, I, k, k]


class _ScaledConvolution(torch.autograd.Function):
    """Convolution of x·factors, differentiable twice, which keeps x and multiplies once more in the backward.

    x [N, I, H, W] is kept by the activation before it anyway. Without `padding`, it is a transposed convolution of
    stride 2 whose weight is [I, O, k, k]; with it, a convolution whose weight is [O, I, k, k].
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor, weight: Tensor, padding: int | None, ops: Ops) -> Tensor:
        ctx.save_for_backward(x, factors, weight)
        ctx.padding, ctx.ops = padding, ops
        ctx.set_materialize_grads(False)
        scaled = x * factors
        if padding is None:
            return F.conv_transpose2d(scaled, weight, stride=2)
        return F.conv2d(scaled, weight, padding=padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        if gradient is None:
            return None, None, None, None, None
        x, factors, weight = ctx.saved_tensors
        of_x, of_factors, *_ = ctx.needs_input_grad
        spreads = ctx.padding is None
        stride, padding = (2, 0) if spreads else (1, ctx.padding)
        of_weight = is_wanted(ctx, 2)
        to_scaled, to_weight = gradients_of_convolution(
            gradient,
            x * factors if of_weight else x,  # without a gradient in the weight, only its shape counts
            weight,
            (of_x or of_factors, of_weight),
            stride=stride,
            padding=padding,
            transposed=spreads,
        )
        if to_scaled is None:
            return None, None, to_weight, None, None
        if of_x and of_factors:
            return *ctx.ops.product_gradients(to_scaled, x, factors), to_weight, None, None
        to_factors = (to_scaled * x).sum((2, 3), keepdim=True) if of_factors else None
        return to_scaled * factors if of_x else None, to_factors, to_weight, None, None


def demodulation(squares: Tensor, styles: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """(styles²·squaresᵀ + eps)^-1/2: [O, I], [N, I] -> [N, O], differentiable twice."""
    return cast(Tensor, _Demodulation.apply(squares, styles, eps, dtype)[0])


class _Demodulation(torch.autograd.Function):
    """Demodulation factors and the sums under their root, in few operations since the tensors are small."""

    @staticmethod
    def forward(ctx: Any, squares: Tensor, styles: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        sums = (styles.square() @ squares.T).add_(eps)  # [N, O]
        ctx.save_for_backward(squares, styles, sums)
        ctx.set_materialize_grads(False)
        return torch.rsqrt(sums, out=torch.empty_like(sums, dtype=dtype)), sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        squares, styles, sums = ctx.saved_tensors
        of_norms, of_sums = gradients
        if of_norms is None and of_sums is None:
            return None, None, None, None
        minus_twice: Tensor = sums.new_zeros(()) if of_norms is None else of_norms * sums.pow(-1.5)
        if of_sums is not None:  # the gradient of this gradient comes through the sums
            minus_twice = minus_twice - 2 * of_sums
        to_squares = to_styles = None
        if ctx.needs_input_grad[0]:
            room = squares.detach()  # only its shape counts; with `addmm` the factor needs no kernel of its own
            to_squares = torch.addmm(room, minus_twice.T, styles.square(), beta=0, alpha=-0.5)
        if ctx.needs_input_grad[1]:
            to_styles = styles * torch.addmm(styles.detach(), minus_twice, squares, beta=0, alpha=-1)
        return to_squares, to_styles, None, None
