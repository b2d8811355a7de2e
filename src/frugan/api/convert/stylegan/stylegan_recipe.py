"""The recipe that goes with a snapshot: its networks, and what they are fine-tuned by."""

from pathlib import Path
from typing import Any

from frugan.errors import BadInput
from frugan.families.stylegan2.snapshot import Module, group_size, network_settings
from frugan.recipe.loading import parse_recipe
from frugan.recipe.recipe import Recipe

GROUP = 4
"""Pictures whose spread the discriminator looks at together, where the snapshot does not say."""


def snapshot_recipe(generator: Module, discriminator: Module | None, path: Path) -> Recipe:
    """Networks as in the snapshot; the rest is what the release chooses by itself for one card and a resumed training.

    Args:
        path: of the snapshot, for messages.

    Raises:
        BadInput: the networks are not StyleGAN2's, or no recipe can describe them.
    """
    try:
        networks = network_settings(generator, discriminator)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    about = {
        "summary": f"StyleGAN2 at {networks['resolution']} pixels, imported",
        "source": f"snapshot {path.name}",
    }
    values = {"family": "stylegan2", "about": about, "networks": networks}
    return parse_recipe(values | _fine_tuning(networks["resolution"], group_size(discriminator)), str(path))


def _fine_tuning(resolution: int, group: int | None) -> dict[str, Any]:
    """Settings of the release's configuration "auto" for one card, resumed from a snapshot.

    Source: Karras et al. 2020 (arXiv 2006.06676) and its release: batch, R1, average and rate by resolution; the
    augmentation's probability moves five times as fast as in a training from nothing.
    """
    group = group or GROUP
    whole = 2 * group  # path lengths are of half a batch, which must be whole groups
    batch = -(-min(max(4096 // resolution, 1), 32) // whole) * whole
    adam = {
        "learning_rate": 0.002 if resolution >= 1024 else 0.0025,
        "beta1": 0.0,
        "beta2": 0.99,
        "eps": 1e-8,
        "lazy_regularisation": True,
    }
    augmentation = {
        "method": "ada",
        "operations": ["blit", "geometry", "colour"],
        "ramp_images": 100_000,
    }
    return {
        "objective": {"r1_gamma": 0.0002 * resolution**2 / batch, "augmentation": augmentation},
        "data": {"flip": True},
        "training": {"batch": batch, "normalisation_batch": group, "duration": "1M images"},
        "optimizers": {"D": adam, "G": adam},
        "ema": {"schedule": "half-life", "half_life_images": batch * 10_000 / 32},
        "saving": {"checkpoint_every": "20k images", "snapshot_every": "20k images", "report_every": "4k images"},
    }
