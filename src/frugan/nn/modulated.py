"""Convolution whose weights are scaled by a style, per sample, without a copy of them per sample.

Source: Karras et al. 2019 (arXiv 1912.04958), section 2.2. The input is scaled in place of the weight, and demodulation
needs the squares alone: Σ(w·s)² = s²·Σw², one product of matrices, where the release makes [N, O, I, k, k].
"""

import torch.nn.functional as F
from torch import Tensor

from frugan.nn.affine import affine
from frugan.nn.equalised import upsampling_conv2d

EPS = 1e-8


def modulated_conv2d(
    x: Tensor,
    weight: Tensor,
    styles: Tensor,
    *,
    demodulate: bool = True,
    upsample_by: Tensor | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """Convolve with weight·style for each sample; with demodulation, each sample's weights then have norm 1.

    Args:
        x: [N, I, H, W]; computed in its dtype.
        weight: [O, I, k, k], of x's dtype. With `upsample_by` a true convolution, otherwise a correlation.
        styles: [N, I], fp32 (also where x is half).
        demodulate: divide by the norm of each output channel's scaled weights.
        upsample_by: a filter [T, T]: the side doubles.
        noise: added after demodulation, [N, 1, H', W'] or [H', W'].

    Returns:
        [N, O, H', W'].
    """
    if demodulate and x.dtype != styles.dtype:
        # Demodulation takes any scale back; sums in half precision then stay below x's largest value times √(I·k·k).
        styles = styles / styles.detach().abs().amax(1, keepdim=True).clamp_min(EPS)
    scaled = x * styles.to(x.dtype)[:, :, None, None]
    if upsample_by is None:
        made = F.conv2d(scaled, weight, padding=weight.shape[2] // 2)
    else:
        made = upsampling_conv2d(scaled, weight, upsample_by)
    if noise is not None:
        noise = noise.to(made.dtype)
    if not demodulate:
        return made if noise is None else made + noise
    norms = demodulation(weight, styles).to(made.dtype)[:, :, None, None]  # [N, O, 1, 1]
    return made * norms if noise is None else affine(made, norms, noise)


def demodulation(weight: Tensor, styles: Tensor) -> Tensor:
    """What gives each sample's scaled weights the norm 1: [O, I, k, k], [N, I] -> [N, O], of the styles' dtype."""
    squares = weight.to(styles.dtype).square().sum((2, 3))  # [O, I]
    return (styles.square() @ squares.T + EPS).rsqrt()
