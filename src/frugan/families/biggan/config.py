"""What a BigGAN recipe may set: the networks and the objective."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from frugan.augment.settings import AugmentationSettings
from frugan.contract.data import Channels
from frugan.contract.field_marks import ADDED, CHANGEABLE
from frugan.families.biggan.channels import (
    RESOLUTIONS,
    discriminator_channels_at,
    discriminator_stages,
    generator_channels_at,
)
from frugan.nn.initialise import Initialisation

MOST_CHANNELS = 4096
"""Multiplier of channels: the widest published has 128; more could not even be counted in 64 bits."""
MOST_LATENT = 65_536


class BigGANNetworks(BaseModel):
    """Generator and discriminator of BigGAN, BigGAN-deep, SAGAN and SNGAN."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    architecture: Literal["biggan", "biggan-deep"] = Field(
        "biggan",
        description="biggan: the blocks of the paper's section 3; biggan-deep: the deeper ones of its appendix B",
    )
    resolution: int = Field(128, description="side of the square pictures; a power of two from 32 to 512")
    channels: Channels = Field(
        3, json_schema_extra=ADDED, description="colour channels of the pictures: 3, or 1 for grey"
    )
    classes: int = Field(1000, ge=1, le=1_000_000, description="number of classes; 1: without classes")
    generator_channels: int = Field(96, ge=1, le=MOST_CHANNELS, description="channel multiplier of the generator")
    discriminator_channels: int = Field(
        96, ge=1, le=MOST_CHANNELS, description="channel multiplier of the discriminator"
    )
    latent_size: int = Field(
        120,
        ge=1,
        le=MOST_LATENT,
        description="size of the latent z; with hierarchical_latent rounded down to whole chunks",
    )
    shared_embedding: int | None = Field(
        128,
        ge=1,
        le=MOST_LATENT,
        description="size of a class embedding shared by all blocks; none: each normalisation layer has its own",
    )
    hierarchical_latent: bool = Field(
        True, description="give each block a chunk of z of its own (needs shared_embedding)"
    )
    generator_attention: tuple[int, ...] = Field(
        (64,), description="resolutions (pixels) at which the generator has self-attention"
    )
    discriminator_attention: tuple[int, ...] = Field(
        (64,), description="resolutions (pixels) at which the discriminator has self-attention"
    )
    discriminator_wide: bool = Field(
        True, description="hidden layers of a discriminator block are as wide as its output; false: as its input"
    )
    blocks_per_stage: int = Field(2, ge=1, le=64, description="discriminator blocks per stage; biggan-deep only")
    generator_initialisation: Initialisation = Field(
        "orthogonal", description="how the generator's weights are initialised"
    )
    discriminator_initialisation: Initialisation = Field(
        "orthogonal", description="how the discriminator's weights are initialised"
    )
    batch_norm_eps: float = Field(1e-5, gt=0, description="added to variances in batch normalisation")
    output_norm_eps: float = Field(
        1e-5, gt=0, json_schema_extra=ADDED, description="the same in the generator's output layer"
    )
    running_variance: Literal["unbiased", "biased"] = Field(
        "unbiased",
        json_schema_extra=ADDED,
        description="how running statistics take a batch's variance: over n - 1 samples, or over n (the release's "
        "mybn)",
    )
    spectral_norm_eps: float = Field(1e-6, gt=0, description="smallest norm that a power iteration divides by")
    power_iterations: int = Field(1, ge=1, le=100, description="power iterations of spectral norm per update")
    singular_values: int = Field(1, ge=1, le=64, description="singular values that spectral norm tracks")
    reference_attention_at_32: bool = Field(
        False, description="repeat the release's mistake at 32 pixels: attention after every discriminator block of 16"
    )
    frozen_discriminator_blocks: int = Field(
        0,
        ge=0,
        json_schema_extra=ADDED,
        description="fine-tuning: how many discriminator blocks, from the picture on, stay as they are (FreezeD)",
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
        """Attention has an eighth of its input's channels, so it needs 8."""
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


class BigGANObjective(BaseModel):
    """Losses of BigGAN training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    loss: Literal["hinge", "non-saturating", "relativistic"] = Field(
        "hinge",
        description="GAN loss; relativistic: the discriminator compares a real and a generated picture of the same "
        "class",
    )
    discriminator_steps: int = Field(
        1, ge=1, le=1000, description="discriminator updates per generator update, each on new pictures"
    )
    r1_gamma: float = Field(
        0.0,
        ge=0,
        json_schema_extra=CHANGEABLE | ADDED,
        description="strength of the R1 penalty on the discriminator; 0: none",
    )
    r1_every: int = Field(
        16, ge=1, json_schema_extra=CHANGEABLE | ADDED, description="steps from one R1 update to the next"
    )
    augmentation: AugmentationSettings = Field(
        AugmentationSettings(), json_schema_extra=ADDED, description="augmentation of what the discriminator sees"
    )
    generator_learns: bool = Field(
        True,
        json_schema_extra=CHANGEABLE | ADDED,
        description="false: only the discriminator learns, to catch up with a trained generator, until a stage sets "
        "it true",
    )
    generator_orthogonality: float = Field(
        0.0,
        ge=0,
        json_schema_extra=CHANGEABLE,
        description="strength of orthogonal regularisation of the generator; paper: 1e-4",
    )
    discriminator_orthogonality: float = Field(
        0.0,
        ge=0,
        json_schema_extra=CHANGEABLE,
        description="strength of orthogonal regularisation of the discriminator",
    )
