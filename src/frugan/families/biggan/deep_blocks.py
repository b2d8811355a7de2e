"""Residual bottleneck blocks of BigGAN-deep.

Source: Brock et al. 2018 (arXiv 1809.11096), appendix B, figure 16; parameter names of the release.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.families.biggan.blocks import upsample
from frugan.families.biggan.layers import Layers
from frugan.nn.batch_norm import gains_and_biases
from frugan.nn.linear_maps import mean_pool2d


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
