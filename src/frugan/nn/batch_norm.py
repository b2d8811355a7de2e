"""Batch normalisation over exact groups, plain and conditioned on a class or a vector.

A micro-batch is a whole number of groups and each group is normalised by its own statistics, so the result does not
depend on the micro-batch. Running statistics are observed and move once per phase, by the mean over its groups.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.layers import GroupNormalised
from frugan.contract.shared_group import SharedGroup, whole_moments

MOMENTUM = 0.1
"""Weight of the newest batch in the running statistics."""


class RunningStatisticsNorm(GroupNormalised):
    """Normalises channels to mean 0 and variance 1; buffers `stored_mean`, `stored_var` as in the BigGAN release.

    Args:
        channels: C of the input [B, C, H, W].
        eps: added to the variance.
        biased: the running variance is that over n samples, and not n - 1.
    """

    stored_mean: Tensor
    stored_var: Tensor

    def __init__(self, channels: int, eps: float, *, biased: bool = False) -> None:
        super().__init__()
        self.eps, self.biased = eps, biased
        self.register_buffer("stored_mean", torch.zeros(channels))
        self.register_buffer("stored_var", torch.ones(channels))

    def normalise(self, x: Tensor) -> Tensor:
        """Normalise [B, C, H, W] by group statistics in training, by the running ones in evaluation.

        Raises:
            ValueError: in training, if B is not a whole number of groups.
        """
        if not self.training:
            return F.batch_norm(x, self.stored_mean, self.stored_var, eps=self.eps)
        shared = self.shared
        group = self.normalisation_batch or len(x) if shared is None else shared.part
        if len(x) % group:
            raise ValueError(
                f"{len(x)} samples are not a whole number of normalisation groups of {group}: "
                "a micro-batch must be a multiple of the recipe's normalisation_batch"
            )
        groups = [x] if len(x) == group else x.split(group)
        done = [self._normalise_group(x) if shared is None else self._normalise_part(x, shared) for x in groups]
        return done[0] if len(done) == 1 else torch.cat(done)

    def _normalise_group(self, x: Tensor) -> Tensor:
        # Throw-away running statistics at momentum 1 receive the group's mean and unbiased variance from the kernel
        # that normalises: no second pass over x, and fp32 whatever the dtype of x.
        mean = torch.zeros_like(self.stored_mean)
        variance = torch.ones_like(self.stored_var)
        out = F.batch_norm(x, mean, variance, training=True, momentum=1.0, eps=self.eps)
        self.observe("stored_mean", mean)
        if self.biased:
            samples = x.numel() // x.shape[1]
            variance *= (samples - 1) / samples
        self.observe("stored_var", variance)
        return out

    def _normalise_part(self, x: Tensor, shared: SharedGroup) -> Tensor:
        """Normalise a part of a group, whose other parts other processes have."""
        wide = x if x.dtype == torch.float64 else x.float()
        variance, mean = torch.var_mean(wide, (0, 2, 3), correction=0)  # [C] each
        mean, variance = whole_moments(shared, mean, variance)
        samples = shared.samples * (x.numel() // (x.shape[0] * x.shape[1]))
        share = shared.part / shared.samples  # all processes of the group observe the same
        self.observe("stored_mean", mean, share)
        self.observe("stored_var", variance if self.biased else variance * (samples / (samples - 1)), share)
        scale = (variance + self.eps).rsqrt()
        return ((wide - mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1)).to(x.dtype)

    def committed(self, buffer: str, observed: Tensor) -> Tensor:
        """Move a running statistic by MOMENTUM towards the mean over the phase's groups."""
        return torch.lerp(getattr(self, buffer), observed, MOMENTUM)


class BatchNorm(RunningStatisticsNorm):
    """Batch normalisation with a learned gain and bias per channel."""

    fp32_parameters = ("gain", "bias")

    def __init__(self, channels: int, eps: float = 1e-5, *, biased: bool = False) -> None:
        super().__init__(channels, eps, biased=biased)
        self.gain = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W]."""
        gain, bias = (t.to(x.dtype).view(1, -1, 1, 1) for t in (self.gain, self.bias))
        return torch.addcmul(bias, self.normalise(x), gain)


class ConditionalBatchNorm(RunningStatisticsNorm):
    """Batch normalisation whose gain and bias are functions of a condition: (1 + gain(y))·norm(x) + bias(y).

    Args:
        channels: C of the input.
        gain, bias: layers that map a condition [B, ...] to [B, C].
        eps: added to the variance.
        biased: the running variance is that over n samples, and not n - 1.

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
        gain = (1 + self.gain(condition)).to(x.dtype)[:, :, None, None]  # [B, C, 1, 1]
        bias = self.bias(condition).to(x.dtype)[:, :, None, None]  # [B, C, 1, 1]
        return torch.addcmul(bias, self.normalise(x), gain)
