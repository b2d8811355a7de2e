"""Smaller and larger relatives of a StyleGAN2: for a planner that is asked what fits."""

from collections.abc import Mapping
from typing import Any

from frugan.contract.family import Dimension
from frugan.families.stylegan2.config import RESOLUTIONS, StyleGAN2Networks

BASES = (2048, 4096, 8192, 16384, 32768, 65536)
"""Values of channel_base tried; the published ones are 16384 and 32768."""


def variants(networks: StyleGAN2Networks) -> Mapping[Dimension, tuple[Mapping[str, Any], ...]]:
    """Resolutions of the same channels, and channels of the same resolution, smallest first.

    The largest number of channels goes with the base, so that the low blocks shrink as well.
    """
    ratio = networks.channel_max / networks.channel_base
    bases = sorted({*BASES, networks.channel_base})
    return {
        "resolution": tuple({"resolution": r} for r in RESOLUTIONS if r <= networks.channel_base),
        "width": tuple(
            {"channel_base": base, "channel_max": max(1, round(base * ratio))}
            for base in bases
            if base >= networks.resolution and max(1, round(base * ratio)) <= 4096
        ),
    }
