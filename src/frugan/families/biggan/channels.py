"""Channel tables of the published BigGAN networks, as multiples of the channel setting, and where pictures shrink.

128 and 256 (and 32 and 64) are the release's; the 512-pixel discriminator and the 512-pixel BigGAN-deep are not in it:
the first mirrors the generator, the second follows the paper's published generator.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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
"""Resolution -> (in, out) of each stage; every stage doubles the resolution."""


@dataclass(frozen=True)
class DiscriminatorStage:
    """One stage of a discriminator: channels in and out as multiples (None: the picture's own), and its pooling."""

    inputs: int | None
    outputs: int
    downsample: bool


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
"""After the stem, a 3x3 convolution to as many channels as the first stage takes."""

RESOLUTIONS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"biggan": tuple(GENERATOR), "biggan-deep": tuple(DEEP_DISCRIMINATOR)}
)


def discriminator_stages(resolution: int, *, deep: bool) -> tuple[DiscriminatorStage, ...]:
    """Stages of a discriminator."""
    return (DEEP_DISCRIMINATOR if deep else DISCRIMINATOR)[resolution]


def stage_resolutions(
    resolution: int, stages: tuple[DiscriminatorStage, ...], *, reference_at_32: bool = False
) -> list[int]:
    """Side after each stage of a discriminator, by which attention is placed.

    The release's table says 16 for every stage of its 32-pixel discriminators (truly 16, 8, 8, 8): with
    `reference_at_32` that table is followed, so that its weights load.
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
    """Side -> fewest channels (as a multiple) after the discriminator's stages of that side."""
    stages = discriminator_stages(resolution, deep=deep)
    found: dict[int, int] = {}
    for stage, side in zip(stages, stage_resolutions(resolution, stages, reference_at_32=reference_at_32), strict=True):
        found[side] = min(stage.outputs, found.get(side, stage.outputs))
    return found
