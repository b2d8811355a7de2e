"""Spectrally normalised layers as one network's config wants them."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from frugan.families.biggan.config import BigGANNetworks
from frugan.nn.attention import SelfAttention
from frugan.nn.batch_norm import ConditionalBatchNorm
from frugan.nn.embedding import Embedding
from frugan.nn.spectral_norm import SNConv2d, SNEmbedding, SNLinear


class ClassTable(Embedding):
    """A row of values per class; takes class numbers [B], or mixtures of classes [B, classes] for interpolation."""

    def forward(self, classes: Tensor) -> Tensor:
        """[B] integers, or [B, classes] weights -> [B, features]."""
        if classes.is_floating_point():
            return classes.to(self.weight.dtype) @ self.weight
        return F.embedding(classes, self.weight)


@dataclass(frozen=True)
class Layers:
    """Makes the layers of a network, all with the same spectral-norm and batch-norm settings."""

    config: BigGANNetworks

    def _norm(self) -> dict[str, int | float]:
        config = self.config
        return {
            "iterations": config.power_iterations,
            "singular_values": config.singular_values,
            "eps": config.spectral_norm_eps,
        }

    def convolution(self, inputs: int, outputs: int, kernel: int = 3, *, bias: bool = True) -> nn.Module:
        """Convolution that keeps height and width."""
        return SNConv2d(inputs, outputs, kernel, padding=kernel // 2, bias=bias, **self._norm())  # type: ignore[arg-type]

    def linear(self, inputs: int, outputs: int, *, bias: bool = True) -> nn.Module:
        """Linear layer."""
        return SNLinear(inputs, outputs, bias=bias, **self._norm())  # type: ignore[arg-type]

    def embedding(self, classes: int, features: int) -> nn.Module:
        """Embedding table, spectrally normalised (the discriminator's)."""
        return SNEmbedding(classes, features, **self._norm())  # type: ignore[arg-type]

    def attention(self, channels: int) -> nn.Module:
        """Self-attention."""
        return SelfAttention(channels, lambda a, b: self.convolution(a, b, 1, bias=False))

    def conditional_norm(self, channels: int, condition_size: int | None) -> ConditionalBatchNorm:
        """Class-conditional batch norm; `condition_size` None: plain tables indexed by class, without spectral norm."""
        if condition_size is None:
            gain: nn.Module = ClassTable(self.config.classes, channels)
            bias: nn.Module = ClassTable(self.config.classes, channels)
        else:
            gain = self.linear(condition_size, channels, bias=False)
            bias = self.linear(condition_size, channels, bias=False)
        return ConditionalBatchNorm(channels, gain, bias, eps=self.config.batch_norm_eps, biased=self.biased)

    @property
    def biased(self) -> bool:
        """Whether running variances are over n samples, and not n - 1."""
        return self.config.running_variance == "biased"
