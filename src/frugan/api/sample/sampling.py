"""`sample`: grids and interpolations from a run or a weights file; what cannot be drawn is refused."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frugan.api.data import Data, feeding, open_sources
from frugan.api.networks import Weights
from frugan.api.progress import Say
from frugan.api.sample.generation import captions, check_numbered, check_psi, check_truncation, extent, pixels
from frugan.api.sample.networks import open_networks, row_labels
from frugan.api.setup import with_pictures
from frugan.contract.family import GridRequest
from frugan.data.decoding import MOST_PIXELS
from frugan.engine.weights import prepared_together
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe
from frugan.report.grids import not_finite, write_grid
from frugan.report.sample_files import write_png

OF_RANDOM_INPUTS = ("classes", "interpolate", "truncation", "psi", "psi_layers", "spherical", "columns", "seed")
"""What a request asks of random inputs, which a family that is shown faces has not."""
MOST_SEED = 2**63 - 1
MOST_ON_A_SHEET = 10_000
"""Pictures: 100 rows of 100, which take minutes to draw on a processor."""


def check_request(request: GridRequest, recipe: Recipe) -> None:
    """Refuse what cannot be drawn.

    Raises:
        BadInput: a class out of range, no columns or too many pictures, a truncation or a seed that is none.
    """
    if recipe.shows_given:
        usual = GridRequest()
        ignored = [name for name in OF_RANDOM_INPUTS if getattr(request, name) != getattr(usual, name)]
        if ignored:
            given = " and ".join(f"--{name.replace('_', '-')}" for name in ignored)
            raise BadInput(
                f"{given}: for families that draw from random inputs; {recipe.family} shows what it makes of given "
                "pictures, which these leave as they are; leave them out (--rows says how many pictures)"
            )
    known = recipe.classes
    for chosen in request.classes or ():
        if not 0 <= chosen < known:
            raise BadInput(f"--classes {chosen}: expected 0 to {known - 1}; this network has {known} classes")
    if request.columns < 1 or request.rows < 1 or request.micro_batch < 1:
        raise BadInput("columns, rows and micro-batch: expected at least 1")
    check_truncation(request.truncation)
    check_psi(request.psi, request.psi_layers, request.noise, recipe)
    check_numbered(request, recipe)
    if not 0 <= request.seed <= MOST_SEED:
        raise BadInput(f"--seed {request.seed}: expected a whole number from 0 to {MOST_SEED}")
    check_grid(*extent(request), recipe)
    if request.interpolate is not None and request.columns < 2:
        raise BadInput(f"--columns {request.columns}: an interpolation has at least its 2 ends")


def check_grid(rows: int, columns: int, recipe: Recipe) -> None:
    """Refuse a grid or a film that is too large to be drawn in memory, or looked at.

    Raises:
        BadInput: too many pictures or pixels.
    """
    needs = recipe.sources.values()
    side = max(need.resolution for need in needs)
    if rows * columns > MOST_ON_A_SHEET or rows * columns * side**2 > MOST_PIXELS:
        most = min(MOST_ON_A_SHEET, MOST_PIXELS // side**2)
        raise BadInput(
            f"{rows:,} x {columns:,} pictures (--rows, --columns or --frames): expected at most {most:,} together at "
            f"{side} pixels; --npz N and --pngs N write any number"
        )


def sample(
    source: str | Path | Weights,
    out: str | Path,
    request: GridRequest | None = None,
    *,
    data: Data | None = None,
    device: str = "auto",
    say: Say = print,
) -> list[Path]:
    """Write grids of samples from averaged networks, in the recipe's precision.

    Args:
        source: run, checkpoint or weights file, or what `Weights.open` made of one.
        out: folder for the pictures.
        request: what to draw; None: the family's own grids. Without classes and interpolation: those grids, by the
            other fields.
        data: pictures to work on, for a family that shows what it makes of given ones.
        device: "auto", "cpu", "cuda" or "cuda:1".
        say: is given a line for every automatic choice.

    Returns:
        Paths of the grids.

    Raises:
        BadInput: no such weights, or a request that cannot be drawn.
    """
    opened_networks = open_networks(source, device, say)
    recipe, networks = opened_networks.recipe, opened_networks.networks
    if request is not None:
        check_request(request, recipe)
    given = _given(recipe, data, say)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with (
        ExitStack() as opened,
        torch.no_grad(),
        prepared_together(networks, opened_networks.layout),
    ):
        feed = opened.enter_context(feeding(given, recipe, torch.device("cpu"), workers=0)) if given else None
        for name, asked in _requests(recipe, request).items():
            grid = recipe.kind.sample(recipe.networks, networks, with_pictures(recipe, asked, feed))
            paths.append(folder / f"{name}.png")
            if line := not_finite(grid):
                say(f"{paths[-1].name}: {line}")
            said = captions(asked, row_labels(asked, grid.shape[0], opened_networks.weights.class_names))
            write_grid(grid, paths[-1], opened_networks.provenance, titles=said.titles, labels=said.labels)
            if asked.seeds and asked.interpolate is None:
                paths += _one_by_one(grid, asked, folder, opened_networks.provenance)
    return paths


def _one_by_one(grid: Tensor, request: GridRequest, folder: Path, about: Mapping[str, str]) -> list[Path]:
    """Write the pictures of seeds [rows, columns, C, R, R] as NVlabs' programs do: seed0042.png."""
    paths = []
    for row, pictures in enumerate(pixels(grid).numpy()):
        of_class = f"-class{request.classes[row]}" if request.classes is not None and len(grid) > 1 else ""
        for seed, picture in zip(request.seeds, pictures, strict=True):
            paths.append(folder / f"seed{seed:04d}{of_class}.png")
            write_png(picture, paths[-1], about)
    return paths


def _requests(recipe: Recipe, request: GridRequest | None) -> dict[str, GridRequest]:
    """Grids to draw, by file name: a family that shows given pictures draws its own, with as many rows
    as asked for.
    """
    own = dict(recipe.kind.snapshots(recipe.networks))
    if request is None:
        return own
    if recipe.shows_given:
        micro_batch, rows = request.micro_batch, request.rows
        return {name: replace(one, rows=rows, micro_batch=micro_batch) for name, one in own.items()}
    if request.mixing is not None or request.interpolate is not None:
        return {f"interpolation-{request.interpolate}" if request.mixing is None else "style-mixing": request}
    if request.seeds and request.classes is None and recipe.classes > 1:
        return {"seeds": replace(request, classes=(0,))}
    if request.classes is None and not request.seeds:
        ends = max(2, request.columns)
        return {
            name: replace(
                request,
                classes=one.classes,
                interpolate=one.interpolate,
                columns=request.columns if one.interpolate is None else ends,
            )
            for name, one in own.items()
        }
    return {"seeds" if request.seeds else "samples": request}


def _given(recipe: Recipe, data: Data | None, say: Say) -> dict[str, Any]:
    """The sources that grids are made of; none for other families.

    Raises:
        BadInput: pictures are needed and not given, or given and not needed.
    """
    if not recipe.shows_given:
        if data:
            raise BadInput(
                f"--data {data}: {recipe.family} draws from random inputs and reads no pictures; leave it out"
            )
        return {}
    if not data:
        raise BadInput(
            f"{recipe.family} shows what it makes of given pictures: add --data PATH, or "
            + " ".join(f"--data {name}=PATH" for name in recipe.sources)
        )
    return open_sources(recipe, data, say, None)
