"""Low-pass filters of StyleGAN3's layers, designed in fp64.

Source: Karras et al. 2021 (arXiv 2106.12423), section 3.2 and appendix B. The window's shape follows from the number of
taps and the width of the transition by Kaiser's formulas (1974), as in `scipy.signal.firwin`.
"""

import math

import torch
from torch import Tensor

from frugan.families.stylegan3.config import LayerShape


def layer_filters(layer: LayerShape, *, radial: bool) -> tuple[Tensor | None, Tensor | None]:
    """Filters before and after a layer's nonlinearity; None where there is nothing to filter.

    The first is separable. With `radial` the second is not, unless its output holds all that its samples can.
    """
    if layer.colours:
        return None, None
    before, after = layer.input, layer.output
    return (
        lowpass_filter(layer.up_taps, before.cutoff, 2 * before.half_width, layer.rate),
        lowpass_filter(
            layer.down_taps, after.cutoff, 2 * after.half_width, layer.rate, radial=radial and not after.critical
        ),
    )


def lowpass_filter(taps: int, cutoff: float, width: float, rate: float, *, radial: bool = False) -> Tensor:
    """Design a filter that sums to 1.

    Args:
        taps: number of taps; 1: there is nothing to filter.
        cutoff: frequency at the middle of the transition, in cycles per picture.
        width: width of the transition, in cycles per picture.
        rate: sampling rate that the filter runs at, in samples per picture.
        radial: it cuts off at the same frequency in all directions, and is not separable.

    Returns:
        [taps], or [taps, taps] if `radial`, in fp32.
    """
    at = torch.arange(taps, dtype=torch.float64) - (taps - 1) / 2  # [taps], in samples
    window = kaiser_window(taps, kaiser_shape(taps, width, rate))
    if radial:
        radius = torch.hypot(at[:, None], at)  # no tap lies in the middle, as their number is even
        response = bessel_j1(2 * math.pi * cutoff / rate * radius) / radius
        response = response * torch.outer(window, window)
    else:
        response = torch.sinc(2 * cutoff / rate * at) * window
    return (response / response.sum()).float()


def kaiser_shape(taps: int, width: float, rate: float) -> float:
    """Shape of the Kaiser window that gives a transition of this width; see `lowpass_filter`."""
    attenuation = 2.285 * (taps - 1) * math.pi * width / (rate / 2) + 7.95  # dB
    if attenuation > 50:
        return 0.1102 * (attenuation - 8.7)
    if attenuation > 21:
        return 0.5842 * math.pow(attenuation - 21, 0.4) + 0.07886 * (attenuation - 21)
    return 0.0


def kaiser_window(taps: int, shape: float) -> Tensor:
    """Symmetric Kaiser window [taps] in fp64, 1 in its middle."""
    return torch.kaiser_window(taps, periodic=False, beta=shape, dtype=torch.float64)


def bessel_j1(x: Tensor, points: int = 256) -> Tensor:
    """Bessel function J1 of values up to 100, by its integral over one period.

    Torch's own is wrong by up to 2e-7 in fp64.
    """
    angle = torch.arange(points, dtype=x.dtype) * (2 * math.pi / points)
    return torch.cos(angle - x[..., None] * torch.sin(angle)).mean(-1)
