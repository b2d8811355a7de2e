"""Smaller and larger relatives of a BigGAN: for a planner that is asked what fits."""

from collections.abc import Mapping
from typing import Any

from frugan.contract.family import Dimension
from frugan.families.biggan.channels import RESOLUTIONS
from frugan.families.biggan.config import BigGANNetworks

WIDTHS = (16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192)
"""Channel multipliers tried; the published ones are 64, 96 and 128."""


def variants(networks: BigGANNetworks) -> Mapping[Dimension, tuple[Mapping[str, Any], ...]]:
    """Resolutions of the same channels, and channels of the same resolution, smallest first."""
    ratio = networks.discriminator_channels / networks.generator_channels
    attention = max((0, *networks.generator_attention, *networks.discriminator_attention))
    widths = sorted({*WIDTHS, networks.generator_channels})
    return {
        "resolution": tuple({"resolution": r} for r in sorted(RESOLUTIONS[networks.architecture]) if r >= attention),
        "width": tuple(
            {"generator_channels": width, "discriminator_channels": max(1, round(width * ratio))} for width in widths
        ),
    }
