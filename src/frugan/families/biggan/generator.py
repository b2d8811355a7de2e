"""The generator: a latent and a class to a picture."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.families.biggan.config import BOTTOM, GENERATOR, BigGANNetworks
from frugan.families.biggan.layers import DeepGeneratorBlock, GeneratorBlock, Layers
from frugan.nn.batch_norm import BatchNorm
from frugan.nn.initialise import Embedding

DEEP_BLOCKS = 2
"""Blocks per stage of BigGAN-deep's generator; the release's tables fit no other number."""


def latent_size(config: BigGANNetworks) -> int:
    """Length of z that the generator takes: the config's, rounded down to whole chunks where z is split."""
    if config.architecture == "biggan-deep" or not config.hierarchical_latent:
        return config.latent_size
    slots = len(GENERATOR[config.resolution]) + 1
    if config.latent_size < slots:
        raise ValueError(f"latent_size {config.latent_size}: {config.resolution} pixels split it in {slots} chunks")
    return config.latent_size // slots * slots


class Generator(nn.Module):
    """BigGAN's generator; `forward(z, embed(classes))`, so that interpolation can act on embeddings."""

    def __init__(self, config: BigGANNetworks) -> None:
        super().__init__()
        layers = Layers(config)
        stages = GENERATOR[config.resolution]
        self.deep = config.architecture == "biggan-deep"
        self.classes = config.classes
        self.latent_size = latent_size(config)
        self.hierarchical = config.hierarchical_latent and not self.deep
        self.chunk = self.latent_size // (len(stages) + 1) if self.hierarchical else self.latent_size
        embedding = config.shared_embedding
        if embedding is not None:
            self.shared: nn.Module = Embedding(config.classes, embedding)
        else:
            self.shared = nn.Identity()
        first = self.chunk + (embedding or 0) if self.deep else self.chunk
        condition = self._condition_size(embedding)
        channels = config.generator_channels
        self.bottom = stages[0][0] * channels
        self.linear = layers.linear(first, self.bottom * BOTTOM**2)
        self.blocks = nn.ModuleList()
        side = BOTTOM
        for a, b in stages:
            side *= 2
            inputs, outputs = a * channels, b * channels
            if self.deep:
                self.blocks.extend(
                    nn.ModuleList([DeepGeneratorBlock(layers, inputs, inputs, condition, up=False)])
                    for _ in range(DEEP_BLOCKS - 1)
                )
                stage = nn.ModuleList([DeepGeneratorBlock(layers, inputs, outputs, condition, up=True)])
            else:
                stage = nn.ModuleList([GeneratorBlock(layers, inputs, outputs, condition)])
            if side in config.generator_attention:
                stage.append(layers.attention(outputs))
            self.blocks.append(stage)
        last_norm = BatchNorm(outputs, config.output_norm_eps, biased=layers.biased)
        self.output_layer = nn.Sequential(last_norm, nn.ReLU(), layers.convolution(outputs, config.channels))

    def _condition_size(self, embedding: int | None) -> int | None:
        if embedding is None:
            return None
        return embedding + self.chunk if self.hierarchical or self.deep else embedding

    def embed(self, classes: Tensor) -> Tensor:
        """Class numbers [B] -> what `forward` takes as condition: [B, K], or [B] without a shared embedding."""
        return cast(Tensor, self.shared(classes))

    def mixable(self, classes: Tensor) -> Tensor:
        """Class numbers [B] -> conditions that may be mixed: embeddings [B, K], or else one-hot [B, classes]."""
        if isinstance(self.shared, nn.Identity):
            return F.one_hot(classes, self.classes).float()
        return self.embed(classes)

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        """Generate pictures.

        Args:
            z: latents [B, latent_size], any floating dtype.
            condition: `embed(classes)`, or a mixture of rows of `mixable(classes)`.

        Returns:
            Pictures [B, C, R, R] in [-1, 1], fp32; C = `channels` of the config.
        """
        z = z.to(cast(Tensor, self.linear.weight).dtype)
        if condition.is_floating_point():
            condition = condition.to(z.dtype)
        if self.deep:
            z = torch.cat([condition, z], dim=1)
            h, conditions = self.linear(z), [z] * len(self.blocks)
        elif self.hierarchical:
            h = self.linear(z[:, : self.chunk])
            chunks = z[:, self.chunk :].unflatten(1, (len(self.blocks), self.chunk)).transpose(0, 1)
            repeated = condition.expand(len(self.blocks), -1, -1)
            conditions = list(torch.cat([repeated, chunks], dim=2).unbind())  # [B, K + chunk] each
        else:
            h, conditions = self.linear(z), [condition] * len(self.blocks)
        h = h.view(-1, self.bottom, BOTTOM, BOTTOM)  # [B, C, 4, 4]
        for stage, stage_condition in zip(self.blocks, conditions, strict=True):
            block, *attention = cast(nn.ModuleList, stage)
            h = block(h, stage_condition)
            for layer in attention:
                h = layer(h)
        return torch.tanh(self.output_layer(h).float())
