"""R1: a penalty on the discriminator's gradient at real pictures."""

import torch
from torch import Tensor


def r1_penalty(outputs: Tensor, pictures: Tensor, loss_scale: Tensor) -> Tensor:
    """Half the squared norm of the outputs' gradient with respect to the pictures, for each picture.

    Args:
        outputs: of the discriminator [n, 1], where no picture looks at another.
        pictures: as given, [n, C, H, W], fp32, requiring a gradient.
        loss_scale: what the outputs are multiplied by on the way back, so that half precision keeps small gradients.

    Returns:
        [n], fp32, differentiable once more.

    Source: Mescheder et al. 2018 (arXiv 1801.04406), equation 9 without gamma.
    """
    (gradient,) = torch.autograd.grad(outputs.float().sum() * loss_scale, pictures, create_graph=True)
    return (gradient.float() / loss_scale).square().sum((1, 2, 3)) / 2
