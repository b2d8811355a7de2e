"""Pictures and a recipe small enough for the tests of the whole way from a folder to samples."""

from pathlib import Path

import numpy as np
from PIL import Image

RECIPE = """
family = "biggan"

[networks]
resolution = 32
classes = 2
generator_channels = 2
discriminator_channels = 2
latent_size = 8
shared_embedding = 4
generator_attention = [16]
discriminator_attention = [16]

[training]
batch = 8
normalisation_batch = 4
duration = "4 steps"
precision = "fp32"

[optimizers.D]
learning_rate = 4e-4

[optimizers.G]
learning_rate = 1e-4

[ema]
decay = 0.9

[saving]
checkpoint_every = "2 steps"
snapshot_every = "4 steps"
"""


def write_recipe(folder: Path, text: str = RECIPE, name: str = "tiny.toml") -> str:
    """Write a recipe and return its path."""
    path = folder / name
    path.write_text(text, "utf-8")
    return str(path)


def write_pictures(
    folder: Path, *, classes: tuple[str, ...] = ("hell", "dunkel ü"), each: int = 6, side: int = 40
) -> Path:
    """Write PNG pictures, a folder for each class (none: flat), and return the folder."""
    random = np.random.default_rng(0)
    for i, name in enumerate(classes or ("",)):
        inner = folder / name
        inner.mkdir(parents=True, exist_ok=True)
        for n in range(each):
            pixels = random.integers(0, 128, (side, side + n, 3)).astype(np.uint8) + np.uint8(100 * i % 256)
            Image.fromarray(pixels).save(inner / f"{n}.png")
    return folder
