"""Losses and regularisers: pure functions on tensors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.dssim import blur

# Losses of a discriminator and a generator, as functions of the discriminator's outputs.
#
# Each returns an fp32 scalar, the mean over the samples. Hinge: Lim and Ye 2017, Tran et al. 2017; non-saturating:
# Goodfellow et al. 2014, which the BigGAN release calls DCGAN's; relativistic: Jolicoeur-Martineau 2018 (arXiv
# 1807.00734), section 3, in the logistic form of Huang et al. 2024 (arXiv 2501.05441).


def hinge_real(outputs: Tensor) -> Tensor:
    """mean(relu(1 - D(real)))."""
    return F.relu(1 - outputs.float()).mean()


def hinge_fake(outputs: Tensor) -> Tensor:
    """mean(relu(1 + D(fake)))."""
    return F.relu(1 + outputs.float()).mean()


def hinge_generator(outputs: Tensor) -> Tensor:
    """-mean(D(fake))."""
    return -outputs.float().mean()


def non_saturating_real(outputs: Tensor) -> Tensor:
    """mean(softplus(-D(real)))."""
    return F.softplus(-outputs.float()).mean()


def non_saturating_fake(outputs: Tensor) -> Tensor:
    """mean(softplus(D(fake)))."""
    return F.softplus(outputs.float()).mean()


def non_saturating_generator(outputs: Tensor) -> Tensor:
    """mean(softplus(-D(fake)))."""
    return F.softplus(-outputs.float()).mean()


def relativistic(outputs: Tensor, others: Tensor) -> Tensor:
    """mean(softplus(D(other) - D(first))) over pairs, which is small where the first of a pair looks more real.

    Args:
        outputs: discriminator outputs for the first of each pair [B, 1].
        others: discriminator outputs for the other of each pair [B, 1].
    """
    return F.softplus(others.float() - outputs.float()).mean()


@dataclass(frozen=True)
class AdversarialLoss:
    """The three terms of an adversarial game, each a function of discriminator outputs [B, 1]."""

    real: Callable[[Tensor], Tensor]
    fake: Callable[[Tensor], Tensor]
    generator: Callable[[Tensor], Tensor]


ADVERSARIAL_LOSSES: Mapping[str, AdversarialLoss] = MappingProxyType(
    {
        "hinge": AdversarialLoss(hinge_real, hinge_fake, hinge_generator),
        "non-saturating": AdversarialLoss(non_saturating_real, non_saturating_fake, non_saturating_generator),
    }
)


# R1 and R2: penalties on the discriminator's gradient at real pictures and at generated ones.


def r1_penalty(outputs: Tensor, pictures: Tensor, loss_scale: Tensor) -> Tensor:
    """Half the squared norm of the outputs' gradient with respect to the pictures, for each picture.

    It is R1 at real pictures, and R2 at generated ones that pass no gradient on to their generator.

    Args:
        outputs: outputs of a discriminator that looks at each picture alone [n, 1].
        pictures: [n, C, H, W], fp32, requiring a gradient.
        loss_scale: multiplies the outputs on the way back, so that half precision keeps small gradients.

    Returns:
        [n], fp32, differentiable once more.

    Source: Mescheder et al. 2018 (arXiv 1801.04406), equation 9 without gamma.
    """
    (gradient,) = torch.autograd.grad(outputs.float().sum() * loss_scale, pictures, create_graph=True)
    return (gradient.float() / loss_scale).square().sum((1, 2, 3)) / 2


def r1_by_differences(outputs: Tensor, outputs_of_noisy: Tensor, deviation: float) -> Tensor:
    """Estimate `r1_penalty` without a gradient: half the squared change of the output, over the noise's variance.

    The mean over the noise is the penalty, up to terms of the order of the variance; the standard deviation of one
    picture's estimate is √2 times the penalty.

    Args:
        outputs: outputs of the discriminator [n, 1].
        outputs_of_noisy: its outputs for the pictures with normal noise added [n, 1].
        deviation: standard deviation of the noise.

    Returns:
        [n], fp32.

    Source: Lin et al. 2025 (arXiv 2501.08316), section 3.4, without its factor.
    """
    return ((outputs_of_noisy.float() - outputs.float()) / deviation).square().sum(1) / 2


# Path length regularisation: a step of a style shall change the picture equally much everywhere.
#
# Source: Karras et al. 2019 (arXiv 1912.04958), section 3.2, in the form of the release.


def path_lengths(pictures: Tensor, styles: Tensor, noise: Tensor, loss_scale: Tensor) -> Tensor:
    """Lengths of the gradient of random projections of pictures with respect to their styles.

    Args:
        pictures: [N, C, H, W], made of the styles.
        styles: [N, S, W], requiring a gradient.
        noise: directions of the projections, normal numbers [N, C, H, W].
        loss_scale: multiplies the projections on the way back, so that half precision keeps small gradients.

    Returns:
        [N], fp32: the root of the mean over S of squared lengths, differentiable once more.
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
    """Squared distance of each length from the running mean, after the length's group has moved that.

    Args:
        lengths: [N].
        mean: running mean so far, a scalar.
        decay: how far the group's mean moves it, 0 to 1.
        group: consecutive samples that move it together; None: all. The last group may be smaller.
        group_mean: mean over a group, from the lengths of the samples that this process has.

    Returns:
        [N], differentiable also through the movement of the mean, as in the release.
    """

    def penalise(part: Tensor) -> Tensor:
        return (part - torch.lerp(mean.to(part.dtype), group_mean(part), decay)).square()

    return torch.cat([penalise(part) for part in lengths.split(group or len(lengths))])


# Orthogonal regularisation of weights.
#
# Source: Brock et al. 2018 (arXiv 1809.11096), equation 3, with the gradient as the BigGAN release adds it.


@torch.no_grad()
def add_orthogonal_gradient(parameters: Iterable[nn.Parameter], strength: float) -> None:
    """Add 2·strength·((W Wᵀ)⊙(1-I))·W to the gradient of every weight W = [out, rest] of two dimensions or more.

    This is half the gradient of ‖(W Wᵀ)⊙(1-I)‖², the release's factor, so that its strengths mean the same here. It
    acts on masters, not on spectrally normalised weights. Parameters without a gradient are skipped.
    """
    for parameter in parameters:
        if parameter.ndim < 2 or parameter.grad is None:
            continue
        matrix = parameter.flatten(1)  # [out, rest]
        gram = matrix @ matrix.T  # [out, out]
        gram.fill_diagonal_(0.0)
        parameter.grad.add_((gram @ matrix).view_as(parameter), alpha=2 * strength)


# Gaussian blur, for a loss and for masks.


def gaussian_kernel(radius: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Gaussian of standard deviation `radius` pixels and sum 1 [taps]; int(4·radius) taps, made odd, at least 3."""
    taps = max(3, int(4 * radius))
    taps += 1 - taps % 2
    at = torch.arange(taps, device=device, dtype=dtype) - taps // 2
    kernel = torch.exp(-at.square() / (2 * radius**2))
    return kernel / kernel.sum()


def gaussian_blur(x: Tensor, radius: float) -> Tensor:
    """Blur [B, C, H, W] to the same size, with zeros outside, so that borders darken as in DeepFaceLab."""
    kernel = gaussian_kernel(radius, x.device, x.dtype)
    return blur(x, kernel, len(kernel) // 2)


# Loss on the colours of a picture: mean and deviation of each channel (Huang and Belongie 2017, arXiv 1703.06868).


def style_loss(content: Tensor, style: Tensor, blur_radius: int) -> Tensor:
    """Squared difference of the channels' means and standard deviations, averaged over channels; fp32 or more.

    Args:
        content: [B, C, H, W].
        style: [B, C, H, W].
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


# Total variation as DeepFaceLab computes it on a GPU.


def total_variation_of_channels_and_rows(x: Tensor) -> Tensor:
    """Sum of squared differences between neighbouring channels and between neighbouring rows.

    The original always takes tensor axes 1 and 2, which are channels and rows in the layout of every GPU run. Existing
    models were trained with this term, so it is kept.

    Args:
        x: [B, C, H, W].

    Returns:
        [B].
    """
    channels = (x[:, 1:] - x[:, :-1]).square().sum((1, 2, 3))
    rows = (x[:, :, 1:] - x[:, :, :-1]).square().sum((1, 2, 3))
    return channels + rows


# Loss terms whose gradient is computed together with them, a few samples at a time.
#
# A structural loss on 512-pixel faces keeps some 25 full-size fp32 maps for its backward, while its gradient with
# respect to the prediction is a single map. So the gradient is computed along with the loss, and only that map is kept:
# the same products as in a later backward, in a twentieth of the memory.

PIECE_ELEMENTS = 1 << 21
"""Elements of the first prediction in one piece: whole batches of small pictures, 2 samples of 512 pixels."""

Terms = dict[str, Tensor]


def eager_gradient(
    loss: Callable[[Sequence[Tensor], Sequence[Tensor]], Terms],
    predictions: Sequence[Tensor],
    constants: Sequence[Tensor],
) -> Terms:
    """Compute terms that are means over samples; the gradient flows as if their sum had been computed as usual.

    Args:
        loss: (predictions of some samples, constants of these samples) -> scalar terms, each a mean over the samples,
            in which no sample looks at another.
        predictions: [B, ...] each, which receive gradients.
        constants: [B, ...] each.

    Returns:
        The terms by name. The gradient of all of them together is attached to the first term: only their sum may be
        differentiated, with equal weights, as a part of a phase does.
    """
    if not torch.is_grad_enabled() or not any(p.requires_grad for p in predictions):
        return loss(predictions, constants)
    names: list[str] = []

    def run(*inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        names[:], values, gradients = _in_pieces(loss, inputs, constants)
        return values, gradients

    values = _Eager.apply(run, *predictions)
    detached = values.detach()
    terms = {name: detached[i] for i, name in enumerate(names)}
    # This adds the whole gradient, and nothing to the value.
    terms[names[0]] = detached[0] + (values.sum() - detached.sum())
    return terms


def _in_pieces(
    loss: Callable[[Sequence[Tensor], Sequence[Tensor]], Terms],
    predictions: Sequence[Tensor],
    constants: Sequence[Tensor],
) -> tuple[list[str], Tensor, list[Tensor]]:
    """Names and values of the terms, and the gradient of their sum for each prediction."""
    size = len(predictions[0])
    step = max(1, PIECE_ELEMENTS // max(1, predictions[0][0].numel()))
    gradients = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in predictions]
    names: list[str] = []
    total: Tensor | None = None
    for first in range(0, size, step):
        here = slice(first, min(first + step, size))
        with torch.enable_grad():
            piece = [p[here].detach().requires_grad_() for p in predictions]
            terms = loss(piece, [c[here] for c in constants])
            share = (here.stop - first) / size
            stacked = torch.stack(list(terms.values())) * share
            slopes = torch.autograd.grad(stacked.sum(), piece)
        for gradient, slope in zip(gradients, slopes, strict=True):
            gradient[here].copy_(slope)
        names = list(terms)
        total = stacked.detach() if total is None else total + stacked.detach()
    assert total is not None
    return names, total, gradients


class _Eager(torch.autograd.Function):
    """Values whose gradient is already known."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., tuple[Tensor, list[Tensor]]], *predictions: Tensor) -> Tensor:
        values, gradients = run(*predictions)
        ctx.save_for_backward(*gradients)
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        # All terms have the same weight in a part's loss, so the first one tells it.
        weight = outer[0][0]
        return None, *(gradient * weight for gradient in ctx.saved_tensors)
