"""The release's configuration "auto": what suits a resolution on one card.

Source: Karras et al. 2020 (arXiv 2006.06676), the release's defaults. There a batch that one gives changes nothing
else; here strength of R1 and length of the average go by the batch in force.
"""

from collections.abc import Mapping
from typing import Any

from frugan.errors import BadInput

MOST_BATCH = 32
PIXELS_AT_ONCE = 4096
"""Resolution times batch."""
LARGEST_GROUP = 4
GAMMA = 0.0002
"""Strength of R1 for a pixel and a batch of 1."""
HALF_LIFE_BATCHES = 10_000 / 32
RULE = "auto"


def follow(rule: str, resolution: int, batch: int | None) -> Mapping[str, Any]:
    """See `Ruled`."""
    if rule != RULE:
        raise BadInput(f"rule {rule!r}: StyleGAN2 has one rule, {RULE}; or leave it out")
    batch = batch or max(1, min(PIXELS_AT_ONCE // resolution, MOST_BATCH))
    group = next(size for size in range(min(batch, LARGEST_GROUP), 0, -1) if batch % size == 0)
    learning_rate = 0.002 if resolution >= 1024 else 0.0025
    return {
        "training.batch": batch,
        "training.normalisation_batch": group,
        "networks.channel_base": 32768 if resolution >= 512 else 16384,
        "objective.r1_gamma": round(GAMMA * resolution**2 / batch, 6),
        "optimizers.D.learning_rate": learning_rate,
        "optimizers.G.learning_rate": learning_rate,
        "ema.half_life_images": round(HALF_LIFE_BATCHES * batch),
    }
