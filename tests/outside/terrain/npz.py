"""A file format of its own: the generator's arrays in one .npz, there and back."""

import tomllib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from frugan.contract.formats import Conversion, Converted, FileFormat, Imported, OurSide, Target
from frugan.errors import BadInput

RECIPE = Path(__file__).parents[1] / "terrain.toml"


class Npz(FileFormat):
    """`--from terrain-npz`, `--to terrain-npz`."""

    program = "a generator of terrain in one .npz file"
    reads = frozenset({"overrides"})
    writes = frozenset({"replace"})
    makes: frozenset[Target] = frozenset({"file"})

    def read(self, conversion: Conversion, ours: OurSide) -> Imported:
        """Read a generator, of which a weights file is made.

        Raises:
            BadInput: no such file, or no arrays.
        """
        recipe = ours.recipe(tomllib.loads(RECIPE.read_text("utf-8")), str(RECIPE))
        try:
            with np.load(conversion.source, allow_pickle=False) as arrays:
                state = {f"G.{key}": torch.from_numpy(arrays[key]) for key in arrays.files}
        except (OSError, ValueError, BadZipFile) as error:
            raise BadInput(f"{conversion.source}: not the generator of {RECIPE.name}: {error}") from error
        return Imported(recipe, state, {"weights": str(conversion.out)}, [f"{conversion.out}: {len(state)} arrays"])

    def write(self, conversion: Conversion, ours: OurSide) -> Converted:
        """Write the averaged generator.

        Raises:
            BadInput: the file is there.
        """
        if conversion.out.exists() and not conversion.replace:
            raise BadInput(f"{conversion.out}: is there already; add --replace")
        tensors = {key: value for key, value in ours.weights("terrain").averages.items() if key.startswith("G.")}
        arrays: dict[str, Any] = {key.removeprefix("G."): tensor.numpy() for key, tensor in tensors.items()}
        np.savez(conversion.out, **arrays)
        return Converted(conversion.out, {"file": str(conversion.out)}, [f"{conversion.out}: {len(tensors)} arrays"])
