"""StyleGAN2's networks: the generator, by its synthesis of pictures from styles, and the discriminator."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal, Self, cast

import torch
from torch import Tensor, nn

from frugan.contract.elementwise import GAIN
from frugan.contract.family import Noise as NoiseKind
from frugan.contract.layers import Divisor, Scaled, ScaledWeight, Scaling, SumsSquares, UsesOps, largest_in
from frugan.contract.ops import StyleLayer
from frugan.families.stylegan2.config import Architecture, StyledNetworks, StyleGAN2Networks
from frugan.families.stylegan2.mapping import MappingNetwork, StyledGenerator
from frugan.nn.batch_norm import MinibatchStd
from frugan.nn.equalised import EqualisedConv2d, EqualisedLinear
from frugan.nn.fir import KeptKernels, downsample2d, fir_filter, upsample2d
from frugan.nn.modulated import EPS, demodulated_conv2d, modulated_conv2d, scaled_conv2d
from frugan.torch_internals import foreach_mul_

# The synthesis network, from styles and noise to a picture, block by block from 4 pixels up.

Noise = Tensor | Literal["const", "none"]
"""Noise pictures of each sample, the layers' constant ones for all samples, or none."""


class LargestScaling(Scaling):
    """Divisors that bring the largest weight of each output channel to 1/√(I·k·k); for noise and bias, the gain.

    They are held constant, as demodulation cancels their part of the gradient.
    """

    @classmethod
    def find(cls, weights: Sequence[ScaledWeight]) -> Self:
        """Find the largest values weight by weight, and the divisors of all channels together."""
        found: list[Divisor] = [1 / cast(SynthesisLayer, weight.layer).gain for weight in weights]
        convolved = {i: weight.master for i, weight in enumerate(weights) if weight.name == "weight"}
        if convolved:
            largest = [largest_in(master) for master in convolved.values()]  # [O] each
            foreach_mul_(largest, [math.sqrt(master[0].numel()) for master in convolved.values()])
            divisors = torch.cat(largest).clamp_min(1e-30).split([len(master) for master in convolved.values()])
            for i, divisor in zip(convolved, divisors, strict=True):
                found[i] = divisor.view(-1, 1, 1, 1)
        return cls(found)


class SynthesisLayer(Scaled, SumsSquares, UsesOps):
    """A 3x3 modulated convolution, noise, bias and leaky ReLU.

    Demodulation undoes any scale of a weight. So the working weight is scaled to a largest value of 1/√(I·k·k) in each
    output channel: in fp16 no sum can then overflow, whatever the master has grown to. The activation's gain is part of
    demodulation's factors, of the noise and of the bias.

    Args:
        inputs: input channels.
        outputs: output channels.
        style: size of w.
        side: side of the output.
        up: whether it doubles the side.
        gain: multiplies the output, and the clamp.
        clamp: largest absolute value of the output at a gain of 1.
        half: it may run in half precision.
    """

    reparametrised = ("weight", "noise_strength", "bias")
    scaling = LargestScaling
    asks = ("styled_leaky_relu", "leaky_relu", "product_gradients", "fir")
    noise_const: Tensor
    resample_filter: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        style: int,
        side: int,
        *,
        up: bool,
        gain: float,
        clamp: float | None,
        half: bool,
    ) -> None:
        super().__init__()
        self.up, self.gain = up, gain * GAIN
        self.clamp = None if clamp is None else clamp * gain
        self.squares_factor = self.gain**-2
        self.fp32_parameters = ("noise_strength",) if half else ("noise_strength", "weight", "bias")
        self.affine = EqualisedLinear(style, inputs, first_bias=1)
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        self.noise_strength = nn.Parameter(torch.zeros(()))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.register_buffer("resample_filter", fir_filter())
        self.kernels = KeptKernels()
        self.register_buffer("noise_const", torch.randn(side, side))
        nn.init.normal_(self.weight)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw normal weights and noise; set the bias and the noise's strength to 0."""
        nn.init.normal_(self.weight, generator=generator)
        nn.init.normal_(self.noise_const, generator=generator)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.noise_strength)

    def forward(self, x: Tensor, style: Tensor, noise: Noise, norms: Tensor | None = None) -> Tensor:
        """Convolve with styled weights, add noise and bias, and activate.

        Args:
            x: [N, I, H, W].
            style: output of the affine layer [N, I].
            noise: a tensor of it is [N, 1, side, side].
            norms: demodulation's factors [N, O]; None: they are computed here.

        Returns:
            [N, O, side, side].
        """
        x = x.to(self.weight.dtype)
        drawn = None if noise == "none" else self.noise_const if noise == "const" else noise
        up = self.resample_filter if self.up else None
        if norms is None:
            y, norms = demodulated_conv2d(
                x,
                self.weight,
                style,
                squares=self.summed_squares(),
                gain=self.gain,
                upsample_by=up,
                kept=self.kernels,
                ops=self.ops,
            )
        else:
            y = scaled_conv2d(x, self.weight, style, upsample_by=up, kept=self.kernels, ops=self.ops)
        return self.ops.styled_leaky_relu(y, norms, drawn, self.noise_strength, self.bias, self.clamp)


class ToRGB(UsesOps):
    """A 1x1 modulated convolution to the colours of a picture.

    Args:
        inputs: input channels.
        colours: channels of the picture.
        style: size of w.
        clamp: largest absolute value of the output.
        half: it may run in half precision.
    """

    asks = ("product_gradients", "add_bias")

    def __init__(self, inputs: int, colours: int, style: int, *, clamp: float | None, half: bool) -> None:
        super().__init__()
        self.clamp = clamp
        self.fp32_parameters = () if half else ("weight", "bias")
        self.affine = EqualisedLinear(style, inputs, gain=1 / math.sqrt(inputs), first_bias=1)
        self.weight = nn.Parameter(torch.randn(colours, inputs, 1, 1))
        self.bias = nn.Parameter(torch.zeros(colours))

    def initialise(self, generator: torch.Generator) -> None:
        """Draw normal weights, and set the bias to 0."""
        nn.init.normal_(self.weight, generator=generator)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """[N, I, H, W], output of the affine layer [N, I] -> [N, colours, H, W], in the dtype of the style."""
        x = modulated_conv2d(x.to(self.weight.dtype), self.weight, style, demodulate=False, ops=self.ops)
        return self.ops.add_bias(x, self.bias, self.clamp).to(style.dtype)


class SynthesisBlock(nn.Module):
    """Block of the generator at one side: a constant or a doubled map, convolutions, and colours.

    Args:
        config: settings of the networks.
        side: 4 for the first block.
    """

    fp32_parameters = ("const",)
    resample_filter: Tensor

    def __init__(self, config: StyleGAN2Networks, side: int) -> None:
        super().__init__()
        self.architecture: Architecture = config.generator_architecture
        self.first = side == 4
        outputs, half, clamp = config.channels_at(side), config.half_at(side), config.convolution_clamp
        self.register_buffer("resample_filter", fir_filter())
        self.kernels = KeptKernels()
        # in the sum of a convolution and a shortcut, both are scaled so that it keeps the variance
        branch_gain = math.sqrt(0.5) if self.architecture == "resnet" and not self.first else 1.0

        def layer(inputs: int, *, up: bool, gain: float = 1.0) -> SynthesisLayer:
            return SynthesisLayer(inputs, outputs, config.style_size, side, up=up, gain=gain, clamp=clamp, half=half)

        if self.first:
            self.const = nn.Parameter(torch.randn(outputs, side, side))
        else:
            self.conv0 = layer(config.channels_at(side // 2), up=True)
            if self.architecture == "resnet":
                inputs = config.channels_at(side // 2)
                self.skip = EqualisedConv2d(
                    inputs, outputs, 1, resample="up", activate=False, gain=branch_gain, half=half
                )
        self.conv1 = layer(outputs, up=False, gain=branch_gain)
        self.coloured = side == config.resolution or self.architecture == "skip"
        if self.coloured:
            self.torgb = ToRGB(outputs, config.channels, config.style_size, clamp=clamp, half=half)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the constant of the first block; layers draw their own weights."""
        if self.first:
            nn.init.normal_(self.const, generator=generator)

    @property
    def convolutions(self) -> int:
        """Number of convolutions with styles and noise."""
        return 1 if self.first else 2

    @property
    def styled(self) -> list[SynthesisLayer | ToRGB]:
        """Layers with styles: the convolutions, and then the colours if the block has any."""
        layers = [self.conv1] if self.first else [self.conv0, self.conv1]
        return [*layers, *((self.torgb,) if self.coloured else ())]

    @property
    def affines(self) -> list[EqualisedLinear]:
        """Affine layers that map w to the styles of `styled`."""
        return [layer.affine for layer in self.styled]

    def forward(self, x: Tensor | None, picture: Tensor | None, *inputs: Noise) -> tuple[Tensor, Tensor | None]:
        """Run the block.

        Args:
            x: output of the block before [N, C, H/2, W/2]; None for the first block.
            picture: picture of the block before [N, colours, H/2, W/2], if there is one.
            inputs: outputs of `affines` [N, I] each; then demodulation's factors of each convolution [N, O], unless
                convolutions compute these themselves; then noise of each convolution. They are separate arguments, so
                that recompute sees all tensors that it keeps.

        Returns:
            x [N, C', H, W], and the picture so far [N, colours, H, W], fp32.
        """
        noises = inputs[-self.convolutions :]
        styles = cast(tuple[Tensor, ...], inputs[: len(self.styled)])
        norms = cast(tuple[Tensor, ...], inputs[len(self.styled) : -self.convolutions]) or (None, None)
        if x is None:
            x = self.conv1(self.const[None].expand(len(styles[0]), -1, -1, -1), styles[0], noises[0], norms[0])
        else:
            h = self.conv1(self.conv0(x, styles[0], noises[0], norms[0]), styles[1], noises[1], norms[1])
            x = self.skip(x) + h if self.architecture == "resnet" else h
        if picture is not None:
            picture = upsample2d(picture, self.resample_filter, self.kernels, self.conv1.ops)
        if self.coloured:
            colours = self.torgb(x, styles[-1])
            picture = colours if picture is None else picture + colours
        return cast(Tensor, x), picture


class Synthesis(UsesOps):
    """The synthesis network: all blocks."""

    asks = ("styles",)

    def __init__(self, config: StyleGAN2Networks) -> None:
        super().__init__()
        self.sides = config.sides
        for side in self.sides:
            self.add_module(f"b{side}", SynthesisBlock(config, side))

    @property
    def blocks(self) -> tuple[SynthesisBlock, ...]:
        """Blocks from the lowest side up."""
        return tuple(cast(SynthesisBlock, self.get_submodule(f"b{side}")) for side in self.sides)

    def forward(self, ws: Tensor, noise: Noise = "const") -> Tensor:
        """Styles [N, styles, style] and noise (normal numbers [N, `noise_size`]) -> pictures [N, colours, R, R], fp32.

        A block's colours share their style with the next block's first convolution.
        """
        x: Tensor | None = None
        picture: Tensor | None = None
        at, noises, (styles, norms) = 0, self._split(noise), self._styles(ws)
        for block in self.blocks:
            here = noises[at : at + block.convolutions]
            at += block.convolutions
            x, picture = block(x, picture, *islice(styles, len(block.styled)), *islice(norms, len(here)), *here)
        assert picture is not None
        return picture

    def _styles(self, ws: Tensor) -> tuple[Iterator[Tensor], Iterator[Tensor]]:
        """Apply the `affines` of all blocks to styles [N, styles, style].

        Returns:
            Their outputs [N, I] in order, and demodulation's factors [N, O] of all convolutions, or of none where
            convolutions compute these themselves.
        """
        layers = [layer for block in self.blocks for layer in block.styled]
        gains = {layer.gain for layer in layers if isinstance(layer, SynthesisLayer)}
        eps = EPS / gains.pop() ** 2 if len(gains) == 1 else None
        styled = [
            StyleLayer(
                layer.affine.weight,
                layer.affine.bias,
                place,
                layer.weight.dtype,
                layer.summed_squares if isinstance(layer, SynthesisLayer) else None,
            )
            for layer, place in zip(layers, self._places, strict=True)
        ]
        styles, norms = self.ops.styles(ws, styled, eps)
        return iter(styles), iter(norms)

    @property
    def _places(self) -> list[int]:
        """Number of the style that each affine layer takes, for the `affines` of all blocks in order."""
        places, at = list[int](), 0
        for block in self.blocks:
            places += range(at, at + len(block.affines))
            at += block.convolutions
        return places

    @property
    def affines_by_style(self) -> dict[int, list[EqualisedLinear]]:
        """Number of a style -> the affine layers that take it."""
        taking: dict[int, list[EqualisedLinear]] = {}
        affines = [affine for block in self.blocks for affine in block.affines]
        for place, affine in zip(self._places, affines, strict=True):
            taking.setdefault(place, []).append(affine)
        return taking

    def _split(self, noise: Noise) -> list[Noise]:
        """Noise of each convolution in order, [N, 1, side, side] each."""
        sides = layer_sides(self.sides)
        if isinstance(noise, str):
            return [noise for _ in sides]
        parts = noise.split([side * side for side in sides], 1)
        return [part.view(-1, 1, side, side) for part, side in zip(parts, sides, strict=True)]


def layer_sides(sides: tuple[int, ...]) -> list[int]:
    """Sides of all convolutions in order; the first block has one convolution, the others have two."""
    return [sides[0], *(side for side in sides[1:] for _ in range(2))]


def noise_size(sides: tuple[int, ...]) -> int:
    """Number of noise values for one picture."""
    return sum(side * side for side in layer_sides(sides))


class Generator(StyledGenerator):
    """StyleGAN2's generator: the mapping network and the synthesis network."""

    def __init__(self, config: StyleGAN2Networks) -> None:
        super().__init__(config)
        self.synthesis = Synthesis(config)

    @property
    def affines_by_style(self) -> Mapping[int, Sequence[EqualisedLinear]]:
        """Number of a style -> the affine layers that take it.

        The colours of a block share a style with the next block's first convolution.
        """
        return self.synthesis.affines_by_style

    def draw(self, ws: Tensor, noise: NoiseKind, random: torch.Generator | None) -> Tensor:
        """Draw pictures; see `StyledGenerator.draw`."""
        drawn: Noise = "const" if noise == "const" else "none"
        if noise == "random":
            # One by one: numbers that are drawn for many pictures at once would differ.
            size = noise_size(self.synthesis.sides)
            drawn = torch.stack([torch.randn(size, generator=random) for _ in range(len(ws))]).to(ws.device)
        return cast(Tensor, self.synthesis(ws, drawn))

    def forward(
        self,
        z: Tensor,
        classes: Tensor | None = None,
        *,
        psi: float = 1.0,
        cutoff: int | None = None,
        noise: Noise = "const",
    ) -> Tensor:
        """Generate pictures.

        Args:
            z: latents [N, latent_size].
            classes: class numbers [N], or shares of the classes [N, classes], if the networks know classes.
            psi: see `broadcast`.
            cutoff: see `broadcast`.
            noise: see `Synthesis.forward`.

        Returns:
            Pictures [N, colours, R, R], about in [-1, 1], fp32.
        """
        ws = self.broadcast(self.mapping(z, classes), psi, cutoff)
        return cast(Tensor, self.synthesis(ws, noise))


# The discriminator, from a picture and its class to a number.


class DiscriminatorBlock(nn.Module):
    """Block of the discriminator at one side: two convolutions, the second of which halves the side.

    Args:
        config: settings of the networks.
        side: side of the input.
    """

    resample_filter: Tensor

    def __init__(self, config: StyledNetworks, side: int) -> None:
        super().__init__()
        self.architecture: Architecture = config.discriminator_architecture
        inputs, outputs = config.channels_at(side), config.channels_at(side // 2)
        half, clamp = config.half_at(side), config.convolution_clamp
        self.register_buffer("resample_filter", fir_filter())
        self.kernels = KeptKernels()
        self.sees_picture = side == config.resolution or self.architecture == "skip"
        if self.sees_picture:
            self.fromrgb = EqualisedConv2d(config.channels, inputs, 1, clamp=clamp, half=half)
        self.conv0 = EqualisedConv2d(inputs, inputs, 3, clamp=clamp, half=half)
        gain = math.sqrt(0.5) if self.architecture == "resnet" else 1.0
        self.conv1 = EqualisedConv2d(inputs, outputs, 3, resample="down", gain=gain, clamp=clamp, half=half)
        if self.architecture == "resnet":
            self.skip = EqualisedConv2d(inputs, outputs, 1, resample="down", activate=False, gain=gain, half=half)

    def forward(self, x: Tensor | None, picture: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x [N, C, H, W] (None for the first block), and the picture if it is seen -> both at half the side."""
        if self.sees_picture:
            assert picture is not None
            seen = self.fromrgb(picture)
            x = seen if x is None else x.to(seen.dtype) + seen
            skips = self.architecture == "skip"
            picture = downsample2d(picture, self.resample_filter, self.kernels, self.conv0.ops) if skips else None
        h = self.conv1.after(self.conv0, cast(Tensor, x))
        x = self.skip(x) + h if self.architecture == "resnet" else h
        return cast(Tensor, x), picture


class Epilogue(nn.Module):
    """Last block of the discriminator, from 4x4 pixels to features, always in fp32.

    Args:
        config: settings of the networks.
        outputs: number of features.
    """

    def __init__(self, config: StyledNetworks, outputs: int) -> None:
        super().__init__()
        channels = config.channels_at(4)
        self.sees_picture = config.discriminator_architecture == "skip"
        if self.sees_picture:
            self.fromrgb = EqualisedConv2d(config.channels, channels, 1)
        maps = config.minibatch_std_channels
        self.mbstd = MinibatchStd(maps) if maps else nn.Identity()
        self.conv = EqualisedConv2d(channels + maps, channels, 3, clamp=config.convolution_clamp)
        self.fc = EqualisedLinear(channels * 4 * 4, channels, activate=True)
        self.out = EqualisedLinear(channels, outputs)

    def forward(self, x: Tensor, picture: Tensor | None) -> Tensor:
        """[N, C, 4, 4] -> [N, outputs]."""
        x = x.to(self.conv.weight.dtype)
        if self.sees_picture:
            x = x + self.fromrgb(picture)
        x = self.conv(self.mbstd(x))
        return cast(Tensor, self.out(self.fc(x.flatten(1))))


class Discriminator(nn.Module):
    """StyleGAN2's discriminator, with classes by projection (Miyato and Koyama 2018, arXiv 1802.05637).

    The first layers may be frozen (Mo et al. 2020, arXiv 2002.10964): training then leaves their weights alone.
    """

    def __init__(self, config: StyledNetworks) -> None:
        super().__init__()
        self.sides = config.sides[:0:-1]
        for side in self.sides:
            self.add_module(f"b{side}", DiscriminatorBlock(config, side))
        self.conditional = config.classes is not None
        features = config.channels_at(4) if self.conditional else 1
        if self.conditional:
            self.mapping = MappingNetwork(
                0, config.classes, features, config.class_layers, rate=config.mapping_rate, mean_decay=None
            )
        self.b4 = Epilogue(config, features)
        for side, name in config.discriminator_layers[: config.frozen_discriminator_layers]:
            self.get_submodule(f"b{side}.{name}").requires_grad_(False)

    def forward(self, pictures: Tensor, classes: Tensor | None = None) -> Tensor:
        """Judge pictures.

        Args:
            pictures: [N, colours, R, R] in [-1, 1], in whole groups of the minibatch standard deviation.
            classes: class numbers [N], or shares of the classes [N, classes], if the networks know classes.

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
