"""The synthesis network: styles and noise to a picture, block by block from 4 pixels up."""

import math
from collections.abc import Sequence
from typing import Literal, Self, cast

import torch
from torch import Tensor, nn

from frugan.contract.scaled import Scaled, ScaledWeight, Scaling
from frugan.families.stylegan2.config import Architecture, StyleGAN2Networks
from frugan.nn.equalised import EqualisedConv2d, EqualisedLinear
from frugan.nn.fir import fir_filter, upsample2d
from frugan.nn.leaky_relu import clamped, leaky_relu
from frugan.nn.modulated import modulated_conv2d

Noise = Tensor | Literal["const", "none"]
"""Pictures of noise, the same ones for every sample (the layers' own), or none at all."""


class LargestScaling(Scaling):
    """Divisors that bring the largest value of each output channel to 1/√(I·k·k).

    They are held constant: what they would add to the gradient, demodulation cancels.
    """

    @classmethod
    def find(cls, weights: Sequence[ScaledWeight]) -> Self:
        """Look at all of them, and then reckon for all channels together."""
        channels = [len(weight.master) for weight in weights]
        largest = [torch.linalg.vector_norm(weight.master, math.inf, (1, 2, 3)) for weight in weights]  # [O] each
        roots = [math.sqrt(weight.master[0].numel()) for weight in weights]
        torch._foreach_mul_(largest, roots)
        divisors = torch.cat(largest).clamp_min(1e-30)  # [all channels]
        return cls([each.view(-1, 1, 1, 1) for each in divisors.split(channels)])


class SynthesisLayer(Scaled):
    """A 3x3 modulated convolution, noise, bias and leaky ReLU.

    Demodulation takes any scale of a weight back. So the working weight is scaled to a largest value of 1/√(I·k·k) for
    each output channel: in fp16 no sum can then leave its range, whatever the master has grown to.

    Args:
        inputs, outputs: channels.
        style: size of w.
        side: of what it gives.
        up: whether it doubles the side.
        clamp: largest absolute value that it gives.
        half: may run in half precision.
    """

    reparametrised = ("weight",)
    scaling = LargestScaling
    noise_const: Tensor
    resample_filter: Tensor

    def __init__(
        self, inputs: int, outputs: int, style: int, side: int, *, up: bool, clamp: float | None, half: bool
    ) -> None:
        super().__init__()
        self.up, self.clamp = up, clamp
        self.fp32_parameters = ("noise_strength",) if half else ("noise_strength", "weight", "bias")
        self.affine = EqualisedLinear(style, inputs, first_bias=1)
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        self.noise_strength = nn.Parameter(torch.zeros(()))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.register_buffer("resample_filter", fir_filter())
        self.register_buffer("noise_const", torch.randn(side, side))
        nn.init.normal_(self.weight)

    def initialise(self, generator: torch.Generator) -> None:
        """Normal weights and noise; nothing in the bias, no noise at first."""
        nn.init.normal_(self.weight, generator=generator)
        nn.init.normal_(self.noise_const, generator=generator)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.noise_strength)

    def forward(self, x: Tensor, w: Tensor, noise: Noise, gain: float = 1.0) -> Tensor:
        """[N, I, H, W], w [N, style], noise [N, 1, side, side] -> [N, O, side, side]."""
        x = x.to(self.weight.dtype)
        if isinstance(noise, Tensor):
            added: Tensor | None = noise * self.noise_strength
        else:
            added = self.noise_const * self.noise_strength if noise == "const" else None
        x = modulated_conv2d(
            x,
            self.weight,
            self.affine(w),
            upsample_by=self.resample_filter if self.up else None,
            noise=added,
        )
        return leaky_relu(x, self.bias, gain=gain, clamp=self.clamp)


class ToRGB(nn.Module):
    """A 1x1 modulated convolution to the colours of a picture.

    Args:
        inputs: channels.
        colours: channels of the picture.
        style: size of w.
        clamp: largest absolute value that it gives.
        half: may run in half precision.
    """

    def __init__(self, inputs: int, colours: int, style: int, *, clamp: float | None, half: bool) -> None:
        super().__init__()
        self.clamp, self.gain = clamp, 1 / math.sqrt(inputs)
        self.fp32_parameters = () if half else ("weight", "bias")
        self.affine = EqualisedLinear(style, inputs, first_bias=1)
        self.weight = nn.Parameter(torch.randn(colours, inputs, 1, 1))
        self.bias = nn.Parameter(torch.zeros(colours))

    def initialise(self, generator: torch.Generator) -> None:
        """Normal weights, no bias."""
        nn.init.normal_(self.weight, generator=generator)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        """[N, I, H, W], w [N, style] -> [N, colours, H, W], in the dtype of the styles."""
        styles = self.affine(w) * self.gain
        x = modulated_conv2d(x.to(self.weight.dtype), self.weight, styles, demodulate=False)
        return clamped(x + self.bias.view(1, -1, 1, 1), self.clamp).to(styles.dtype)


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

        def layer(inputs: int, *, up: bool) -> SynthesisLayer:
            return SynthesisLayer(inputs, outputs, config.style_size, side, up=up, clamp=clamp, half=half)

        if self.first:
            self.const = nn.Parameter(torch.randn(outputs, side, side))
        else:
            self.conv0 = layer(config.channels_at(side // 2), up=True)
            if self.architecture == "resnet":
                self.skip = EqualisedConv2d(
                    config.channels_at(side // 2), outputs, 1, resample="up", activate=False, half=half
                )
        self.conv1 = layer(outputs, up=False)
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

    def forward(
        self, x: Tensor | None, picture: Tensor | None, ws: Tensor, *noises: Noise
    ) -> tuple[Tensor, Tensor | None]:
        """Run the block.

        Args:
            x: of the block before [N, C, H/2, W/2]; None for the first.
            picture: of the block before [N, colours, H/2, W/2], if there is one.
            ws: a style for each convolution, and one for the colours [N, convolutions + 1, style].
            noises: for each convolution.

        Returns:
            x [N, C', H, W], and the picture so far [N, colours, H, W], fp32.
        """
        w = ws.unbind(1)
        if x is None:
            x = self.conv1(self.const[None].expand(len(ws), -1, -1, -1), w[0], noises[0])
        elif self.architecture == "resnet":
            shortcut = self.skip(x, gain=math.sqrt(0.5))
            x = self.conv0(x, w[0], noises[0])
            x = shortcut + self.conv1(x, w[1], noises[1], gain=math.sqrt(0.5))
        else:
            x = self.conv1(self.conv0(x, w[0], noises[0]), w[1], noises[1])
        if picture is not None:
            picture = upsample2d(picture, self.resample_filter)
        if self.coloured:
            colours = self.torgb(x, w[-1])
            picture = colours if picture is None else picture + colours
        return cast(Tensor, x), picture


class Synthesis(nn.Module):
    """All blocks."""

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
        at, noises = 0, self._split(noise)
        for block in self.blocks:
            count = block.convolutions
            x, picture = block(x, picture, ws[:, at : at + count + 1], *noises[at : at + count])
            at += count
        assert picture is not None
        return picture

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
