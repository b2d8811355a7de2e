"""Layers with statistics over groups of samples: batch normalisation, and the minibatch standard deviation."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.elementwise import affine
from frugan.contract.layers import GroupNormalised, SharedGroup, UsesOps, whole_moments

# Batch normalisation over exact groups, plain and conditioned on a class or a vector.
#
# A micro-batch is a whole number of groups and each group is normalised by its own statistics, so the result does not
# depend on the micro-batch. Running statistics move once per phase, by the mean over its groups.

MOMENTUM = 0.1
"""Weight of the newest batch in the running statistics."""


class RunningStatisticsNorm(GroupNormalised, UsesOps):
    """Normalises channels to mean 0 and variance 1; buffers `stored_mean`, `stored_var` as in the BigGAN release.

    Args:
        channels: C of the input [B, C, H, W].
        eps: added to the variance.
        biased: the running variance is over n samples, and not n - 1.
    """

    can_share = True
    asks = ("batch_norm",)
    newest = MOMENTUM
    stored_mean: Tensor
    stored_var: Tensor

    def __init__(self, channels: int, eps: float, *, biased: bool = False) -> None:
        super().__init__()
        self.eps, self.biased = eps, biased
        self.register_buffer("stored_mean", torch.zeros(channels))
        self.register_buffer("stored_var", torch.ones(channels))

    def scaled(self, x: Tensor, gain: Tensor, bias: Tensor, *, relu: bool) -> Tensor:
        """gain·normalised + bias, by the statistics of groups in training, else by running ones.

        Args:
            x: [B, C, H, W].
            gain: [B, C], or [1, C] for all samples, of x's dtype.
            bias: likewise.
            relu: apply a ReLU to the result.

        Raises:
            ValueError: in training, if B is not a whole number of groups.
        """
        if self.training and self.shared is None:
            return self.ops.batch_norm(
                x,
                gain,
                bias,
                group=self._group(x),
                eps=self.eps,
                biased=self.biased,
                relu=relu,
                room=self._room,
                observe=self._observe_group,
            )
        y = affine(self._normalise(x), gain[:, :, None, None], bias[:, :, None, None])
        return F.relu(y) if relu else y

    def _normalise(self, x: Tensor) -> Tensor:
        """Normalise by running statistics, or by those of groups that other processes hold parts of."""
        shared = self.shared
        if not self.training or shared is None:
            return F.batch_norm(x, self.stored_mean, self.stored_var, eps=self.eps)
        group = self._group(x)
        parts = [self._normalise_part(part, shared) for part in ([x] if len(x) == group else x.split(group))]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _observe_group(self, mean: Tensor, variance: Tensor) -> None:
        self.observe("stored_mean", mean)
        self.observe("stored_var", variance)

    def _room(self, count: int) -> Tensor:
        """Zeros [count] for statistics of a group."""
        if self.observer is None:
            return self.stored_mean.new_zeros(count)
        return self.observer.room(self.stored_mean, count)

    def _group(self, x: Tensor) -> int:
        """Number of samples of a group that this process holds."""
        group = self.normalisation_batch or len(x) if self.shared is None else self.shared.part
        if len(x) % group:
            raise ValueError(
                f"{len(x)} samples are not a whole number of normalisation groups of {group}: "
                "a micro-batch must be a multiple of the recipe's normalisation_batch"
            )
        return group

    def _normalise_part(self, x: Tensor, shared: SharedGroup) -> Tensor:
        """Normalise this process's part of a group."""
        wide = x if x.dtype == torch.float64 else x.float()
        variance, mean = torch.var_mean(wide, (0, 2, 3), correction=0)  # [C] each
        mean, variance = whole_moments(shared, mean, variance)
        samples = shared.samples * (x.numel() // (x.shape[0] * x.shape[1]))
        share = shared.part / shared.samples  # all processes of the group observe equal values
        self.observe("stored_mean", mean, share)
        self.observe("stored_var", variance if self.biased else variance * (samples / (samples - 1)), share)
        scale = (variance + self.eps).rsqrt()
        return ((wide - mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1)).to(x.dtype)


class BatchNorm(RunningStatisticsNorm):
    """Batch normalisation with a learned gain and bias per channel, and optionally a ReLU."""

    def __init__(self, channels: int, eps: float = 1e-5, *, biased: bool = False, relu: bool = False) -> None:
        super().__init__(channels, eps, biased=biased)
        self.relu = relu
        self.gain = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W]."""
        gain, bias = (t.to(x.dtype).view(1, -1) for t in (self.gain, self.bias))
        return self.scaled(x, gain, bias, relu=self.relu)


class ConditionalBatchNorm(RunningStatisticsNorm):
    """Batch normalisation whose gain and bias are functions of a condition: (1 + gain(y))·norm(x) + bias(y).

    Args:
        channels: C of the input.
        gain: layer that maps a condition [B, ...] to [B, C].
        bias: likewise.
        eps: added to the variance.
        biased: the running variance is over n samples, and not n - 1.

    Source: de Vries et al. 2017 (arXiv 1707.00683), in the form of the BigGAN release.
    """

    def __init__(
        self, channels: int, gain: nn.Module, bias: nn.Module, eps: float = 1e-5, *, biased: bool = False
    ) -> None:
        super().__init__(channels, eps, biased=biased)
        self.gain = gain
        self.bias = bias

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """[B, C, H, W], condition [B, ...] -> [B, C, H, W]."""
        (gain_and_bias,) = gains_and_biases([self], condition)
        return self.modulate(x, *gain_and_bias)

    def modulate(self, x: Tensor, gain: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
        """Normalise x [B, C, H, W] with this gain and bias [B, C]."""
        return self.scaled(x, gain.to(x.dtype), bias.to(x.dtype), relu=relu)


def gains_and_biases(norms: Sequence[ConditionalBatchNorm], condition: Tensor) -> list[tuple[Tensor, Tensor]]:
    """1 + gain, and bias, of several layers with one condition, in a single product if all their maps are products.

    Args:
        norms: the layers.
        condition: [B, ...].

    Returns:
        Gain and bias [B, C] for each layer.
    """
    layers = [*(norm.gain for norm in norms), *(norm.bias for norm in norms)]
    if not all(_is_product(layer) for layer in layers):
        return [(1 + norm.gain(condition), norm.bias(condition)) for norm in norms]
    weights = [cast(Tensor, layer.weight) for layer in layers]
    sizes = [len(weight) for weight in weights[: len(norms)]]
    gains, *biases = F.linear(condition, torch.cat(weights)).split([sum(sizes), *sizes], 1)
    return list(zip((1 + gains).split(sizes, 1), biases, strict=True))


def _is_product(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) and layer.bias is None


# Minibatch standard deviation: it shows the discriminator how different the pictures of a group are.
#
# Source: Karras et al. 2017 (arXiv 1710.10196), section 3.

EPS = 1e-8


class MinibatchStd(GroupNormalised):
    """Appends maps of the mean standard deviation over the samples of a group.

    A group is `normalisation_batch` consecutive samples, whatever the micro-batch. (The release takes every
    (N/group)-th sample of a micro-batch, which is equal where a micro-batch is one group.)

    Args:
        maps: number of maps that are appended, each for an equal part of the channels.
    """

    can_share = True

    def __init__(self, maps: int) -> None:
        super().__init__()
        self.maps = maps

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C + maps, H, W].

        Raises:
            ValueError: N is more than one group, and not a whole number of them.
        """
        samples, channels, height, width = x.shape
        shared = self.shared
        group = min(self.normalisation_batch or samples, samples) if shared is None else shared.part
        if samples % group:
            raise ValueError(f"{samples} samples are not a whole number of groups of {group}: pass whole groups")
        y = x.view(samples // group, group, self.maps, channels // self.maps, height, width)
        if shared is None:
            variance = y.var(1, correction=0)  # [groups, maps, C/maps, H, W]
        else:
            variance, mean = torch.var_mean(y, 1, correction=0)
            _, variance = whole_moments(shared, mean, variance)
        deviations = (variance + EPS).sqrt().mean((2, 3, 4))  # [groups, maps]
        shown = deviations.repeat_interleave(group, 0, output_size=samples)[:, :, None, None]
        return torch.cat([x, shown.expand(-1, -1, height, width)], 1)
