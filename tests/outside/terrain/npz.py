"""A file format of its own: the generator's arrays in one .npz, there and back."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from frugan.api.networks import save
from frugan.api.weights import Weights
from frugan.contract.formats import Conversion, Converted
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe

RECIPE = Path(__file__).parents[1] / "terrain.toml"


class Npz:
    """`--from terrain-npz`, `--to terrain-npz`."""

    program = "a generator of terrain in one .npz file"
    reads = frozenset({"overrides"})
    writes = frozenset({"replace"})

    def read(self, asked: Conversion) -> Converted:
        """Make a weights file.

        Raises:
            BadInput: no such file, or arrays that do not fit the recipe.
        """
        recipe = load_recipe(str(RECIPE), asked.overrides)
        built = recipe.kind.build(recipe.networks)
        try:
            with np.load(asked.source, allow_pickle=False) as arrays:
                state = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
            built["G"].load_state_dict(state)
        except (OSError, ValueError, BadZipFile, RuntimeError) as error:
            raise BadInput(f"{asked.source}: not the generator of {RECIPE.name}: {error}") from error
        save({"G": built["G"]}, recipe, asked.out)
        return Converted({"weights": str(asked.out)}, [f"{asked.out}: {len(state)} arrays"])

    def write(self, asked: Conversion) -> Converted:
        """Write the averaged generator.

        Raises:
            BadInput: the file is there.
        """
        if asked.out.exists() and not asked.replace:
            raise BadInput(f"{asked.out}: is there already; add --replace")
        tensors = Weights.open(asked.source, asked.say).of(["G"])
        arrays: dict[str, Any] = {key.removeprefix("G."): tensor.numpy() for key, tensor in tensors.items()}
        np.savez(asked.out, **arrays)
        return Converted({"file": str(asked.out)}, [f"{asked.out}: {len(tensors)} arrays"])
