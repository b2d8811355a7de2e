"""Networks of BigGAN, SAGAN, SNGAN and BigGAN-deep: layers, residual blocks, the generator and the discriminator.

Source: Brock et al. 2018 (arXiv 1809.11096), appendix B; the order of operations and the parameter names are those of
the release.
"""

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.layers import UsesOps
from frugan.contract.resampling import mean_pool2d
from frugan.families.biggan.config import BOTTOM, GENERATOR, BigGANNetworks, discriminator_stages, stage_resolutions
from frugan.nn.attention import SelfAttention
from frugan.nn.batch_norm import BatchNorm, ConditionalBatchNorm, gains_and_biases
from frugan.nn.initialise import Embedding
from frugan.nn.linear_maps import Conv2d, folds_means, plus_doubled, pooled_conv2d, sums_weights, upsampled_conv2d
from frugan.nn.spectral_norm import SNConv2d, SNEmbedding, SNLinear, SpectralNorm

# Layers with the settings of a network.


class ClassTable(Embedding):
    """Table with a row of values for each class, of which rows can be mixed for interpolation."""

    def forward(self, classes: Tensor) -> Tensor:
        """Class numbers [B], or shares of the classes [B, classes] -> [B, features]."""
        if classes.is_floating_point():
            return classes.to(self.weight.dtype) @ self.weight
        return F.embedding(classes, self.weight)


@dataclass(frozen=True)
class Layers:
    """Makes the layers of a network, all with the settings of its config for batch norm and spectral norm."""

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
        if not self.config.spectral_norm:
            return Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=bias)
        return SNConv2d(inputs, outputs, kernel, padding=kernel // 2, bias=bias, **self._norm())  # type: ignore[arg-type]

    def linear(self, inputs: int, outputs: int, *, bias: bool = True) -> nn.Module:
        """Fully connected layer."""
        if not self.config.spectral_norm:
            return nn.Linear(inputs, outputs, bias=bias)
        return SNLinear(inputs, outputs, bias=bias, **self._norm())  # type: ignore[arg-type]

    def embedding(self, classes: int, features: int) -> nn.Module:
        """Embedding table, for the discriminator."""
        if not self.config.spectral_norm:
            return Embedding(classes, features)
        return SNEmbedding(classes, features, **self._norm())  # type: ignore[arg-type]

    def attention(self, channels: int) -> nn.Module:
        """Self-attention, with convolutions of the network's settings."""
        return SelfAttention(channels, lambda a, b: self.convolution(a, b, 1, bias=False))

    def conditional_norm(self, channels: int, condition_size: int | None) -> ConditionalBatchNorm:
        """Class-conditional batch norm; with `condition_size` None it has tables by class, without spectral norm."""
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
        h = self.bn1.modulate(x, *first, relu=True)
        h = upsampled_conv2d(h, cast(Tensor, self.conv1.weight), cast(Tensor, self.conv1.bias))  # [B, out, 2H, 2W]
        h = self.conv2(self.bn2.modulate(h, *second, relu=True))
        # A 1x1 convolution and nearest upsampling commute exactly; this order costs a quarter.
        return plus_doubled(h, self.conv_sc(x))


class DiscriminatorBlock(UsesOps):
    """Halves the resolution if `downsample`. The first block takes pictures: it has no leading ReLU and pools first."""

    asks = ("relu_and_means", "relu_and_itself", "means_plus")

    def __init__(self, layers: Layers, inputs: int, outputs: int, *, wide: bool, first: bool, downsample: bool) -> None:
        super().__init__()
        hidden = outputs if wide else inputs
        self.first, self.downsample = first, downsample
        self.conv1 = layers.convolution(inputs, hidden)
        self.conv2 = layers.convolution(hidden, outputs)
        self.conv_sc = layers.convolution(inputs, outputs, 1) if inputs != outputs or downsample else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, H/2, W/2], or [B, out, H, W] without downsampling."""
        # Activations are freed as early as possible: the order decides how much memory a card holds in reserve.
        if not self.downsample:
            activated, x = (x, x) if self.first else self.ops.relu_and_itself(x)
            h = self.conv1(activated)
            del activated
            h = F.relu(h)
            return torch.add(self.conv2(h), self.conv_sc(x))
        # Average pooling and a 1x1 convolution commute too: skips pool first here, where the release pools last in all
        # blocks but the first.
        activated, halved, kept = (x, partial(mean_pool2d, x), None) if self.first else self.ops.relu_and_means(x)
        h = self.conv1(activated)
        del activated
        h = F.relu(h)
        second = cast(Conv2d, self.conv2)
        if folds_means(h.shape[2] * h.shape[3], second.weight):
            h = pooled_conv2d(h, second.weight, second.bias, penalised=second.penalised)
            x = halved()
            del halved
            return torch.add(h, self.conv_sc(x))
        h = second(h)
        x = halved()
        del halved
        return self.ops.means_plus(h, partial(self.conv_sc, x), x if kept is None else kept)


# Residual bottleneck blocks of BigGAN-deep.
#
# Source: Brock et al. 2018 (arXiv 1809.11096), appendix B, figure 16.


class DeepGeneratorBlock(nn.Module):
    """Bottleneck of a quarter of the input's channels; the skip drops surplus channels, and has no convolution."""

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
        h = self.conv1(self.bn1.modulate(x, *gains[0], relu=True))  # [B, hidden, H, W]
        h = self.bn2.modulate(h, *gains[1], relu=True)
        skip = x[:, : self.outputs]
        if self.up:
            h, skip = upsample(h), upsample(skip)
        h = self.conv2(h)
        h = self.conv3(self.bn3.modulate(h, *gains[2], relu=True))
        h = self.conv4(self.bn4.modulate(h, *gains[3], relu=True))
        return torch.add(h, skip)


class DeepDiscriminatorBlock(UsesOps):
    """Bottleneck of a quarter of the output's channels; channels that the skip lacks come from a 1x1 convolution."""

    asks = ("relu_and_means", "relu_and_itself", "relu_means")

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
        if not self.downsample:
            activated, x = self.ops.relu_and_itself(x)
            h = self.conv1(activated)
            del activated
            h = self.conv2(F.relu(h))
            h = F.relu(self.conv3(F.relu(h)))
        else:  # freeing early matters, see `DiscriminatorBlock`: here 0.12 of 6 GiB
            activated, halved, _ = self.ops.relu_and_means(x)
            h = self.conv1(activated)
            del activated
            h = self.conv2(F.relu(h))
            means = self.ops.relu_means(self.conv3(F.relu(h)))
            del h
            h, x = means(), halved()
            del means, halved
        skip = x if self.conv_sc is None else torch.cat([x, self.conv_sc(x)], 1)
        return torch.add(self.conv4(h), skip)


# The generator, from a latent and a class to a picture.

DEEP_BLOCKS = 2
"""Blocks in each stage of BigGAN-deep's generator; the release's tables fit no other number."""


def latent_size(config: BigGANNetworks) -> int:
    """Length of z that the generator takes: that of the config, rounded down to whole chunks where z is split."""
    if config.architecture == "biggan-deep" or not config.hierarchical_latent:
        return config.latent_size
    slots = len(GENERATOR[config.resolution]) + 1
    if config.latent_size < slots:
        raise ValueError(f"latent_size {config.latent_size}: {config.resolution} pixels split it in {slots} chunks")
    return config.latent_size // slots * slots


class Generator(nn.Module):
    """BigGAN's generator. It is called as `generator(z, embed(classes))`, so that embeddings can be interpolated."""

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
        last_norm = BatchNorm(outputs, config.output_norm_eps, biased=layers.biased, relu=True)
        # in place of the release's ReLU stands the identity: the norm has a ReLU of its own
        self.output_layer = nn.Sequential(last_norm, nn.Identity(), layers.convolution(outputs, config.channels))

    def _condition_size(self, embedding: int | None) -> int | None:
        if embedding is None:
            return None
        return embedding + self.chunk if self.hierarchical or self.deep else embedding

    def embed(self, classes: Tensor) -> Tensor:
        """Class numbers [B] -> conditions for `forward`: [B, K], or [B] without a shared embedding."""
        return cast(Tensor, self.shared(classes))

    def mixable(self, classes: Tensor) -> Tensor:
        """Class numbers [B] -> conditions that can be mixed: embeddings [B, K], or else one-hot [B, classes]."""
        if isinstance(self.shared, nn.Identity):
            return F.one_hot(classes, self.classes).float()
        return self.embed(classes)

    def mixed(self, shares: Tensor) -> Tensor:
        """Shares of the classes [B, classes] -> conditions: mixtures of rows of `mixable`."""
        if isinstance(self.shared, nn.Identity):
            return shares
        table = cast(Tensor, self.shared.weight)
        return shares.to(table.dtype) @ table

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        """Generate pictures.

        Args:
            z: latents [B, latent_size], any floating dtype.
            condition: `embed(classes)`, or a mixture of rows of `mixable(classes)`.

        Returns:
            Pictures [B, C, R, R] in [-1, 1], fp32; C = `channels` of the config.
        """
        h, conditions = self._first_map(z, condition)
        for stage, stage_condition in zip(self.blocks, conditions, strict=True):
            h = _through(cast(nn.ModuleList, stage), h, stage_condition)
        return torch.tanh(self.output_layer(h).float())

    def _first_map(self, z: Tensor, condition: Tensor) -> tuple[Tensor, list[Tensor]]:
        """First feature map [B, C, 4, 4], and the condition of each stage."""
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
        return h.view(-1, self.bottom, BOTTOM, BOTTOM), conditions

    def first_features(self, z: Tensor, condition: Tensor) -> Tensor:
        """Features after the first stage: latents [B, latent_size] -> [B, C, H, W]."""
        h, conditions = self._first_map(z, condition)
        return _through(cast(nn.ModuleList, self.blocks[0]), h, conditions[0])

    def latent_maps(self) -> Tensor:
        """Weights of all linear maps that take latents or a chunk of them, stacked [outputs, latent_size].

        They are the first layer, and gains and biases of the conditional normalisations where these see latents.
        """
        first = cast(Tensor, self.linear.weight)
        maps = [self._of_chunk(first[:, -self.chunk :], 0)]
        if self.deep or self.hierarchical:
            for number, stage in enumerate(self.blocks):
                norms = [norm for norm in stage.modules() if isinstance(norm, ConditionalBatchNorm)]
                layers = [layer for norm in norms for layer in (norm.gain, norm.bias)]
                weights = [cast(Tensor, layer.weight) for layer in layers if not isinstance(layer, ClassTable)]
                place = number + 1 if self.hierarchical else 0
                maps += [self._of_chunk(weight[:, -self.chunk :], place) for weight in weights]
        return torch.cat(maps)

    def _of_chunk(self, weight: Tensor, place: int) -> Tensor:
        """Extend a map of one chunk [O, chunk] by zeros to whole latents [O, latent_size]."""
        after = self.latent_size - self.chunk * (place + 1)
        return F.pad(weight.float(), (self.chunk * place, after))


def _through(stage: nn.ModuleList, h: Tensor, condition: Tensor) -> Tensor:
    block, *attention = stage
    h = block(h, condition)
    for layer in attention:
        h = layer(h)
    return h


# The discriminator, from a picture and its class to a number.


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
            differentiable_twice: needed by a penalty on a gradient; with attention it costs memory.

        Returns:
            Outputs [B, 1], fp32; larger is more real.
        """
        first = next(self.input_conv.parameters(), None)
        first = next(self.blocks.parameters()) if first is None else first
        h = self.input_conv(pictures.to(first.dtype))
        for stage in self.blocks:
            for block in cast(nn.ModuleList, stage):
                h = block(h, differentiable_twice) if isinstance(block, SelfAttention) else block(h)
        weight, bias = cast(Tensor, self.linear.weight), cast(Tensor, self.linear.bias)
        # A sum over all positions leaves the range of half precision; the head is small, so it runs in fp32.
        features = torch.sum(F.relu(h), dim=(2, 3), dtype=weight.dtype)  # [B, C]
        # The plain output and the projection on the class are one product: features·(weight + embedding) + bias.
        directions = torch.add(self.embed(classes), weight)[:, :, None]  # [B, C, 1]
        return torch.baddbmm(bias.view(1, 1, 1), features[:, None], directions).flatten(1)  # [B, 1]


# What the release's order of the same arithmetic takes more.


def spared_macs(network: nn.Module, side: int) -> int:
    """Return how many multiply-accumulates of one picture are spared, those of preparing the weights included.

    Args:
        network: generator or discriminator.
        side: of the map that its first block is given, in pixels.
    """
    spared = sum(
        (2 * module.iterations + 1) * module.singular_values * module.weight.numel()
        for module in network.modules()
        if isinstance(module, SpectralNorm)
    )
    for block in (block for stage in cast(nn.ModuleList, network.blocks) for block in cast(nn.ModuleList, stage)):
        if isinstance(block, SelfAttention):  # queries and keys are padded to the width of the values
            channels = len(cast(Tensor, block.o.weight))
            spared -= side**2 * (side**2 // 4) * (channels // 2 - channels // 8)
            continue
        if isinstance(block, GeneratorBlock) or (isinstance(block, DeepGeneratorBlock) and block.up):
            side *= 2
        spared += _spared_by(block, side)
        if getattr(block, "downsample", False):
            side //= 2
    return spared


def _spared_by(block: nn.Module, side: int) -> int:
    """Return what a block spares on its larger map; a deep one computes as the release's."""
    if isinstance(block, GeneratorBlock):
        weight, skip_moves = cast(Tensor, block.conv1.weight), True
        folded = sums_weights(side**2 // 4, weight)
    elif isinstance(block, DiscriminatorBlock) and block.downsample:
        weight, skip_moves = cast(Tensor, block.conv2.weight), not block.first
        folded = folds_means(side**2, weight)
    else:
        return 0
    skip = 3 * cast(Tensor, block.conv_sc.weight).numel() // 4 if skip_moves else 0
    return side**2 * (skip + (5 * weight.numel() // 9 if folded else 0))
