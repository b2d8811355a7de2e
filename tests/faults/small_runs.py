"""A run as small as one can be: steps of 40 ms, so that many can be killed."""

from pathlib import Path

from training.pictures import RECIPE, write_pictures, write_recipe

SMALL = (
    RECIPE.replace("batch = 8\nnormalisation_batch = 4", "batch = 4\nnormalisation_batch = 4")
    .replace("generator_attention = [16]", "generator_attention = []")
    .replace("discriminator_attention = [16]", "discriminator_attention = []")
    .replace('"4 steps"\nprecision', '"12 steps"\nprecision')
    .replace('snapshot_every = "4 steps"', 'snapshot_every = "1k steps"')
)


OUTSIDE = Path(__file__).parents[1] / "outside"
"""Where the smallest family is, that of a package of another: its steps take 5 ms."""
MINIGAN = """
family = "minigan"
[networks]
channels = 4
[objective]
[training]
batch = 4
duration = "12 steps"
precision = "fp32"
[optimizers.D]
learning_rate = 1e-3
[optimizers.G]
learning_rate = 1e-3
[saving]
checkpoint_every = "2 steps"
snapshot_every = "1k steps"
"""


def minigan_and_pictures(folder: Path) -> tuple[str, Path]:
    """As below, of the smallest family; OUTSIDE has to be among the paths of modules."""
    return write_recipe(folder, MINIGAN), write_pictures(folder / "pictures", classes=())


def recipe_and_pictures(folder: Path) -> tuple[str, Path]:
    """Write both, and return their paths."""
    return write_recipe(folder, SMALL), write_pictures(folder / "pictures")
