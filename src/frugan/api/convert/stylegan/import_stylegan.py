"""A network snapshot of StyleGAN2's authors becomes weights that sampling and training start from."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from frugan.api.convert.stylegan.stylegan_recipe import snapshot_recipe
from frugan.api.convert.written import WEIGHTS_SUFFIX, write_weights_file, write_weights_folder
from frugan.api.progress import Say
from frugan.engine.checkpoint import load_networks
from frugan.errors import BadInput
from frugan.families.stylegan2.snapshot import Module, read_snapshot
from frugan.recipe.recipe import Recipe


@dataclass(frozen=True)
class ImportedSnapshot:
    """What `from_stylegan_pickle` made.

    Attributes:
        path: the weights file, or the folder.
        recipe: of the networks; in a folder also as `recipe.toml`.
        networks: that were in the snapshot.
    """

    path: Path
    recipe: Recipe
    networks: tuple[str, ...]


def from_stylegan_pickle(source: str | Path, out: str | Path, *, say: Say = print) -> ImportedSnapshot:
    """Convert a snapshot of the PyTorch programs of StyleGAN2 (and of StyleGAN2 in StyleGAN3's); nothing in it is run.

    Args:
        source: network-snapshot-….pkl.
        out: a new .safetensors file with the averaged generator and the discriminator; or a new folder with the
            generator as trained, its average, the discriminator, and a recipe to fine-tune them by.
        say: is given a line for everything that does not simply go over.

    Raises:
        BadInput: not a snapshot of StyleGAN2, damaged, or hostile; or `out` is there. Nothing is written then.
        OSError: the disk is full or `out` cannot be written; nothing is left then.
    """
    source, out = Path(source), Path(out)
    if out.exists():
        raise BadInput(f"{out}: is there already; choose a new file ending in {WEIGHTS_SUFFIX}, or a new folder")
    modules = read_snapshot(source)
    average = modules.get("G_ema", modules.get("G"))
    if average is None:
        raise BadInput(f"{source}: holds no generator (G_ema or G); nothing could be drawn with it")
    for name, loss in {
        "G_ema": "G is used instead",
        "G": "G_ema is used instead",
        "D": "in training it starts afresh",
    }.items():
        if name not in modules:
            say(f"the snapshot has no {name}: {loss}")
    discriminator = modules.get("D")
    recipe = snapshot_recipe(average, discriminator, source)
    other = _checked(recipe, "D", discriminator, source) if discriminator is not None else {}
    averaged = _checked(recipe, "G", average, source)
    say(f"{recipe.about.summary}; {', '.join(modules)} from {source}")
    if out.suffix == WEIGHTS_SUFFIX:
        write_weights_file(out, averaged | other, recipe)
    else:
        trained = _checked(recipe, "G", modules.get("G", average), source)
        write_weights_folder(out, trained | other, averaged, recipe)
    return ImportedSnapshot(out, recipe, tuple(modules))


def _checked(recipe: Recipe, name: str, module: Module, source: Path) -> dict[str, Tensor]:
    """Tensors "network.parameter" of a network, which must be those of the recipe's.

    Raises:
        BadInput: they are not.
    """
    tensors = {f"{name}.{key}": torch.from_numpy(array).float() for key, array in module.tensors().items()}
    network = recipe.kind.build(recipe.networks, "meta")[name]
    load_networks({name: network}, tensors, f"{source}: {name}")  # copies nothing: there is no data on "meta"
    return tensors
