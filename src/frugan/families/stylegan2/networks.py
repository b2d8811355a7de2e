"""StyleGAN2's networks: the generator (mapping network, synthesis of pictures from styles) and the discriminator."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, Self, cast

import torch
from torch import Tensor, nn

from frugan.contract.elementwise import GAIN, second_moment_norm
from frugan.contract.layers import Divisor, Scaled, ScaledWeight, Scaling, Stateful, SumsSquares, UsesOps
from frugan.contract.ops import StyleLayer
from frugan.families.stylegan2.config import Architecture, StyleGAN2Networks
from frugan.nn.batch_norm import MinibatchStd
from frugan.nn.equalised import EqualisedConv2d, EqualisedLinear
from frugan.nn.fir import KeptKernels, downsample2d, fir_filter, upsample2d
from frugan.nn.modulated import EPS, demodulated_conv2d, modulated_conv2d, scaled_conv2d
from frugan.torch_internals import foreach_mul_

# The mapping network: a latent and a class to a style.

MEAN_DECAY = 0.995


class Mapping(Stateful):
    """Fully connected layers from normalised latents and embedded classes to a style, in fp32.

    Args:
        latent: size of z; 0: of classes alone, as the discriminator has it.
        classes: number of classes; None: none are given.
        style: size of w, of the embedding, and of every layer.
        layers: how many.
        rate: how fast it learns, of other layers' rate.
        tracked: whether the mean of w is kept, as buffer `w_avg`.

    Source: Karras et al. 2018 (arXiv 1812.04948), section 2; classes as Karras et al. 2020 (arXiv 2006.06676).
    """

    w_avg: Tensor

    def __init__(
        self, latent: int, classes: int | None, style: int, layers: int, *, rate: float, tracked: bool
    ) -> None:
        super().__init__()
        self.classes, self.layers, self.tracked = classes, layers, tracked
        if classes is not None:
            self.embed = EqualisedLinear(classes, style)
        sizes = [latent + (style if classes is not None else 0), *(style for _ in range(layers))]
        for i in range(layers):
            self.add_module(f"fc{i}", EqualisedLinear(sizes[i], sizes[i + 1], activate=True, rate=rate))
        if tracked:
            self.register_buffer("w_avg", torch.zeros(style))

    def committed(self, buffer: str, observed: Tensor) -> Tensor:
        """Move the mean style by 0.005 towards what was seen."""
        return torch.lerp(observed, getattr(self, buffer), MEAN_DECAY)

    def forward(self, z: Tensor | None, classes: Tensor | None, *, observed: int | None = None) -> Tensor:
        """Map.

        Args:
            z: latents [N, latent]; None where there are none.
            classes: class numbers [N], or shares of the classes [N, classes]; None where there are none.
            observed: in training, how many styles, from the first on, move the mean; None: all.

        Returns:
            w [N, style], fp32.
        """
        given: list[Tensor] = []
        dtype = next(self.parameters()).dtype
        if z is not None:
            given.append(second_moment_norm(z.to(dtype)))
        if self.classes is not None:
            if classes is None:
                raise ValueError(f"no classes: these networks tell {self.classes} apart; give a number for each sample")
            if not classes.is_floating_point():
                # One-hot by comparison: torch's own looks at the values, for which a card would have to be waited for.
                classes = classes[:, None] == torch.arange(self.classes, device=classes.device)  # [N, classes]
            given.append(second_moment_norm(self.embed(classes.to(dtype))))
        w = torch.cat(given, 1)
        for i in range(self.layers):
            w = self.get_submodule(f"fc{i}")(w)
        if self.tracked and self.training:
            self.observe("w_avg", w[:observed].mean(0), len(w[:observed]))
        return w

    def truncated(self, w: Tensor, psi: float | Tensor) -> Tensor:
        """Move styles [N, style] towards the mean: psi 1 as they are, 0 the mean, below 0 to its other side."""
        return torch.lerp(self.w_avg.to(w.dtype), w, psi)


# The synthesis network: styles and noise to a picture, block by block from 4 pixels up.

Noise = Tensor | Literal["const", "none"]
"""Pictures of noise, the same ones for every sample (the layers' own), or none at all."""


class LargestScaling(Scaling):
    """Divisors that bring the largest value of each output channel to 1/√(I·k·k); and the gain of what is added.

    They are held constant: what they would add to the gradient, demodulation cancels.
    """

    @classmethod
    def find(cls, weights: Sequence[ScaledWeight]) -> Self:
        """Look at all of them, and then reckon for all channels together."""
        of_each: list[Divisor] = [1 / cast(SynthesisLayer, weight.layer).gain for weight in weights]
        convolved = {i: weight.master for i, weight in enumerate(weights) if weight.name == "weight"}
        if convolved:
            largest = [
                torch.linalg.vector_norm(master, math.inf, (1, 2, 3)) for master in convolved.values()
            ]  # [O] each
            foreach_mul_(largest, [math.sqrt(master[0].numel()) for master in convolved.values()])
            divisors = torch.cat(largest).clamp_min(1e-30).split([len(master) for master in convolved.values()])
            for i, divisor in zip(convolved, divisors, strict=True):
                of_each[i] = divisor.view(-1, 1, 1, 1)
        return cls(of_each)


class SynthesisLayer(Scaled, SumsSquares, UsesOps):
    """A 3x3 modulated convolution, noise, bias and leaky ReLU.

    Demodulation takes any scale of a weight back. So the working weight is scaled to a largest value of 1/√(I·k·k) for
    each output channel: in fp16 no sum can then leave its range, whatever the master has grown to. The activation's
    gain is in what demodulation multiplies by, in the noise and in the bias.

    Args:
        inputs, outputs: channels.
        style: size of w.
        side: of what it gives.
        up: whether it doubles the side.
        gain: multiplies what it gives, and the clamp.
        clamp: largest absolute value that it gives at a gain of 1.
        half: may run in half precision.
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
        """Normal weights and noise; nothing in the bias, no noise at first."""
        nn.init.normal_(self.weight, generator=generator)
        nn.init.normal_(self.noise_const, generator=generator)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.noise_strength)

    def forward(self, x: Tensor, style: Tensor, noise: Noise, norms: Tensor | None = None) -> Tensor:
        """Run the layer.

        Args:
            x: [N, I, H, W].
            style: of its affine layer [N, I].
            noise: [N, 1, side, side].
            norms: what demodulation multiplies by [N, O], if that was found for all layers together.

        Returns:
            [N, O, side, side].
        """
        x = x.to(self.weight.dtype)
        drawn = None if noise == "none" else self.noise_const if noise == "const" else noise
        up = self.resample_filter if self.up else None
        if norms is None:
            made, norms = demodulated_conv2d(
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
            made = scaled_conv2d(x, self.weight, style, upsample_by=up, kept=self.kernels, ops=self.ops)
        return self.ops.styled_leaky_relu(made, norms, drawn, self.noise_strength, self.bias, self.clamp)


class ToRGB(UsesOps):
    """A 1x1 modulated convolution to the colours of a picture.

    Args:
        inputs: channels.
        colours: channels of the picture.
        style: size of w.
        clamp: largest absolute value that it gives.
        half: may run in half precision.
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
        """Normal weights, no bias."""
        nn.init.normal_(self.weight, generator=generator)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """[N, I, H, W], its affine layer's style [N, I] -> [N, colours, H, W], in the dtype of the style."""
        x = modulated_conv2d(x.to(self.weight.dtype), self.weight, style, demodulate=False, ops=self.ops)
        return self.ops.add_bias(x, self.bias, self.clamp).to(style.dtype)


class SynthesisBlock(nn.Module):
    """One side of the pyramid: a constant or a doubled side, convolutions, and colours.

    Args:
        config: of the networks.
        side: 4 for the first.
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
        of_both = math.sqrt(0.5) if self.architecture == "resnet" and not self.first else 1.0

        def layer(inputs: int, *, up: bool, gain: float = 1.0) -> SynthesisLayer:
            return SynthesisLayer(inputs, outputs, config.style_size, side, up=up, gain=gain, clamp=clamp, half=half)

        if self.first:
            self.const = nn.Parameter(torch.randn(outputs, side, side))
        else:
            self.conv0 = layer(config.channels_at(side // 2), up=True)
            if self.architecture == "resnet":
                self.skip = EqualisedConv2d(
                    config.channels_at(side // 2), outputs, 1, resample="up", activate=False, gain=of_both, half=half
                )
        self.conv1 = layer(outputs, up=False, gain=of_both)
        self.coloured = side == config.resolution or self.architecture == "skip"
        if self.coloured:
            self.torgb = ToRGB(outputs, config.channels, config.style_size, clamp=clamp, half=half)

    def initialise(self, generator: torch.Generator) -> None:
        """A normal constant; its layers have starts of their own."""
        if self.first:
            nn.init.normal_(self.const, generator=generator)

    @property
    def convolutions(self) -> int:
        """How many there are."""
        return 1 if self.first else 2

    @property
    def styled(self) -> list[SynthesisLayer | ToRGB]:
        """Layers with styles: each convolution, and then the colours if the block has any."""
        layers = [self.conv1] if self.first else [self.conv0, self.conv1]
        return [*layers, *((self.torgb,) if self.coloured else ())]

    @property
    def affines(self) -> list[EqualisedLinear]:
        """What makes these layers' styles of w."""
        return [layer.affine for layer in self.styled]

    def forward(self, x: Tensor | None, picture: Tensor | None, *given: Noise) -> tuple[Tensor, Tensor | None]:
        """Run the block.

        Args:
            x: of the block before [N, C, H/2, W/2]; None for the first.
            picture: of the block before [N, colours, H/2, W/2], if there is one.
            given: what `affines` give [N, I] each, what demodulation multiplies by for each convolution [N, O] if that
                was found for all together, and noises for each. One after the other, so that recompute sees all
                tensors that it keeps.

        Returns:
            x [N, C', H, W], and the picture so far [N, colours, H, W], fp32.
        """
        noises = given[-self.convolutions :]
        styles = cast(tuple[Tensor, ...], given[: len(self.styled)])
        norms = cast(tuple[Tensor, ...], given[len(self.styled) : -self.convolutions]) or (None, None)
        if x is None:
            x = self.conv1(self.const[None].expand(len(styles[0]), -1, -1, -1), styles[0], noises[0], norms[0])
        else:
            made = self.conv1(self.conv0(x, styles[0], noises[0], norms[0]), styles[1], noises[1], norms[1])
            x = self.skip(x) + made if self.architecture == "resnet" else made
        if picture is not None:
            picture = upsample2d(picture, self.resample_filter, self.kernels, self.conv1.ops)
        if self.coloured:
            colours = self.torgb(x, styles[-1])
            picture = colours if picture is None else picture + colours
        return cast(Tensor, x), picture


class Synthesis(UsesOps):
    """All blocks."""

    asks = ("styles",)

    def __init__(self, config: StyleGAN2Networks) -> None:
        super().__init__()
        self.sides = config.sides
        for side in self.sides:
            self.add_module(f"b{side}", SynthesisBlock(config, side))

    @property
    def blocks(self) -> tuple[SynthesisBlock, ...]:
        """From the lowest up."""
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
        """What all blocks' `affines` make of styles [N, styles, style], in order: [N, I] each.

        And what demodulation multiplies by [N, O], of all convolutions if it is found together, and else of none.
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
        """Number of the style that each of all blocks' `affines` takes, in order."""
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
    """Sides of all convolutions in order: one in the first block, two in the others."""
    return [sides[0], *(side for side in sides[1:] for _ in range(2))]


def noise_size(sides: tuple[int, ...]) -> int:
    """Normal numbers that one picture takes."""
    return sum(side * side for side in layer_sides(sides))


# The generator: mapping and synthesis.


class Generator(nn.Module):
    """StyleGAN2's generator."""

    def __init__(self, config: StyleGAN2Networks) -> None:
        super().__init__()
        self.latent_size, self.styles = config.latent_size, config.styles
        self.mapping = Mapping(
            config.latent_size,
            config.classes,
            config.style_size,
            config.mapping_layers,
            rate=config.mapping_rate,
            tracked=True,
        )
        self.synthesis = Synthesis(config)

    def styles_of(self, z: Tensor, classes: Tensor | None) -> Tensor:
        """Latents [N, latent_size] and classes [N] from the host to styles [N, style], fp32, on the host."""
        device = next(self.buffers()).device
        w = self.mapping(z.to(device), None if classes is None else classes.to(device))
        return cast(Tensor, w.float().cpu())

    def broadcast(self, w: Tensor, psi: float = 1.0, cutoff: int | None = None) -> Tensor:
        """One style for all layers, moved towards the mean style in the first of them.

        Args:
            w: [N, style].
            psi: 1: as it is; 0: the mean.
            cutoff: layers that are moved; None: all.

        Returns:
            [N, styles, style].
        """
        whole = w[:, None].expand(-1, self.styles, -1)
        if psi == 1:
            return whole
        near = self.mapping.truncated(w, psi)[:, None].expand(-1, self.styles, -1)
        if cutoff is None or cutoff >= self.styles:
            return near
        return torch.cat([near[:, :cutoff], whole[:, cutoff:]], 1)

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
            psi, cutoff: see `broadcast`.
            noise: see `Synthesis`.

        Returns:
            Pictures [N, colours, R, R], about in [-1, 1], fp32.
        """
        ws = self.broadcast(self.mapping(z, classes), psi, cutoff)
        return cast(Tensor, self.synthesis(ws, noise))


# The discriminator: how real is this picture, among the others of its group.


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
            picture = downsample2d(picture, self.resample_filter, self.kernels, self.conv0.ops) if skips else None
        made = self.conv1.after(self.conv0, cast(Tensor, x))
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
