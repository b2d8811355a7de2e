"""The discriminator: how real is this picture, among the others of its group."""

import math
from typing import cast

import torch
from torch import Tensor, nn

from frugan.families.stylegan2.config import Architecture, StyleGAN2Networks
from frugan.families.stylegan2.generator import Mapping
from frugan.nn.batch_norm import MinibatchStd
from frugan.nn.equalised import EqualisedConv2d, EqualisedLinear
from frugan.nn.fir import KeptKernels, downsample2d, fir_filter


class DiscriminatorBlock(nn.Module):
    """One side of the pyramid: two convolutions, the second of which halves the side.

    Args:
        config: of the networks.
        side: of what it is given.
    """

    resample_filter: Tensor

    def __init__(self, config: StyleGAN2Networks, side: int) -> None:
        super().__init__()
        self.architecture: Architecture = config.discriminator_architecture
        inputs, outputs = config.channels_at(side), config.channels_at(side // 2)
        half, clamp = config.half_at(side), config.convolution_clamp
        self.register_buffer("resample_filter", fir_filter())
        self.kernels = KeptKernels()
        self.looks = side == config.resolution or self.architecture == "skip"
        if self.looks:
            self.fromrgb = EqualisedConv2d(config.channels, inputs, 1, clamp=clamp, half=half)
        self.conv0 = EqualisedConv2d(inputs, inputs, 3, clamp=clamp, half=half)
        gain = math.sqrt(0.5) if self.architecture == "resnet" else 1.0
        self.conv1 = EqualisedConv2d(inputs, outputs, 3, resample="down", gain=gain, clamp=clamp, half=half)
        if self.architecture == "resnet":
            self.skip = EqualisedConv2d(inputs, outputs, 1, resample="down", activate=False, gain=gain, half=half)

    def forward(self, x: Tensor | None, picture: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x [N, C, H, W] (None for the first), the picture at this side if it is looked at -> both at half of it."""
        if self.looks:
            assert picture is not None
            seen = self.fromrgb(picture)
            x = seen if x is None else x.to(seen.dtype) + seen
            skips = self.architecture == "skip"
            picture = downsample2d(picture, self.resample_filter, self.kernels) if skips else None
        made = self.conv1(self.conv0(x))
        x = self.skip(x) + made if self.architecture == "resnet" else made
        return cast(Tensor, x), picture


class Epilogue(nn.Module):
    """The last 4x4 pixels to features, always fp32.

    Args:
        config: of the networks.
        outputs: features.
    """

    def __init__(self, config: StyleGAN2Networks, outputs: int) -> None:
        super().__init__()
        channels = config.channels_at(4)
        self.looks = config.discriminator_architecture == "skip"
        if self.looks:
            self.fromrgb = EqualisedConv2d(config.channels, channels, 1)
        maps = config.minibatch_std_channels
        self.mbstd = MinibatchStd(maps) if maps else nn.Identity()
        self.conv = EqualisedConv2d(channels + maps, channels, 3, clamp=config.convolution_clamp)
        self.fc = EqualisedLinear(channels * 4 * 4, channels, activate=True)
        self.out = EqualisedLinear(channels, outputs)

    def forward(self, x: Tensor, picture: Tensor | None) -> Tensor:
        """[N, C, 4, 4] -> [N, outputs]."""
        x = x.to(self.conv.weight.dtype)
        if self.looks:
            x = x + self.fromrgb(picture)
        x = self.conv(self.mbstd(x))
        return cast(Tensor, self.out(self.fc(x.flatten(1))))


class Discriminator(nn.Module):
    """StyleGAN2's discriminator; classes by projection (Miyato and Koyama 2018, arXiv 1802.05637).

    Its first layers may be frozen (Mo et al. 2020, arXiv 2002.10964): training leaves their weights alone.
    """

    def __init__(self, config: StyleGAN2Networks) -> None:
        super().__init__()
        self.sides = config.sides[:0:-1]
        for side in self.sides:
            self.add_module(f"b{side}", DiscriminatorBlock(config, side))
        self.conditional = config.classes is not None
        features = config.channels_at(4) if self.conditional else 1
        if self.conditional:
            self.mapping = Mapping(
                0, config.classes, features, config.class_layers, rate=config.mapping_rate, tracked=False
            )
        self.b4 = Epilogue(config, features)
        for side, name in config.discriminator_layers[: config.frozen_discriminator_layers]:
            self.get_submodule(f"b{side}.{name}").requires_grad_(False)

    def forward(self, pictures: Tensor, classes: Tensor | None = None) -> Tensor:
        """Judge pictures.

        Args:
            pictures: [N, colours, R, R] in [-1, 1]; N whole groups of the minibatch standard deviation.
            classes: class numbers [N], if the networks know classes.

        Returns:
            Outputs [N, 1], fp32; larger is more real.
        """
        x: Tensor | None = None
        picture: Tensor | None = pictures
        for side in self.sides:
            x, picture = self.get_submodule(f"b{side}")(x, picture)
        outputs = cast(Tensor, self.b4(x, picture))
        if not self.conditional:
            return outputs
        wanted = self.mapping(None, classes)  # [N, features]
        return torch.div((outputs * wanted).sum(1, keepdim=True), math.sqrt(wanted.shape[1]))
