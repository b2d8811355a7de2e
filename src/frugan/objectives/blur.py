"""Separable blurs as matrix products.

A blur along one axis is a product with a band matrix. Wide filters (a face loss at 512 pixels blurs with 257 taps) run
at the speed of matrix products, forward and backward, and rows outside the picture cost nothing.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def gaussian_kernel(radius: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Gaussian of standard deviation `radius` pixels: int(4·radius) taps, made odd, at least 3. [taps], sum 1."""
    taps = max(3, int(4 * radius))
    taps += 1 - taps % 2
    at = torch.arange(taps, device=device, dtype=dtype) - taps // 2
    kernel = torch.exp(-at.square() / (2 * radius**2))
    return kernel / kernel.sum()


def blur(x: Tensor, kernel: Tensor, padding: int) -> Tensor:
    """Blur pictures with the outer product of a kernel with itself, zeros outside.

    Args:
        x: [B, C, H, W].
        kernel: [taps].
        padding: zeros on every side.

    Returns:
        [B, C, H + 2·padding - taps + 1, W + 2·padding - taps + 1].
    """
    height, width = x.shape[-2:]
    across = _band(width, kernel, padding)
    down = across if height == width else _band(height, kernel, padding)
    return down.T @ (x.contiguous() @ across)  # of [B, C, H, W']


def gaussian_blur(x: Tensor, radius: float) -> Tensor:
    """Blur to the same size, zeros outside: what touches the border darkens, as in DeepFaceLab. [B, C, H, W]."""
    kernel = gaussian_kernel(radius, x.device, x.dtype)
    return blur(x, kernel, len(kernel) // 2)


def _band(size: int, kernel: Tensor, padding: int) -> Tensor:
    """Matrix whose column j holds the kernel's taps for output j. [size, size + 2·padding - taps + 1]."""
    outputs = size + 2 * padding - len(kernel) + 1
    # Each row is the one before, moved by one place: views of one line that holds the kernel between zeros. Rows can be
    # moved to the left only, so the outputs come in reverse.
    margin = outputs - 1 - padding
    line = F.pad(kernel, (margin, margin))
    return line.as_strided((size, outputs), (1, 1)).flip(1)
