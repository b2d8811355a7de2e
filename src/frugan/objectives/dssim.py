"""Structural dissimilarity.

Source: Wang et al. 2004 (SSIM), in DeepFaceLab's form: the mean over the picture is of luminance times
contrast-structure, no padding, even filters allowed.
"""

import torch
from torch import Tensor

from frugan.objectives.blur import blur

SIGMA_PIXELS = 1.5
C1, C2 = 0.01**2, 0.03**2


def dssim(a: Tensor, b: Tensor, filter_size: int) -> Tensor:
    """(1 - SSIM) / 2 of each sample and channel; always in fp32 or more.

    Args:
        a, b: [B, C, H, W] in [0, 1].
        filter_size: side of the Gaussian window in pixels; below 1 counts as 1. At most the picture's side.

    Returns:
        [B, C].
    """
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    a, b = a.to(dtype).contiguous(), b.to(dtype).contiguous()
    kernel = _window(max(1, filter_size), a.device, dtype)

    def mean(x: Tensor) -> Tensor:
        return blur(x, kernel, 0)

    # SSIM is 4·(μaμb + C1/2)·(cov + C2/2) / ((μa² + μb² + C1)·(var + C2)).
    mean_a, mean_b = mean(a), mean(b)
    product = mean_a * mean_b
    squares = torch.addcmul(mean_a.square(), mean_b, mean_b)
    covariance = mean(a * b) - product
    variance = mean(torch.addcmul(a.square(), b, b)) - squares
    likeness = (product + C1 / 2) * (covariance + C2 / 2) / ((squares + C1) * (variance + C2))
    return (1 - 4 * likeness.mean((2, 3))) / 2


def _window(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    at = torch.arange(size, device=device, dtype=dtype) - (size - 1) / 2
    return torch.softmax(-at.square() / (2 * SIGMA_PIXELS**2), 0)
