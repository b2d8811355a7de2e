"""Smaller and larger relatives of a SAEHD model: for a planner that is asked what fits."""

from collections.abc import Mapping
from typing import Any

from frugan.contract.family import Dimension
from frugan.families.saehd.config import LEAST_RESOLUTION, MOST_RESOLUTION, PATCHES, SAEHDNetworks
from frugan.families.saehd.receptive_field import nearest_patch

EIGHTHS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
"""Widths tried, in eighths of the recipe's."""


def variants(networks: SAEHDNetworks) -> Mapping[Dimension, tuple[Mapping[str, Any], ...]]:
    """Resolutions of the same widths, and widths of the same resolution, smallest first."""
    multiple = networks.letters.multiple
    resolutions = range(-(-LEAST_RESOLUTION // multiple) * multiple, MOST_RESOLUTION + 1, multiple)
    limits = {"ae_dims": (32, 1024), "e_dims": (16, 256), "d_dims": (16, 256), "d_mask_dims": (16, 256)}
    widths: list[Mapping[str, Any]] = []
    for eighths in EIGHTHS:
        wide = {name: 2 * round(getattr(networks, name) * eighths / 16) for name in limits}
        fitting = {name: min(most, max(least, wide[name])) for name, (least, most) in limits.items()}
        if fitting not in widths:
            widths.append(fitting)
    return {
        "resolution": tuple(
            {"resolution": side, "gan_patch_size": nearest_patch(side // 8, side, *PATCHES)} for side in resolutions
        ),
        "width": tuple(widths),
    }
