"""The discriminator: how real is this picture of this class."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.families.biggan.config import BigGANNetworks, discriminator_stages, stage_resolutions
from frugan.families.biggan.layers import DeepDiscriminatorBlock, DiscriminatorBlock, Layers
from frugan.nn.attention import SelfAttention


class Discriminator(nn.Module):
    """BigGAN's projection discriminator (Miyato and Koyama 2018, arXiv 1802.05637)."""

    def __init__(self, config: BigGANNetworks) -> None:
        super().__init__()
        layers = Layers(config)
        channels = config.discriminator_channels
        deep = config.architecture == "biggan-deep"
        stages = discriminator_stages(config.resolution, deep=deep)
        sides = stage_resolutions(config.resolution, stages, reference_at_32=config.reference_attention_at_32)
        if deep:
            self.input_conv: nn.Module = layers.convolution(config.channels, (stages[0].inputs or 1) * channels)
        else:
            self.input_conv = nn.Identity()
        self.blocks = nn.ModuleList()
        for i, (stage, side) in enumerate(zip(stages, sides, strict=True)):
            inputs = config.channels if stage.inputs is None else stage.inputs * channels
            outputs = stage.outputs * channels
            blocks = nn.ModuleList()
            if deep:
                blocks.append(DeepDiscriminatorBlock(layers, inputs, outputs, downsample=stage.downsample))
                blocks.extend(
                    DeepDiscriminatorBlock(layers, outputs, outputs, downsample=False)
                    for _ in range(config.blocks_per_stage - 1)
                )
            else:
                wide = config.discriminator_wide
                blocks.append(
                    DiscriminatorBlock(layers, inputs, outputs, wide=wide, first=i == 0, downsample=stage.downsample)
                )
            if side in config.discriminator_attention:
                blocks.append(layers.attention(outputs))
            self.blocks.append(blocks)
        if config.frozen_discriminator_blocks:
            self.input_conv.requires_grad_(False)
        for block in self.blocks[: config.frozen_discriminator_blocks]:
            block.requires_grad_(False)
        self.linear = layers.linear(outputs, 1)
        self.linear.fp32_parameters = ("weight", "bias")  # type: ignore[assignment]
        self.embed = layers.embedding(config.classes, outputs)
        self.embed.fp32_parameters = ("weight",)  # type: ignore[assignment]

    def forward(self, pictures: Tensor, classes: Tensor, *, differentiable_twice: bool = False) -> Tensor:
        """Judge pictures.

        Args:
            pictures: [B, C, R, R] in [-1, 1], C = `channels` of the config, any floating dtype.
            classes: class numbers [B].
            differentiable_twice: for a penalty on a gradient; costs more memory where there is attention.

        Returns:
            Outputs [B, 1], fp32; larger is more real.
        """
        h = self.input_conv(pictures.to(next(self.blocks.parameters()).dtype))
        for stage in self.blocks:
            for block in cast(nn.ModuleList, stage):
                h = block(h, differentiable_twice) if isinstance(block, SelfAttention) else block(h)
        weight, bias = cast(Tensor, self.linear.weight), cast(Tensor, self.linear.bias)
        # A sum over all positions leaves the range of half precision; the head is small, so it runs in fp32.
        features = torch.sum(F.relu(h), dim=(2, 3), dtype=weight.dtype)  # [B, C]
        # The plain output and the projection on the class are one product: features·(weight + embedding) + bias.
        directions = torch.add(self.embed(classes), weight)[:, :, None]  # [B, C, 1]
        return torch.baddbmm(bias.view(1, 1, 1), features[:, None], directions).flatten(1)  # [B, 1]
