"""Layers and residual blocks of BigGAN, SAGAN, SNGAN and BigGAN-deep, as one network's config wants them.

Source: Brock et al. 2018 (arXiv 1809.11096), appendix B; order of operations and parameter names of the release.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.families.biggan.config import BigGANNetworks
from frugan.nn.attention import SelfAttention
from frugan.nn.batch_norm import ConditionalBatchNorm, gains_and_biases
from frugan.nn.initialise import Embedding
from frugan.nn.linear_maps import mean_pool2d, plus_doubled, upsampled_conv2d
from frugan.nn.spectral_norm import SNConv2d, SNEmbedding, SNLinear

# Spectrally normalised layers as one network's config wants them.


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


# Residual blocks of BigGAN, SAGAN and SNGAN.
#
# Source: Brock et al. 2018 (arXiv 1809.11096), appendix B; order of operations and parameter names of the release.


def upsample(x: Tensor) -> Tensor:
    """Nearest-neighbour doubling: [B, C, H, W] -> [B, C, 2H, 2W]."""
    return F.interpolate(x, scale_factor=2)


class GeneratorBlock(nn.Module):
    """Doubles the resolution; both normalisations see the condition."""

    def __init__(self, layers: Layers, inputs: int, outputs: int, condition_size: int | None) -> None:
        super().__init__()
        self.conv1 = layers.convolution(inputs, outputs)
        self.conv2 = layers.convolution(outputs, outputs)
        self.conv_sc = layers.convolution(inputs, outputs, 1)
        self.bn1 = layers.conditional_norm(inputs, condition_size)
        self.bn2 = layers.conditional_norm(outputs, condition_size)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """[B, in, H, W], condition [B, ...] -> [B, out, 2H, 2W]."""
        first, second = gains_and_biases((self.bn1, self.bn2), condition)
        h = F.relu(self.bn1.modulate(x, *first))
        h = upsampled_conv2d(h, cast(Tensor, self.conv1.weight), cast(Tensor, self.conv1.bias))  # [B, out, 2H, 2W]
        h = self.conv2(F.relu(self.bn2.modulate(h, *second)))
        # A 1x1 convolution and nearest upsampling commute exactly; this order costs a quarter.
        return plus_doubled(h, self.conv_sc(x))


class DiscriminatorBlock(nn.Module):
    """Halves the resolution if `downsample`. The first block takes pictures: it has no leading ReLU and pools first."""

    def __init__(self, layers: Layers, inputs: int, outputs: int, *, wide: bool, first: bool, downsample: bool) -> None:
        super().__init__()
        hidden = outputs if wide else inputs
        self.first, self.downsample = first, downsample
        self.conv1 = layers.convolution(inputs, hidden)
        self.conv2 = layers.convolution(hidden, outputs)
        self.conv_sc = layers.convolution(inputs, outputs, 1) if inputs != outputs or downsample else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, H/2, W/2], or [B, out, H, W] without downsampling."""
        h = self.conv2(F.relu(self.conv1(x if self.first else F.relu(x))))
        if not self.downsample:
            return torch.add(h, self.conv_sc(x))
        # Average pooling and a 1x1 convolution commute too: the skip pools before it, the release's later blocks after.
        return torch.add(mean_pool2d(h), self.conv_sc(mean_pool2d(x)))


# Residual bottleneck blocks of BigGAN-deep.
#
# Source: Brock et al. 2018 (arXiv 1809.11096), appendix B, figure 16; parameter names of the release.


class DeepGeneratorBlock(nn.Module):
    """Bottleneck of a quarter of the input's channels; the skip drops the channels that go, and has no convolution."""

    def __init__(self, layers: Layers, inputs: int, outputs: int, condition_size: int | None, *, up: bool) -> None:
        super().__init__()
        hidden = inputs // 4
        self.outputs, self.up = outputs, up
        self.conv1 = layers.convolution(inputs, hidden, 1)
        self.conv2 = layers.convolution(hidden, hidden)
        self.conv3 = layers.convolution(hidden, hidden)
        self.conv4 = layers.convolution(hidden, outputs, 1)
        self.bn1 = layers.conditional_norm(inputs, condition_size)
        self.bn2 = layers.conditional_norm(hidden, condition_size)
        self.bn3 = layers.conditional_norm(hidden, condition_size)
        self.bn4 = layers.conditional_norm(hidden, condition_size)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """[B, in, H, W], condition [B, K] -> [B, out, H, W], or [B, out, 2H, 2W] if `up`."""
        gains = gains_and_biases((self.bn1, self.bn2, self.bn3, self.bn4), condition)
        h = self.conv1(F.relu(self.bn1.modulate(x, *gains[0])))  # [B, hidden, H, W]
        h = F.relu(self.bn2.modulate(h, *gains[1]))
        skip = x[:, : self.outputs]
        if self.up:
            h, skip = upsample(h), upsample(skip)
        h = self.conv2(h)
        h = self.conv3(F.relu(self.bn3.modulate(h, *gains[2])))
        h = self.conv4(F.relu(self.bn4.modulate(h, *gains[3])))
        return torch.add(h, skip)


class DeepDiscriminatorBlock(nn.Module):
    """Bottleneck of a quarter of the output's channels; channels that the skip lacks come from a 1x1 convolution."""

    def __init__(self, layers: Layers, inputs: int, outputs: int, *, downsample: bool) -> None:
        super().__init__()
        hidden = outputs // 4
        self.downsample = downsample
        self.conv1 = layers.convolution(inputs, hidden, 1)
        self.conv2 = layers.convolution(hidden, hidden)
        self.conv3 = layers.convolution(hidden, hidden)
        self.conv4 = layers.convolution(hidden, outputs, 1)
        self.conv_sc = layers.convolution(inputs, outputs - inputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, H/2, W/2], or [B, out, H, W] without downsampling."""
        h = self.conv1(F.relu(x))
        h = self.conv2(F.relu(h))
        h = F.relu(self.conv3(F.relu(h)))
        if self.downsample:
            h, x = mean_pool2d(h), mean_pool2d(x)
        skip = x if self.conv_sc is None else torch.cat([x, self.conv_sc(x)], 1)
        return torch.add(self.conv4(h), skip)
