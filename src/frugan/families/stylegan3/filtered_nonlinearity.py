"""Nonlinearity of StyleGAN3's layers, between filters that keep it free of aliases.

Source: Karras et al. 2021 (arXiv 2106.12423), section 3.2 and appendix D.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract.elementwise import clamped
from frugan.contract.ops import PLAIN, Ops
from frugan.contract.resampling import Padding
from frugan.nn.fir import upfirdn2d


def filtered_nonlinearity(
    x: Tensor,
    bias: Tensor,
    up_filter: Tensor | None,
    down_filter: Tensor | None,
    up: int,
    down: int,
    padding: Padding,
    gain: float,
    slope: float,
    clamp: float | None,
    ops: Ops = PLAIN,
) -> Tensor:
    """Add a bias, filter at `up` times the rate, clamp(gain·leaky()), filter and keep one of `down` samples.

    Args:
        x: [N, C, H, W].
        bias: [C].
        up_filter: [T], applied in both directions, or [T, T']; takes no gradient, as the other one. None: one tap.
        down_filter: likewise.
        up: factor of upsampling in both directions; the filtered samples are multiplied by its square.
        down: factor of downsampling in both directions.
        padding: zeros around the upsampled map: left, right, top, bottom. Negative numbers cut samples off.
        gain: factor of the activation.
        slope: slope of the activation below 0.
        clamp: largest absolute value of what is activated; None: no limit.
        ops: operations that filter.

    Returns:
        [N, C, H', W'].
    """
    y = x.to(torch.promote_types(x.dtype, torch.float32)) + bias[:, None, None]  # filters are slow in half on a CPU
    y = upfirdn2d(y, _square(up_filter, y), up=up, padding=padding, gain=up**2, ops=ops)
    y = clamped(F.leaky_relu(y, slope) * gain, clamp)
    return upfirdn2d(y, _square(down_filter, y), down=down, ops=ops).to(x.dtype)


def _square(fir: Tensor | None, like: Tensor) -> Tensor:
    """Taps in both directions [T, T']."""
    if fir is None:
        return torch.ones(1, 1, device=like.device)
    return torch.outer(fir, fir) if fir.ndim == 1 else fir
