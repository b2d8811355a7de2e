"""R3GAN's networks: a generator and a discriminator of residual blocks, each the other's mirror image.

Source: Huang et al. 2024 (arXiv 2501.05441), section 4; blocks start as the identity (Zhang et al. 2019, arXiv
1901.09321). Nothing is normalised, and nothing looks across samples.
"""

import math
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.elementwise import SLOPE
from frugan.contract.layers import Penalised, UsesOps
from frugan.families.r3gan.config import R3GANNetworks
from frugan.nn.fir import KeptKernels, downsample2d, fir_filter, upsample2d
from frugan.nn.linear_maps import conv2d, ordered_like

ACTIVATION_GAIN = math.sqrt(2 / (1 + SLOPE**2))
"""Factor that restores the variance which the activation takes away (He et al. 2015, arXiv 1502.01852)."""


# Layers without biases, whose initial weights are normal numbers of deviation gain/√(fan in).


class Weighted(nn.Module):
    """Base of layers with a single parameter, their weight.

    Args:
        shape: shape of the weight.
        std: standard deviation of its initial values.
        half: it may run in half precision.
    """

    weight: nn.Parameter

    def __init__(self, *shape: int, std: float, half: bool) -> None:
        super().__init__()
        self.std = std
        self.fp32_parameters = () if half else ("weight",)
        self.weight = nn.Parameter(torch.empty(shape))
        nn.init.normal_(self.weight, std=std)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the initial weight."""
        nn.init.normal_(self.weight, std=self.std, generator=generator)


class Convolution(Weighted, Penalised):
    """Convolution that keeps the side.

    Args:
        inputs: input channels.
        outputs: output channels.
        kernel: 1 or 3.
        groups: number of groups of channels.
        gain: gain of the initial weights.
        half: it may run in half precision.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, *, groups: int = 1, gain: float = 1.0, half: bool
    ) -> None:
        shape = (outputs, inputs // groups, kernel, kernel)
        super().__init__(*shape, std=gain / math.sqrt(math.prod(shape[1:])), half=half)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, H, W]."""
        x = x.to(self.weight.dtype)
        padding = self.weight.shape[2] // 2
        return conv2d(x, self.weight, padding=padding, groups=self.groups, penalised=self.penalised)


class Linear(Weighted):
    """Fully connected layer, always in fp32.

    Args:
        inputs: input features.
        outputs: output features.
        std: standard deviation of the initial weights; None: 1/√inputs.
    """

    def __init__(self, inputs: int, outputs: int, *, std: float | None = None) -> None:
        super().__init__(outputs, inputs, std=1 / math.sqrt(inputs) if std is None else std, half=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs] -> [N, outputs]."""
        return F.linear(x.to(self.weight.dtype), self.weight)


class Embedding(Linear):
    """Embedding of classes, or of mixtures of classes."""

    def forward(self, classes: Tensor) -> Tensor:
        """Class numbers [N], or shares of the classes [N, classes] -> [N, outputs]."""
        if not classes.is_floating_point():
            # One-hot by comparison: torch's own looks at the values, for which it waits for a card.
            classes = classes[:, None] == torch.arange(self.weight.shape[1], device=classes.device)
        return super().forward(classes)


class ResidualBlock(UsesOps):
    """Residual block: a wide, grouped 3x3 convolution between two 1x1 ones, the last of which starts at 0.

    Args:
        width: input and output channels.
        expansion: how many times wider it is inside.
        groups: groups of the 3x3 convolution.
        gain: gain of the initial weights.
        half: it may run in half precision.
    """

    asks = ("leaky_relu",)

    def __init__(self, width: int, expansion: int, groups: int, gain: float, *, half: bool) -> None:
        super().__init__()
        wide = width * expansion
        self.fp32_parameters = () if half else ("bias1", "bias2")
        self.conv1 = Convolution(width, wide, gain=gain, half=half)
        self.bias1 = nn.Parameter(torch.zeros(wide))
        self.conv2 = Convolution(wide, wide, 3, groups=groups, gain=gain, half=half)
        self.bias2 = nn.Parameter(torch.zeros(wide))
        self.conv3 = Convolution(wide, width, gain=0.0, half=half)

    def initialise(self, _: torch.Generator) -> None:
        """Set both biases to 0."""
        nn.init.zeros_(self.bias1)
        nn.init.zeros_(self.bias2)

    def forward(self, x: Tensor) -> Tensor:
        """[N, width, H, W] -> [N, width, H, W]."""
        x = ordered_like(x.to(self.conv1.weight.dtype), self.conv2.weight)
        hidden = self.ops.leaky_relu(self.conv1(x), self.bias1)
        hidden = self.ops.leaky_relu(self.conv2(hidden), self.bias2)
        return x + cast(Tensor, self.conv3(hidden))


class Resampling(UsesOps):
    """Doubles or halves the side, with a 1x1 convolution at the smaller side where the width changes.

    Args:
        direction: "up" doubles the side, "down" halves it.
        inputs: input channels.
        outputs: output channels.
        half: it may run in half precision.
    """

    asks = ("fir",)
    resample_filter: Tensor

    def __init__(self, direction: Literal["up", "down"], inputs: int, outputs: int, *, half: bool) -> None:
        super().__init__()
        self.direction = direction
        self.register_buffer("resample_filter", fir_filter())
        self.kernels = KeptKernels()
        self.conv = Convolution(inputs, outputs, half=half) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, 2·H, 2·W] or [N, outputs, H/2, W/2]."""
        if self.direction == "up":
            return upsample2d(self.conv(x), self.resample_filter, self.kernels, self.ops)
        smaller = downsample2d(x, self.resample_filter, self.kernels, self.ops)
        return cast(Tensor, self.conv(smaller))


# Stages: all layers at one side.


def _blocks(config: R3GANNetworks, network: Literal["G", "D"], place: int) -> nn.ModuleList:
    """Residual blocks of a stage, which is numbered from 0 at 4 pixels."""
    width, groups, count = (config.stages(network, field)[place] for field in ("widths", "groups", "blocks"))
    # The deeper a network, the less each of its blocks adds; two of a block's three layers have this gain.
    gain = ACTIVATION_GAIN * sum(config.stages(network, "blocks")) ** -0.25
    half = config.half_at(config.sides[place])
    return nn.ModuleList(ResidualBlock(width, config.expansion, groups, gain, half=half) for _ in range(count))


class GeneratorStage(nn.Module):
    """Stage of the generator: upsampling from the stage before, then residual blocks.

    Args:
        config: settings of the networks.
        place: number of the stage, 0 at 4 pixels.
    """

    def __init__(self, config: R3GANNetworks, place: int) -> None:
        super().__init__()
        widths, half = config.stages("G", "widths"), config.half_at(config.sides[place])
        self.lowest = place == 0
        if self.lowest:
            embedded = 0 if config.classes is None else config.generator_embedding
            self.fp32_parameters = ("basis",)
            self.basis = nn.Parameter(torch.empty(widths[0], 4, 4))
            self.linear = Linear(config.latent_size + embedded, widths[0])
            nn.init.normal_(self.basis)
        else:
            self.resample = Resampling("up", widths[place - 1], widths[place], half=half)
        self.blocks = _blocks(config, "G", place)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the basis of the first stage."""
        if self.lowest:
            nn.init.normal_(self.basis, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Latents [N, features], or the output of the stage before [N, I, H/2, W/2] -> [N, width, H, W]."""
        if self.lowest:
            x = self.basis * self.linear(x)[:, :, None, None]
        else:
            x = self.resample(x.to(cast(ResidualBlock, self.blocks[0]).conv1.weight.dtype))
        for block in self.blocks:
            x = block(x)
        return x


class DiscriminatorStage(nn.Module):
    """Stage of the discriminator: residual blocks, then downsampling, or at 4 pixels the last features.

    Args:
        config: settings of the networks.
        place: number of the stage, 0 at 4 pixels.
    """

    def __init__(self, config: R3GANNetworks, place: int) -> None:
        super().__init__()
        widths, half = config.stages("D", "widths"), config.half_at(config.sides[place])
        self.lowest = place == 0
        self.blocks = _blocks(config, "D", place)
        if self.lowest:
            self.basis = Weighted(widths[0], 1, 4, 4, std=1 / 4, half=False)
            self.linear = Linear(widths[0], config.judged_features)
        else:
            self.resample = Resampling("down", widths[place], widths[place - 1], half=half)

    def forward(self, x: Tensor) -> Tensor:
        """[N, width, H, W] -> [N, O, H/2, W/2]; at 4 pixels features [N, outputs]."""
        for block in self.blocks:
            x = block(x)
        if self.lowest:
            return cast(Tensor, self.linear((x * self.basis.weight[:, 0]).sum((2, 3))))
        return cast(Tensor, self.resample(x))


# The networks.


class Generator(nn.Module):
    """R3GAN's generator."""

    def __init__(self, config: R3GANNetworks) -> None:
        super().__init__()
        self.latent_size, self.classes, self.sides = config.latent_size, config.classes, config.sides
        if config.classes is not None:
            self.embed = Embedding(config.classes, config.generator_embedding, std=1 / math.sqrt(config.classes))
        for place, side in enumerate(config.sides):
            self.add_module(f"b{side}", GeneratorStage(config, place))
        last = config.stages("G", "widths")[-1]
        self.torgb = Convolution(last, config.channels, half=config.half_at(config.resolution))

    def forward(self, z: Tensor, classes: Tensor | None = None) -> Tensor:
        """Generate pictures.

        Args:
            z: latents [N, latent_size].
            classes: class numbers [N], or shares of classes [N, classes], if the networks know classes.

        Returns:
            Pictures [N, colours, R, R], about in [-1, 1], fp32.
        """
        x = self.first_features(z, classes)
        for side in self.sides[1:]:
            x = self.get_submodule(f"b{side}")(x)
        pictures = cast(Tensor, self.torgb(x))
        return pictures.to(torch.promote_types(pictures.dtype, torch.float32))

    def first_features(self, z: Tensor, classes: Tensor | None = None) -> Tensor:
        """Features after the first stage: latents [N, latent_size] and classes -> [N, width, 4, 4]."""
        x = z
        if self.classes is not None:
            x = torch.cat([z, self.embed(_required(classes, self.classes)).to(z.dtype)], 1)
        return cast(Tensor, self.get_submodule(f"b{self.sides[0]}")(x))

    @property
    def first_weight(self) -> Tensor:
        """Weight of the first layer [width, latent_size + embedding]."""
        return cast(GeneratorStage, self.get_submodule(f"b{self.sides[0]}")).linear.weight


class Discriminator(nn.Module):
    """R3GAN's discriminator, with classes by projection (Miyato and Koyama 2018, arXiv 1802.05637)."""

    def __init__(self, config: R3GANNetworks) -> None:
        super().__init__()
        self.classes, self.sides = config.classes, config.sides[::-1]
        widths = config.stages("D", "widths")
        self.fromrgb = Convolution(config.channels, widths[-1], half=config.half_at(config.resolution))
        for place, side in reversed(list(enumerate(config.sides))):
            self.add_module(f"b{side}", DiscriminatorStage(config, place))
        if config.classes is not None:
            std = 1 / math.sqrt(config.judged_features * config.classes)
            self.embed = Embedding(config.classes, config.judged_features, std=std)

    def forward(self, pictures: Tensor, classes: Tensor | None = None) -> Tensor:
        """Judge pictures.

        Args:
            pictures: [N, colours, R, R] in [-1, 1].
            classes: class numbers [N], if the networks know classes.

        Returns:
            Outputs [N, 1], fp32; larger is more real.
        """
        x = self.fromrgb(pictures)
        for side in self.sides:
            x = self.get_submodule(f"b{side}")(x)
        if self.classes is None:
            return cast(Tensor, x)
        wanted = cast(Tensor, self.embed(_required(classes, self.classes)))  # [N, features]
        return cast(Tensor, x * wanted).sum(1, keepdim=True)


def _required(classes: Tensor | None, known: int) -> Tensor:
    if classes is None:
        raise ValueError(f"no classes: these networks tell {known} apart; give a number for each sample")
    return classes
