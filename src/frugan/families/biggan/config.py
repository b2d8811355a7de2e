"""Sections `networks` and `objective` of a BigGAN recipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Self

from pydantic import model_validator

from frugan.augment.augmentation import AugmentationSettings
from frugan.contract.data import Channels
from frugan.contract.settings import ADDED, CHANGEABLE, Settings, setting
from frugan.nn.initialise import Initialisation

# Channels of the published BigGAN networks, as multiples of the channel setting, and the stages where pictures shrink.
#
# Tables for 32 to 256 pixels are the release's. It has no 512-pixel discriminator, which mirrors the generator here,
# and no 512-pixel BigGAN-deep, which follows the paper's published generator.

BOTTOM = 4
"""Side of the generator's first feature map."""

GENERATOR: Mapping[int, tuple[tuple[int, int], ...]] = MappingProxyType(
    {
        32: ((4, 4), (4, 4), (4, 4)),
        64: ((16, 16), (16, 8), (8, 4), (4, 2)),
        128: ((16, 16), (16, 8), (8, 4), (4, 2), (2, 1)),
        256: ((16, 16), (16, 8), (8, 8), (8, 4), (4, 2), (2, 1)),
        512: ((16, 16), (16, 8), (8, 8), (8, 4), (4, 2), (2, 1), (1, 1)),
    }
)
"""Resolution -> (in, out) of each generator stage; every stage doubles the side."""


@dataclass(frozen=True)
class DiscriminatorStage:
    """One stage of a discriminator."""

    inputs: int | None  # channels, as a multiple; None: those of the picture
    outputs: int  # channels, as a multiple
    downsample: bool  # whether it halves the side


def _stages(outputs: tuple[int, ...], downsampling: int, first: int | None) -> tuple[DiscriminatorStage, ...]:
    inputs = (first, *outputs[:-1])
    return tuple(
        DiscriminatorStage(a, b, i < downsampling) for i, (a, b) in enumerate(zip(inputs, outputs, strict=True))
    )


DISCRIMINATOR: Mapping[int, tuple[DiscriminatorStage, ...]] = MappingProxyType(
    {
        32: _stages((4, 4, 4, 4), 2, None),
        64: _stages((1, 2, 4, 8, 16), 4, None),
        128: _stages((1, 2, 4, 8, 16, 16), 5, None),
        256: _stages((1, 2, 4, 8, 8, 16, 16), 6, None),
        512: _stages((1, 1, 2, 4, 8, 8, 16, 16), 7, None),
    }
)

DEEP_DISCRIMINATOR: Mapping[int, tuple[DiscriminatorStage, ...]] = MappingProxyType(
    {
        32: _stages((4, 4, 4), 2, 4),
        64: _stages((2, 4, 8, 16), 4, 1),
        128: _stages((2, 4, 8, 16, 16), 5, 1),
        256: _stages((2, 4, 8, 8, 16, 16), 6, 1),
        512: _stages((1, 2, 4, 8, 8, 16, 16), 7, 1),
    }
)
"""Stages after the stem, which is a 3x3 convolution to as many channels as the first stage takes."""

RESOLUTIONS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"biggan": tuple(GENERATOR), "biggan-deep": tuple(DEEP_DISCRIMINATOR)}
)


def discriminator_stages(resolution: int, *, deep: bool) -> tuple[DiscriminatorStage, ...]:
    """Stages of a discriminator, from the picture on."""
    return (DEEP_DISCRIMINATOR if deep else DISCRIMINATOR)[resolution]


def stage_resolutions(
    resolution: int, stages: tuple[DiscriminatorStage, ...], *, reference_at_32: bool = False
) -> list[int]:
    """Side after each stage of a discriminator, by which attention is placed.

    The release's table says 16 for every stage of its 32-pixel discriminators, though the sides are 16, 8, 8 and 8.
    With `reference_at_32` that table is followed, so that its weights load.
    """
    if resolution == 32 and reference_at_32:
        return [16] * len(stages)
    sides = []
    for stage in stages:
        resolution //= 2 if stage.downsample else 1
        sides.append(resolution)
    return sides


def generator_channels_at(resolution: int) -> dict[int, int]:
    """Side -> channels (as a multiple) after the generator's stage of that side."""
    return {BOTTOM << (i + 1): outputs for i, (_, outputs) in enumerate(GENERATOR[resolution])}


def discriminator_channels_at(resolution: int, *, deep: bool, reference_at_32: bool) -> dict[int, int]:
    """Side -> smallest number of channels (as a multiple) after the discriminator's stages of that side."""
    stages = discriminator_stages(resolution, deep=deep)
    fewest: dict[int, int] = {}
    for stage, side in zip(stages, stage_resolutions(resolution, stages, reference_at_32=reference_at_32), strict=True):
        fewest[side] = min(stage.outputs, fewest.get(side, stage.outputs))
    return fewest


MOST_CHANNELS = 4096
"""Largest multiplier of channels: published networks go up to 128; far larger ones overflow 64-bit counts."""
MOST_LATENT = 65_536
"""Largest size of a latent or of an embedding."""


class BigGANNetworks(Settings):
    """Generator and discriminator of BigGAN, BigGAN-deep, SAGAN and SNGAN."""

    architecture: Literal["biggan", "biggan-deep"] = setting(
        "biggan", "biggan: the blocks of the paper's section 3; biggan-deep: the deeper ones of its appendix B"
    )
    resolution: int = setting(128, "side of the square pictures; a power of two from 32 to 512")
    channels: Channels = setting(3, "colour channels of the pictures: 3, or 1 for grey", ADDED)
    classes: int = setting(1000, "number of classes; 1: without classes", ge=1, le=1_000_000)
    generator_channels: int = setting(96, "channel multiplier of the generator", ge=1, le=MOST_CHANNELS)
    discriminator_channels: int = setting(96, "channel multiplier of the discriminator", ge=1, le=MOST_CHANNELS)
    latent_size: int = setting(
        120, "size of the latent z; with hierarchical_latent rounded down to whole chunks", ge=1, le=MOST_LATENT
    )
    shared_embedding: int | None = setting(
        128,
        "size of a class embedding shared by all blocks; none: each normalisation layer has its own",
        ge=1,
        le=MOST_LATENT,
    )
    hierarchical_latent: bool = setting(True, "give each block a chunk of z of its own (needs shared_embedding)")
    generator_attention: tuple[int, ...] = setting(
        (64,), "resolutions (pixels) at which the generator has self-attention"
    )
    discriminator_attention: tuple[int, ...] = setting(
        (64,), "resolutions (pixels) at which the discriminator has self-attention"
    )
    discriminator_wide: bool = setting(
        True, "hidden layers of a discriminator block are as wide as its output; false: as its input"
    )
    blocks_per_stage: int = setting(2, "discriminator blocks per stage; biggan-deep only", ge=1, le=64)
    generator_initialisation: Initialisation = setting("orthogonal", "how the generator's weights are initialised")
    discriminator_initialisation: Initialisation = setting(
        "orthogonal", "how the discriminator's weights are initialised"
    )
    batch_norm_eps: float = setting(1e-5, "added to variances in batch normalisation", gt=0)
    output_norm_eps: float = setting(1e-5, "the same in the generator's output layer", ADDED, gt=0)
    running_variance: Literal["unbiased", "biased"] = setting(
        "unbiased",
        "how running statistics take a batch's variance: over n - 1 samples, or over n (the release's mybn)",
        ADDED,
    )
    spectral_norm: bool = setting(
        True,
        "divide each layer's weights by their largest singular value, in both networks; false, with a strong r1_gamma, "
        "keeps more variety of few pictures",
        ADDED,
    )
    spectral_norm_eps: float = setting(1e-6, "smallest norm that a power iteration divides by", gt=0)
    power_iterations: int = setting(1, "power iterations of spectral norm per update", ge=1, le=100)
    singular_values: int = setting(1, "singular values that spectral norm tracks", ge=1, le=64)
    reference_attention_at_32: bool = setting(
        False, "repeat the release's mistake at 32 pixels: attention after every discriminator block of 16"
    )
    frozen_discriminator_blocks: int = setting(
        0, "fine-tuning: how many discriminator blocks, from the picture on, stay as they are (FreezeD)", ADDED, ge=0
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        allowed = RESOLUTIONS[self.architecture]
        if self.resolution not in allowed:
            raise ValueError(
                f"resolution {self.resolution}: {self.architecture} is defined for {', '.join(map(str, allowed))} "
                "(a power of two); choose the nearest and let `frugan prepare` resize the pictures"
            )
        if self.hierarchical_latent and self.shared_embedding is None:
            raise ValueError("hierarchical_latent needs shared_embedding: set its size, or hierarchical_latent = false")
        if self.architecture == "biggan-deep" and self.shared_embedding is None:
            raise ValueError("biggan-deep needs shared_embedding: set its size (the release uses 128)")
        for side in ("generator_attention", "discriminator_attention"):
            for at in getattr(self, side):
                if at < 4 or at > self.resolution or at & (at - 1):
                    raise ValueError(
                        f"{side} = {at}: attention stands at a power of two from 4 to the resolution {self.resolution}"
                    )
        self._check_attention()
        stages = len(discriminator_stages(self.resolution, deep=self.architecture == "biggan-deep"))
        if self.frozen_discriminator_blocks > stages:
            raise ValueError(
                f"frozen_discriminator_blocks {self.frozen_discriminator_blocks}: the discriminator has {stages}, and "
                "what comes after them must learn"
            )
        return self

    def _check_attention(self) -> None:
        """Refuse attention where no block ends, or where the input has fewer than the 8 channels that it divides by."""
        deep = self.architecture == "biggan-deep"
        tables = {
            "generator": generator_channels_at(self.resolution),
            "discriminator": discriminator_channels_at(
                self.resolution, deep=deep, reference_at_32=self.reference_attention_at_32
            ),
        }
        for side, table in tables.items():
            multiplier = getattr(self, f"{side}_channels")
            for at in getattr(self, f"{side}_attention"):
                if at not in table:
                    if side == "generator" or not self.reference_attention_at_32:
                        raise ValueError(
                            f"{side}_attention = {at}: no block ends at that size; expected some of {sorted(table)}"
                        )
                elif table[at] * multiplier < 8:
                    raise ValueError(
                        f"{side}_attention = {at}: {table[at] * multiplier} channels there, attention needs at least "
                        f"8 channels; raise {side}_channels to {-(-8 // table[at])} or more, or leave attention out"
                    )


class BigGANObjective(Settings):
    """Losses and regularisers of BigGAN training."""

    loss: Literal["hinge", "non-saturating", "relativistic"] = setting(
        "hinge", "GAN loss; relativistic: the discriminator compares a real and a generated picture of the same class"
    )
    discriminator_steps: int = setting(
        1, "discriminator updates per generator update, each on new pictures", ge=1, le=1000
    )
    r1_gamma: float = setting(0.0, "strength of the R1 penalty on the discriminator; 0: none", CHANGEABLE | ADDED, ge=0)
    r2_gamma: float = setting(
        0.0, "strength of R2, the same penalty at generated pictures; 0: none", CHANGEABLE | ADDED, ge=0
    )
    r1_every: int = setting(16, "steps from one R1 and R2 update to the next", CHANGEABLE | ADDED, ge=1)
    augmentation: AugmentationSettings = setting(
        AugmentationSettings(), "augmentation of what the discriminator sees", ADDED
    )
    generator_learns: bool = setting(
        True,
        "false: only the discriminator learns, to catch up with a trained generator, until a stage sets it true",
        CHANGEABLE | ADDED,
    )
    generator_orthogonality: float = setting(
        0.0, "strength of orthogonal regularisation of the generator; paper: 1e-4", CHANGEABLE, ge=0
    )
    discriminator_orthogonality: float = setting(
        0.0, "strength of orthogonal regularisation of the discriminator", CHANGEABLE, ge=0
    )
