"""Residual blocks of BigGAN, SAGAN and SNGAN.

Source: Brock et al. 2018 (arXiv 1809.11096), appendix B; order of operations and parameter names of the release.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.families.biggan.layers import Layers
from frugan.nn.batch_norm import gains_and_biases
from frugan.nn.linear_maps import mean_pool2d
from frugan.nn.upsampled_conv import plus_doubled, upsampled_conv2d


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
