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
    """mean(softplus(D(other) - D(one))), pair by pair: small where the first of each pair looks more real.

    Args:
        outputs, others: [B, 1] each.
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


# R1 and R2: a penalty on the discriminator's gradient, at real pictures and at generated ones.


def r1_penalty(outputs: Tensor, pictures: Tensor, loss_scale: Tensor) -> Tensor:
    """Half the squared norm of the outputs' gradient with respect to the pictures, for each picture.

    R1 of real pictures, R2 of generated ones that pass no gradient on to their generator.

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


def r1_by_differences(outputs: Tensor, outputs_of_noisy: Tensor, deviation: float) -> Tensor:
    """An estimate of `r1_penalty` without a gradient: half the squared change of the output, over the noise's variance.

    Its mean over the noise is the penalty, up to terms of the order of the variance; one picture's estimate deviates
    from it by √2 times itself.

    Args:
        outputs: of the discriminator [n, 1].
        outputs_of_noisy: the same of pictures with normal noise added [n, 1].
        deviation: of the noise.

    Returns:
        [n], fp32.

    Source: Lin et al. 2025 (arXiv 2501.08316), section 3.4, without its factor.
    """
    return ((outputs_of_noisy.float() - outputs.float()) / deviation).square().sum(1) / 2


# Path length regularisation: a step in a style shall change the picture by as much everywhere.
#
# Source: Karras et al. 2019 (arXiv 1912.04958), section 3.2, in the form of the release.


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


# Orthogonal regularisation of weights.
#
# Source: Brock et al. 2018 (arXiv 1809.11096), equation 3, with the gradient as the BigGAN release adds it.


@torch.no_grad()
def add_orthogonal_gradient(parameters: Iterable[nn.Parameter], strength: float) -> None:
    """Add 2·strength·((W Wᵀ)⊙(1-I))·W to the gradient of every weight W = [out, rest] of two dimensions or more.

    That is half the gradient of ‖(W Wᵀ)⊙(1-I)‖²: the release's factor, kept so that its strengths mean the same.
    Acts on masters, not on spectrally normalised weights. Parameters without gradient are passed over.
    """
    for parameter in parameters:
        if parameter.ndim < 2 or parameter.grad is None:
            continue
        matrix = parameter.flatten(1)  # [out, rest]
        gram = matrix @ matrix.T  # [out, out]
        gram.fill_diagonal_(0.0)
        parameter.grad.add_((gram @ matrix).view_as(parameter), alpha=2 * strength)


# A Gaussian blur, as a loss and a mask have it.


def gaussian_kernel(radius: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Gaussian of standard deviation `radius` pixels: int(4·radius) taps, made odd, at least 3. [taps], sum 1."""
    taps = max(3, int(4 * radius))
    taps += 1 - taps % 2
    at = torch.arange(taps, device=device, dtype=dtype) - taps // 2
    kernel = torch.exp(-at.square() / (2 * radius**2))
    return kernel / kernel.sum()


def gaussian_blur(x: Tensor, radius: float) -> Tensor:
    """Blur to the same size, zeros outside: what touches the border darkens, as in DeepFaceLab. [B, C, H, W]."""
    kernel = gaussian_kernel(radius, x.device, x.dtype)
    return blur(x, kernel, len(kernel) // 2)


# A loss on the colours of a picture: mean and spread of each channel (Huang and Belongie 2017, arXiv 1703.06868).


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


# Total variation as DeepFaceLab computes it on a GPU.


def total_variation_of_channels_and_rows(x: Tensor) -> Tensor:
    """Sum of squared differences between neighbouring channels and between neighbouring rows.

    The original always takes tensor axes 1 and 2, which are channels and rows in the layout of every GPU run. Trained
    models know no other term, so it is kept.

    Args:
        x: [B, C, H, W].

    Returns:
        [B].
    """
    channels = (x[:, 1:] - x[:, :-1]).square().sum((1, 2, 3))
    rows = (x[:, :, 1:] - x[:, :, :-1]).square().sum((1, 2, 3))
    return channels + rows


# Loss terms that take their own gradient at once, a few samples at a time.
#
# A structural loss on 512-pixel faces keeps some 25 full-size fp32 maps for its backward. Its gradient with respect to
# the prediction is one map. So the gradient is taken while the loss is computed, and only that map is kept: the same
# products as a backward later, in a twentieth of the memory.

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
        loss: (predictions of some samples, constants of the same) -> scalar terms, each a mean over the samples, in
            which no sample looks at another.
        predictions: [B, ...] each; receive gradients.
        constants: [B, ...] each.

    Returns:
        The terms by name. The gradient of all of them together is attached to the first one: only their sum may be
        differentiated, with the same weight for each, which is what a part of a phase does.
    """
    if not torch.is_grad_enabled() or not any(p.requires_grad for p in predictions):
        return loss(predictions, constants)
    names: list[str] = []

    def run(*given: Tensor) -> tuple[Tensor, list[Tensor]]:
        names[:], values, gradients = _in_pieces(loss, given, constants)
        return values, gradients

    values = _Eager.apply(run, *predictions)
    detached = values.detach()
    terms = {name: detached[i] for i, name in enumerate(names)}
    # Adds nothing to the value, and the whole gradient.
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
        for gradient, made in zip(gradients, slopes, strict=True):
            gradient[here].copy_(made)
        names = list(terms)
        total = stacked.detach() if total is None else total + stacked.detach()
    assert total is not None
    return names, total, gradients


class _Eager(torch.autograd.Function):
    """Values whose gradient is known already."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., tuple[Tensor, list[Tensor]]], *predictions: Tensor) -> Tensor:
        values, gradients = run(*predictions)
        ctx.save_for_backward(*gradients)
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        # Every term has the same weight in a part's loss; so one of them says it.
        weight = outer[0][0]
        return None, *(gradient * weight for gradient in ctx.saved_tensors)
