"""Structural dissimilarity, and the separable blurs that it is made of.

Source: Wang et al. 2004 (SSIM), in DeepFaceLab's form: the mean over the picture of luminance times
contrast-structure, without padding, and with filters of even size too.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

SIGMA_PIXELS = 1.5
C1 = 0.01**2
C2 = 0.03**2


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
    kernel = window(filter_size, a.device, dtype)

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


def window(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """SSIM's Gaussian of sum 1 [max(size, 1)]; the size may be even."""
    size = max(1, size)
    at = torch.arange(size, device=device, dtype=dtype) - (size - 1) / 2
    return torch.softmax(-at.square() / (2 * SIGMA_PIXELS**2), 0)


# Separable blurs as matrix products.
#
# A blur along one axis is a product with a band matrix. Wide filters (a face loss at 512 pixels blurs with 257 taps)
# run at the speed of matrix products, forward and backward, and rows outside the picture cost nothing.


def blur(x: Tensor, kernel: Tensor, padding: int) -> Tensor:
    """Blur pictures with the outer product of a kernel with itself, zeros outside.

    Args:
        x: [B, C, H, W].
        kernel: [taps].
        padding: zeros on every side.

    Returns:
        [B, C, H', W'] of sides H + 2·padding - taps + 1 and W + 2·padding - taps + 1.
    """
    down, across = bands(x.shape[-2:], kernel, padding)
    return down.T @ (x.contiguous() @ across)  # [B, C, H', H] @ [B, C, H, W']


def bands(sides: Sequence[int], kernel: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """Matrices of a blur down and across pictures of sides (H, W): [H, H'], [W, W']."""
    height, width = sides
    across = band(width, kernel, padding)
    return across if height == width else band(height, kernel, padding), across


def band(size: int, kernel: Tensor, padding: int) -> Tensor:
    """Matrix [size, size + 2·padding - taps + 1] whose column j holds the kernel's taps for output j."""
    outputs = size + 2 * padding - len(kernel) + 1
    # Each row is the one before, moved by one place: views of one line that holds the kernel between zeros. Rows can be
    # moved to the left only, so the outputs come in reverse.
    margin = outputs - 1 - padding
    line = F.pad(kernel, (margin, margin))
    return line.as_strided((size, outputs), (1, 1)).flip(1)
