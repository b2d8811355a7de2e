"""Sections `networks` and `objective` of an R3GAN recipe."""

import math
from typing import Literal, Self

from pydantic import model_validator

from frugan.augment.augmentation import AugmentationSettings
from frugan.contract.data import Channels
from frugan.contract.settings import CHANGEABLE, Settings, setting

RESOLUTIONS = (8, 16, 32, 64, 128, 256, 512, 1024)
MOST_CHANNELS = 16_384
"""Largest number of channels, ten times the widest published; far larger ones overflow 64-bit counts."""
MOST_FEATURES = 65_536
"""Largest size of a latent or of an embedding."""

Stages = tuple[int, ...]
"""Numbers, one for each stage from 4 pixels up."""


class R3GANNetworks(Settings):
    """Generator and discriminator of R3GAN: stages of residual blocks, one for each side from 4 pixels up."""

    resolution: int = setting(32, "side of the square pictures; a power of two from 8 to 1024")
    channels: Channels = setting(3, "colour channels of the pictures: 3, or 1 for grey")
    classes: int | None = setting(
        None, "number of classes; none: without classes, labels are not read", ge=2, le=1_000_000
    )
    latent_size: int = setting(64, "size of the latent z", ge=1, le=MOST_FEATURES)
    widths: Stages = setting((768, 768, 768, 768), "channels of each stage, from 4 pixels up to the resolution")
    groups: Stages = setting(
        (96, 96, 96, 96), "groups of each stage's 3x3 convolutions; they divide its widened channels"
    )
    blocks: Stages = setting((2, 2, 2, 2), "residual blocks of each stage")
    discriminator_widths: Stages | None = setting(None, "the discriminator's widths; none: as the generator's")
    discriminator_groups: Stages | None = setting(None, "the discriminator's groups; none: as the generator's")
    discriminator_blocks: Stages | None = setting(None, "the discriminator's blocks; none: as the generator's")
    expansion: int = setting(2, "how many times wider a residual block is inside", ge=1, le=16)
    generator_embedding: int = setting(
        64, "size of the class embedding beside z; only with classes", ge=1, le=MOST_FEATURES
    )
    discriminator_embedding: int | None = setting(
        None,
        "size of the class embedding that the discriminator compares with; none: its width at 4 pixels",
        ge=1,
        le=MOST_FEATURES,
    )
    half_resolutions: int = setting(
        4,
        "in half precision: how many of the highest resolutions compute in it; the rest, and always 4 pixels, compute "
        "in fp32",
        ge=0,
        le=8,
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.resolution not in RESOLUTIONS:
            raise ValueError(
                f"resolution {self.resolution}: expected {', '.join(map(str, RESOLUTIONS))}; choose the nearest and "
                "let `frugan prepare` resize the pictures"
            )
        for name in ("widths", "groups", "blocks"):
            for field in (name, f"discriminator_{name}"):
                self._check_stages(field)
        for whose, widths, groups in (
            ("", self.widths, self.groups),
            ("discriminator_", self.stages("D", "widths"), self.stages("D", "groups")),
        ):
            for side, width, count in zip(self.sides, widths, groups, strict=True):
                if (widened := width * self.expansion) % count:
                    less, more = (
                        next(number for number in numbers if widened % number == 0)
                        for numbers in (range(min(count, widened), 0, -1), range(min(count, widened), widened + 1))
                    )
                    raise ValueError(
                        f"{whose}groups {count} at {side} pixels: do not divide the {widened} widened channels there "
                        f"({whose}widths {width}, expansion {self.expansion}): expected such as "
                        f"{less}{f' or {more}' if more != less else ''}"
                    )
        return self

    def _check_stages(self, field: str) -> None:
        """Refuse a field that has not one number for each stage, or too small or large ones."""
        values: Stages | None = getattr(self, field)
        if values is None:
            return
        if len(values) != len(self.sides):
            raise ValueError(
                f"{field} has {len(values)} numbers; {self.resolution} pixels have {len(self.sides)} stages, of "
                f"{', '.join(map(str, self.sides))} pixels: expected a number for each"
            )
        most = 64 if field.endswith("blocks") else MOST_CHANNELS
        for value in values:
            if not 1 <= value <= most:
                raise ValueError(f"{field} {value}: expected 1 to {most:,}")

    @property
    def sides(self) -> tuple[int, ...]:
        """Sides of the stages, from 4 up to the resolution."""
        return tuple(1 << n for n in range(2, self.resolution.bit_length()))

    def stages(self, network: Literal["G", "D"], field: Literal["widths", "groups", "blocks"]) -> Stages:
        """Values of a field for a network."""
        special: Stages | None = getattr(self, f"discriminator_{field}") if network == "D" else None
        shared: Stages = getattr(self, field)
        return shared if special is None else special

    def half_at(self, side: int) -> bool:
        """Whether a stage runs in half precision where the plan has it."""
        return side in self.sides[1:][::-1][: self.half_resolutions]

    @property
    def judged_features(self) -> int:
        """Outputs of the discriminator's last layer: one, or as many features as the embedding of a class has."""
        if self.classes is None:
            return 1
        return self.discriminator_embedding or self.stages("D", "widths")[0]


def propose_gamma(resolution: int, *, classes: bool) -> float:
    """Guess the penalties' strength at the start; a third of it, or three times as much, may be right.

    The authors chose it by hand for each of five sets, and give no rule: 2 and 150 for faces at 64 and 256 pixels, and
    with classes 0.05 and 0.5 for two sets at 32 pixels and 1 at 64 pixels. The guess is a power of the side through the
    two values for faces, and half of that with classes, as at 64 pixels. The authors' final strength is a tenth of it.

    Args:
        resolution: side of the pictures.
        classes: whether the networks know classes.
    """
    of_faces = FACES_AT_64 * (resolution / 64) ** POWER_OF_SIDE
    return float(f"{of_faces / 2 if classes else of_faces:.2g}")


FACES_AT_64, FACES_AT_256 = 2.0, 150.0
POWER_OF_SIDE = math.log(FACES_AT_256 / FACES_AT_64, 4)

Penalty = Literal["exact", "finite-difference"]


class R3GANObjective(Settings):
    """R3GAN's penalties on the discriminator's gradient, and augmentation; the loss is always relativistic."""

    gamma: float = setting(1.0, "strength of both penalties, R1 and R2, at the start of training", CHANGEABLE, gt=0)
    final_gamma: float | None = setting(
        None, "strength of both penalties at the end of training.burn_in; none: it stays the same", CHANGEABLE, gt=0
    )
    penalty: Penalty = setting(
        "exact",
        "exact: of the discriminator's gradient, by a second backward; finite-difference: of how much its output "
        "changes with a little noise, without one",
    )
    penalty_noise: float = setting(
        0.01, "finite-difference: standard deviation of the noise, for pictures in [-1, 1]", CHANGEABLE, gt=0, le=1
    )
    penalty_every: int = setting(
        1, "steps from one penalty to the next, whose loss is multiplied by them; 1: with every update", ge=1
    )
    augmentation: AugmentationSettings = setting(AugmentationSettings(), "augmentation of what the discriminator sees")
