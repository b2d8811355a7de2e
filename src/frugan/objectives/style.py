"""A loss on the colours of a picture: mean and spread of each channel (Huang and Belongie 2017, arXiv 1703.06868)."""

import torch
from torch import Tensor

from frugan.objectives.blur import gaussian_blur


def style_loss(content: Tensor, style: Tensor, blur_radius: int) -> Tensor:
    """Squared difference of the channels' means and standard deviations, averaged over channels; fp32 or more.

    Args:
        content, style: [B, C, H, W].
        blur_radius: standard deviation in pixels of a blur of both; 0: none.

    Returns:
        [B].
    """
    dtype = torch.promote_types(content.dtype, torch.float32)
    content, style = content.to(dtype), style.to(dtype)
    if blur_radius > 0:
        content, style = gaussian_blur(content, blur_radius), gaussian_blur(style, blur_radius)
    loss = torch.zeros((), device=content.device, dtype=dtype)
    for statistic in (_mean, _spread):
        loss = loss + (statistic(content) - statistic(style)).square().mean(1)
    return loss


def _mean(x: Tensor) -> Tensor:
    return x.mean((2, 3))  # [B, C]


def _spread(x: Tensor) -> Tensor:
    return torch.sqrt(x.var((2, 3), correction=0) + 1e-5)  # [B, C]
