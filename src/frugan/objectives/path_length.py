"""Path length regularisation: a step in a style shall change the picture by as much everywhere.

Source: Karras et al. 2019 (arXiv 1912.04958), section 3.2, in the form of the release.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def path_lengths(pictures: Tensor, styles: Tensor, noise: Tensor, loss_scale: Tensor) -> Tensor:
    """Lengths of the gradient of random projections of pictures with respect to their styles.

    Args:
        pictures: [N, C, H, W], made of the styles.
        styles: [N, S, W], requiring a gradient.
        noise: the projections, normal numbers [N, C, H, W].
        loss_scale: what is multiplied on the way back, so that half precision keeps small gradients.

    Returns:
        [N], fp32: the root of the mean over S of squared lengths; differentiable once more.
    """
    height, width = pictures.shape[2:]
    projected = (pictures * noise.to(pictures.dtype)).sum() / (height * width) ** 0.5
    (gradient,) = torch.autograd.grad(projected * loss_scale.to(projected.dtype), styles, create_graph=True)
    return (gradient / loss_scale.to(gradient.dtype)).square().sum(2).mean(1).sqrt()


def path_length_penalty(
    lengths: Tensor,
    mean: Tensor,
    decay: float,
    group: int | None,
    group_mean: Callable[[Tensor], Tensor] = torch.mean,
) -> Tensor:
    """Squared distance of each length from the running mean, which its group has moved first.

    Args:
        lengths: [N].
        mean: the running mean so far, a scalar.
        decay: how far the group's mean moves it, 0 to 1.
        group: samples in a row that move it together; None: all. The last group may be smaller.
        group_mean: mean of a group's lengths, of those of its samples that are here.

    Returns:
        [N], differentiable; also through the movement of the mean, as in the release.
    """
    groups = lengths.split(group or len(lengths))
    return torch.cat([(each - torch.lerp(mean.to(each.dtype), group_mean(each), decay)).square() for each in groups])
