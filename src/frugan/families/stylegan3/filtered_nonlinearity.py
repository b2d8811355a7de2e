"""Nonlinearity of StyleGAN3's layers, between filters that keep it free of aliases.

Source: Karras et al. 2021 (arXiv 2106.12423), section 3.2 and appendix D.
"""

import math

from torch import Tensor

from frugan.contract.filtered_nonlinearity import Nonlinearity
from frugan.contract.ops import PLAIN, Ops
from frugan.contract.resampling import Padding


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

    Differentiable any number of times.

    Args:
        x: [N, C, H, W].
        bias: [C].
        up_filter: [T], applied in both directions, or [T, T']; takes no gradient, as the other one. None: one tap.
        down_filter: likewise.
        up: factor of upsampling in both directions; the filtered samples are multiplied by its square.
        down: factor of downsampling in both directions.
        padding: zeros around the upsampled map: left, right, top, bottom. Negative numbers cut samples off.
        gain: positive factor of the activation.
        slope: slope of the activation below 0.
        clamp: largest absolute value of what is activated; None: no limit.
        ops: operations to compute by.

    Returns:
        [N, C, (H·up + top + bottom - T - T_down + 2 - 1)//down + 1, ..].

    Raises:
        ValueError: nothing of the map is left.
    """
    # leaky(gain·x) is gain·leaky(x): the gain costs nothing as part of the first filter
    first = _taps(up_filter, up, up**2 * gain, x)
    second = _taps(None if down_filter is None else down_filter.flip(list(range(down_filter.ndim))), down, 1.0, x)
    return ops.filtered_nonlinearity(x, bias, first, second, Nonlinearity(up, down, padding, slope, clamp))


def _taps(taps: Tensor | None, rate: int, gain: float, x: Tensor) -> Tensor | None:
    """Taps of x's dtype, times a gain in both directions together; None: there is nothing to do."""
    if taps is None:
        if rate == 1 and gain == 1:
            return None
        taps = x.new_ones(1)
    return (taps * (math.sqrt(gain) if taps.ndim == 1 else gain)).to(x.dtype)
