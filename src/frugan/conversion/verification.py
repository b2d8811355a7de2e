"""Converted networks are run before anything is written, and compared with what the source drew."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from frugan.contract.family import GridRequest
from frugan.engine.run.checkpoint import load_networks
from frugan.engine.state.working_weights import make_callable
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe
from frugan.wording import GIB

OUTPUTS = "outputs.npz"
"""In the source's folder: latents `z` [N, Z], classes `y` [N] and the pictures drawn of them, `x` [N, C, R, R]."""
MOST_OUTPUTS_BYTES = GIB
MOST_DIFFERENCE = 0.01
"""Largest difference of any pixel in [-1, 1]: about a step of 8 bits. Another program's rounding makes 1e-4."""
GRID = GridRequest(seed=0, columns=2, classes=(0,))


@dataclass(frozen=True)
class Verified:
    """Result of `verify_conversion`."""

    networks: tuple[str, ...]  # that were run
    difference: float | None  # largest, of any pixel, from the source's own pictures; None: it brought none

    @property
    def line(self) -> str:
        """Return the result in one line of text."""
        ran = f"verified: {', '.join(self.networks)} ran, all values finite"
        if self.difference is None:
            return f"{ran}; the source brings no {OUTPUTS} to compare with"
        return f"{ran}; at most {self.difference:.1e} from the source's own pictures"


@torch.no_grad()
def verify_conversion(recipe: Recipe, tensors: Mapping[str, Tensor], source: Path) -> Verified:
    """Run converted networks.

    Args:
        tensors: "network.parameter" of the networks that there are.
        source: folder in which recorded outputs may lie.

    Raises:
        BadInput: they give values that are not finite, or pictures that do not depend on the latent, or others than
            the source's.
    """
    names = list(dict.fromkeys(key.partition(".")[0] for key in tensors))
    built = {name: module for name, module in recipe.kind.build(recipe.networks).items() if name in names}
    load_networks(built, tensors, str(source))
    networks = {name: make_callable(network.eval()) for name, network in built.items()}
    forwards = recipe.kind.forwards(recipe.networks)
    for name, network in networks.items():
        _check_finite(cast(Tensor, forwards[name](network, 2)), name, source)
    if "G" in networks:
        grid = recipe.kind.sample(recipe.networks, networks, GRID)  # [1, 2, C, R, R]
        _check_finite(grid, "G", source)
        if torch.equal(grid[0, 0], grid[0, 1]):
            raise BadInput(f"{source}: the converted generator draws the same picture whatever it is given")
    outputs = source / OUTPUTS
    difference = _difference(networks["G"], outputs) if "G" in networks and outputs.is_file() else None
    return Verified(tuple(networks), difference)


def _check_finite(values: Tensor, name: str, source: Path) -> None:
    if not torch.isfinite(values).all():
        raise BadInput(
            f"{source}: the converted {name} gives values that are not finite; its weights or statistics are damaged"
        )


def _difference(generator: nn.Module, path: Path) -> float:
    z, y, x = _outputs(path)
    try:
        drawn = generator(z, generator.embed(y))  # type: ignore[operator]
    except (RuntimeError, IndexError) as error:
        raise BadInput(f"{path}: z {list(z.shape)} and y {list(y.shape)} do not fit these networks") from error
    if drawn.shape != x.shape:
        raise BadInput(f"{path}: x is {list(x.shape)}; these networks draw {list(drawn.shape)}")
    difference = float((drawn - x).abs().max())
    if not difference <= MOST_DIFFERENCE:
        raise BadInput(
            f"{path}: the converted generator draws other pictures, up to {difference:.2g} apart; expected at most "
            f"{MOST_DIFFERENCE}. Were they recorded with these weights, the average if it is converted, in evaluation?"
        )
    return difference


def _outputs(path: Path) -> tuple[Tensor, Tensor, Tensor]:
    if path.stat().st_size > MOST_OUTPUTS_BYTES:
        raise BadInput(f"{path}: larger than {MOST_OUTPUTS_BYTES:,} bytes; a few pictures are enough")
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > 4 * MOST_OUTPUTS_BYTES:
                raise BadInput(f"{path}: unpacks to more than {4 * MOST_OUTPUTS_BYTES:,} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            z, y, x = (torch.from_numpy(np.asarray(arrays[name])) for name in ("z", "y", "x"))
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError, OSError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path}: expected arrays z [N, Z], y [N] and x [N, C, R, R] ({error})") from error
    return z.float(), y.long(), x.float()
