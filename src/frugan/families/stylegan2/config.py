"""Sections `networks` and `objective` of a StyleGAN2 recipe, and what those of later generations share."""

from typing import Literal, Self

from pydantic import model_validator

from frugan.augment.augmentation import AugmentationSettings
from frugan.contract.data import Channels
from frugan.contract.settings import ADDED, CHANGEABLE, Settings, setting

RESOLUTIONS = (8, 16, 32, 64, 128, 256, 512, 1024)
MOST_CHANNELS = 4096
"""Largest number of channels, eight times the widest published; far larger ones overflow 64-bit counts."""
MOST_FEATURES = 65_536
"""Largest size of a latent or of a style."""

Architecture = Literal["skip", "orig", "resnet"]


class StyledNetworks(Settings):
    """Mapping network and discriminator, which all generations of StyleGAN share."""

    resolution: int = setting(256, "side of the square pictures; a power of two from 8 to 1024")
    channels: Channels = setting(3, "colour channels of the pictures: 3, or 1 for grey")
    classes: int | None = setting(
        None, "number of classes; none: without classes, labels are not read", ge=2, le=1_000_000
    )
    latent_size: int = setting(512, "size of the latent z", ge=1, le=MOST_FEATURES)
    style_size: int = setting(512, "size of the style w", ge=1, le=MOST_FEATURES)
    mapping_layers: int = setting(
        8, "layers of the mapping network, from z to w; with few pictures 2 are enough", ge=1, le=64
    )
    mapping_rate: float = setting(
        0.01,
        "learning rate of both networks' mapping layers, as a share of the others'; short runs need more",
        ADDED,
        gt=0,
        le=1,
    )
    mean_style_decay: float = setting(
        0.995, "weight of the mean style so far, when an update moves it (0 to 1)", ADDED, ge=0, le=1
    )
    class_layers: int = setting(
        8,
        "layers in the discriminator's mapping of a class; with fewer it tells classes apart from the start",
        ADDED,
        ge=1,
        le=64,
    )
    channel_base: int = setting(
        32768, "a block of R pixels has at most this divided by R channels", ge=8, le=MOST_CHANNELS * 1024
    )
    channel_max: int = setting(512, "most channels of any block", ge=1, le=MOST_CHANNELS)
    discriminator_architecture: Architecture = setting(
        "resnet", "discriminator: skip, each block also sees the picture; resnet, blocks have shortcuts; orig, neither"
    )
    minibatch_std_channels: int = setting(
        1, "channels of minibatch standard deviation that the discriminator sees; 0: none", ge=0, le=64
    )
    frozen_discriminator_layers: int = setting(
        0, "fine-tuning: how many discriminator layers, from the picture on, stay as they are (FreezeD)", ADDED, ge=0
    )
    half_resolutions: int = setting(
        4, "in half precision: how many of the highest resolutions compute in it; the rest compute in fp32", ge=0, le=8
    )
    convolution_clamp: float | None = setting(
        256.0, "outputs of convolutions are clamped to this, which keeps fp16 in range; none: no limit", gt=0
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.resolution not in RESOLUTIONS:
            raise ValueError(
                f"resolution {self.resolution}: expected {', '.join(map(str, RESOLUTIONS))}; choose the nearest and "
                "let `frugan prepare` resize the pictures"
            )
        if self.channel_base < self.resolution:
            raise ValueError(
                f"channel_base {self.channel_base}: leaves no channel at {self.resolution} pixels; "
                f"expected at least {self.resolution}"
            )
        if self.minibatch_std_channels and self.channels_at(4) % self.minibatch_std_channels:
            raise ValueError(
                f"minibatch_std_channels {self.minibatch_std_channels}: the {self.channels_at(4)} channels at 4 pixels "
                "do not divide by it"
            )
        if self.frozen_discriminator_layers > len(self.discriminator_layers):
            raise ValueError(
                f"frozen_discriminator_layers {self.frozen_discriminator_layers}: its blocks have "
                f"{len(self.discriminator_layers)}, and what comes after them must learn"
            )
        return self

    @property
    def discriminator_layers(self) -> tuple[tuple[int, str], ...]:
        """Sides and names of the discriminator's layers, from the picture on, in the order in which they are frozen."""
        resnet, skip = self.discriminator_architecture == "resnet", self.discriminator_architecture == "skip"
        return tuple(
            (side, name)
            for side in self.sides[:0:-1]
            for name in ("fromrgb", "conv0", "conv1", "skip")
            if (name != "fromrgb" or skip or side == self.resolution) and (name != "skip" or resnet)
        )

    @property
    def sides(self) -> tuple[int, ...]:
        """Sides of the blocks, from 4 up to the resolution."""
        return tuple(1 << n for n in range(2, self.resolution.bit_length()))

    def channels_at(self, side: int) -> int:
        """Number of channels of the block at a side."""
        return min(self.channel_base // side, self.channel_max)

    def half_at(self, side: int) -> bool:
        """Whether a block runs in half precision where the plan has it; the lowest block never does."""
        return side >= max(self.resolution >> max(self.half_resolutions - 1, 0), 8) and self.half_resolutions > 0

    @property
    def styles(self) -> int:
        """Number of layers that take a style."""
        raise NotImplementedError(f"{type(self).__name__} must define styles")


class StyleGAN2Networks(StyledNetworks):
    """Generator and discriminator of StyleGAN2."""

    generator_architecture: Architecture = setting(
        "skip", "generator: skip, each block adds to the picture; resnet, blocks have shortcuts; orig, neither"
    )

    @property
    def styles(self) -> int:
        """Number of layers that take a style: the convolutions, and the last layer of colours."""
        return 2 * len(self.sides)


class StyledObjective(Settings):
    """Loss, penalties and augmentation, which all generations of StyleGAN share."""

    loss: Literal["non-saturating", "relativistic"] = setting(
        "non-saturating",
        "GAN loss; relativistic: the discriminator compares a real and a generated picture of the same class",
        ADDED,
    )

    r1_gamma: float = setting(10.0, "strength of the R1 penalty on the discriminator; 0: none", CHANGEABLE, ge=0)
    r2_gamma: float = setting(
        0.0, "strength of R2, the same penalty at generated pictures; 0: none", CHANGEABLE | ADDED, ge=0
    )
    r1_every: int = setting(16, "steps from one R1 and R2 update to the next", ge=1)
    augmentation: AugmentationSettings = setting(AugmentationSettings(), "augmentation of what the discriminator sees")


class StyleGAN2Objective(StyledObjective):
    """Losses and regularisers of StyleGAN2 training."""

    path_length_weight: float = setting(2.0, "strength of path length regularisation; 0: none", CHANGEABLE, ge=0)
    path_length_every: int = setting(4, "steps from one path length update to the next", ge=1)
    path_length_decay: float = setting(
        0.01, "how far each update moves the running mean of path lengths (0 to 1)", gt=0, le=1
    )
    path_length_fraction: float = setting(0.5, "share of the batch that path length regularisation uses", gt=0, le=1)
    style_mixing: float = setting(
        0.9, "share of the generated pictures that mix the styles of two latents", CHANGEABLE, ge=0, le=1
    )
