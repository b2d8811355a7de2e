"""`sample`: grids and interpolations; many samples as npz, PNGs, grids and films; and what is nearest to them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frugan.contract.family import GridRequest, spread
from frugan.data.formats.picture_set import PictureSet
from frugan.engine.state.working_weights import prepared_together
from frugan.engine.streams import derive_seed
from frugan.errors import BadInput, checked
from frugan.files import refuse_existing
from frugan.metrics.diversity import nearest_pictures
from frugan.progress import Progress, Say
from frugan.recipe.recipe import Recipe
from frugan.reporting.grids import LARGEST_SIDE, many_files, not_finite, numbered, write_grid
from frugan.reporting.sample_files import write_animation, write_npz, write_png, write_pngs
from frugan.sampling.explorer import exploring
from frugan.sampling.films import check_film, side_by_side, write_film
from frugan.sampling.generation import Sampler, generating, pixels, with_statistics
from frugan.sampling.generators import Opened, open_networks, write_sample
from frugan.sampling.loops import loops
from frugan.sampling.provenance import named, retold, retold_drawn, retold_film
from frugan.sampling.requests import DrawRequest, by_classes, check_grid, check_request, rows_that_fit
from frugan.sampling.sheets import drawn, explores, sheets
from frugan.setup.networks import Weights
from frugan.setup.recipe_setup import with_pictures
from frugan.setup.run_data_sources import Data, checkpoint_data, feeding, open_real, open_sources


@checked
def sample(
    source: str | Path | Weights,
    out: str | Path,
    request: GridRequest | None = None,
    *,
    data: Data | None = None,
    replace_files: bool = False,
    device: str = "auto",
    say: Say = print,
    progress: Progress | None = None,
) -> list[Path]:
    """Write grids of samples from averaged networks, in the recipe's precision.

    Args:
        source: run, checkpoint or weights file, or what `Weights.open` made of one.
        out: folder for the pictures.
        request: what to draw; None: the family's own grids. Without classes and interpolation: those grids, by the
            other fields. A `DrawRequest` may ask for standing statistics, and for a number of rows in each file.
        data: pictures to work on, for a family that shows what it makes of given ones.
        replace_files: files of these names may be in the folder.
        device: "auto", "cpu", "cuda" or "cuda:1".
        say: is given a line for every automatic choice.
        progress: (done, all) of the files of a grid by classes, if it is several.

    Returns:
        Paths of the grids.

    Raises:
        BadInput: no such weights, a request that cannot be drawn, or a file is there already; nothing is written then.
    """
    opened = open_networks(source, device, say)
    weights, recipe, networks = opened.weights, opened.recipe, opened.networks
    if request is not None:
        check_request(request, recipe)
        if isinstance(request, DrawRequest) and request.loops:
            raise BadInput("loop and keyframes: a film, which `animate` writes; leave them out here")
        _move(opened, request)
    pictures = _given(recipe, data, say)
    folder = Path(out)
    told = {} if request is None else retold(named(source), out, request, weights.step)
    if request is not None and explores(request, recipe):
        return _explored(opened, request, folder, told, say, replace_files=replace_files)
    grids = {
        name: _sheets(grid_request, recipe, folder / f"{name}.png", say)
        for name, grid_request in _requests(recipe, request).items()
    }
    for path, sheet in chain(*grids.values()):
        _refuse_existing((path, *_single_files(sheet, folder)), replace_files=replace_files)
    paths: list[Path] = []
    with ExitStack() as feeds, torch.no_grad(), _prepared(opened, request):
        folder.mkdir(parents=True, exist_ok=True)
        feed = feeds.enter_context(feeding(pictures, recipe, torch.device("cpu"), workers=0)) if pictures else None
        for sheets in grids.values():
            for number, (path, sheet) in enumerate(sheets, 1):
                shown = with_pictures(recipe, sheet, feed)
                grid, written = write_sample(
                    recipe, networks, shown, path, weights.step, weights.class_names, say, told=told
                )
                paths += written
                if _single_files(sheet, folder):
                    paths += _one_by_one(grid, sheet, folder, opened.provenance | dict(told))
                if progress is not None and len(sheets) > 1:
                    progress(number, len(sheets))
    return paths


def _refuse_existing(paths: Iterable[Path], *, replace_files: bool) -> None:
    """Refuse files that are there, unless they may be replaced.

    Raises:
        BadInput: one is there.
    """
    for path in paths:
        refuse_existing(path, replace=replace_files, argument="replace_files")


def _move(opened: Opened, request: GridRequest) -> None:
    """Let a generator draw its pictures moved, where a request moves them."""
    if any(request.translate) or request.rotate:
        opened.recipe.kind.move(opened.networks, request.translate, request.rotate)


def _prepared(opened: Opened, request: GridRequest | None) -> AbstractContextManager[object]:
    """Networks to draw grids with, with standing statistics if those are asked for."""
    if isinstance(request, DrawRequest) and request.statistics == "standing":
        return with_statistics(opened.recipe, opened.networks, opened.layout, request)
    return prepared_together(opened.networks, opened.layout)


def _sheets(request: GridRequest, recipe: Recipe, path: Path, say: Say) -> list[tuple[Path, GridRequest]]:
    """A grid by classes as several, drawn and written one after the other, each from latents of its own."""
    if not by_classes(request) or request.classes is None:
        return [(path, request)]
    classes, rows = request.classes, rows_that_fit(request, recipe)
    count = -(-len(classes) // rows)
    rows_per_sheet = request.rows_per_sheet if isinstance(request, DrawRequest) else None
    if rows_per_sheet is None:
        rows = -(-len(classes) // count)  # as many on the last one, or nearly
    elif rows < min(rows_per_sheet, len(classes)):
        say(f"--rows-per-sheet {rows_per_sheet:,}: {rows:,} are what one file has room for")
    if count == 1:
        return [(path, request)]
    files = numbered(path, count)
    say(
        f"{len(classes):,} classes: {count} files of up to {rows} rows, {files[0].name} to {files[-1].name}"
        + (f", as one file has at most {LARGEST_SIDE:,} pixels a side" if rows_per_sheet is None else "")
    )
    seeds = [request.seed, *(derive_seed(request.seed, "sheet", number) for number in range(1, count))]
    return [
        (file, replace(request, seed=seed, classes=classes[number * rows : (number + 1) * rows]))
        for number, (file, seed) in enumerate(zip(files, seeds, strict=True))
    ]


def _explored(
    opened: Opened, request: GridRequest, folder: Path, told: Mapping[str, str], say: Say, *, replace_files: bool
) -> list[Path]:
    """Write what is drawn from points of a latent space: grids, and the pictures of seeds and latents one by one.

    Raises:
        BadInput: see `sheets`; or a file is there already.
    """
    draw_request, about = _as_draw(request), opened.provenance | dict(told)
    paths: list[Path] = []
    with exploring(opened, draw_request.micro_batch) as explorer:
        found = sheets(explorer, draw_request, opened.weights.class_names, folder, say)
        singles = {
            "seeds": _single_files(draw_request, folder),
            "latents": [folder / f"latents-{title}.png" for sheet in found.values() for title in sheet.titles],
        }
        for name in found:
            _refuse_existing((folder / f"{name}.png", *singles.get(name, ())), replace_files=replace_files)
        for name, sheet in found.items():
            grid = drawn(explorer, sheet, draw_request)
            path = folder / f"{name}.png"
            paths += write_grid(grid, path, about, titles=sheet.titles, labels=sheet.labels)
            if (line := not_finite(grid)) is not None:
                say(f"warning: {path}: {line}")
            if name == "seeds":
                paths += _one_by_one(grid, draw_request, folder, about)
            elif name == "latents":
                for file, picture in zip(singles[name], pixels(grid[0]).numpy(), strict=True):
                    write_png(picture, file, about)
                paths += singles[name]
    return paths


def _as_draw(request: GridRequest) -> DrawRequest:
    return request if isinstance(request, DrawRequest) else DrawRequest(**vars(request))


def _one_by_one(grid: Tensor, request: GridRequest, folder: Path, about: Mapping[str, str]) -> list[Path]:
    """Write the pictures of seeds [rows, columns, C, R, R], and return their files."""
    paths = _single_files(request, folder)
    for path, picture in zip(paths, pixels(grid).flatten(0, 1).numpy(), strict=True):
        write_png(picture, path, about)
    return paths


def _single_files(request: GridRequest, folder: Path) -> list[Path]:
    """Return files of single pictures, named after seeds as NVlabs' programs do: seed0042.png; none for other grids."""
    if request.interpolate is not None:
        return []
    classes = request.classes or ()
    of_classes = [f"-class{number}" for number in classes] if len(classes) > 1 else [""]
    return [folder / f"seed{seed:04d}{of_class}.png" for of_class in of_classes for seed in request.seeds]


def _requests(recipe: Recipe, request: GridRequest | None) -> dict[str, GridRequest]:
    """Return the grids to draw by file name; a family that is shown pictures draws its snapshots with `rows` rows."""
    snapshots = recipe.kind.snapshots(recipe.networks)
    grids = {name: _first_sheet(grid, (request or grid).rows) for name, grid in snapshots.items()}
    if request is None:
        return grids
    if recipe.shows_given:
        if request.morphs:
            grids = {name: grid.with_morphs(request.morphs) for name, grid in grids.items()}
        micro_batch, rows = request.micro_batch, request.rows
        return {name: replace(grid, rows=rows, micro_batch=micro_batch) for name, grid in grids.items()}
    if request.mixing is not None:
        return {"style-mixing": request}
    if request.interpolate is not None:
        return {f"interpolation-{request.interpolate}": request}
    if request.seeds:
        one_class = request.classes is None and recipe.classes > 1
        return {"seeds": replace(request, classes=(0,)) if one_class else request}
    return _like_snapshots(request, grids) if request.classes is None else {"samples": request}


def _first_sheet(grid: GridRequest, rows: int) -> GridRequest:
    """Return a grid with as many of its classes as there are rows."""
    return grid if grid.classes is None else replace(grid, classes=spread(grid.classes, rows))


def _like_snapshots(request: GridRequest, snapshots: Mapping[str, GridRequest]) -> dict[str, GridRequest]:
    """Return grids with the classes, the interpolation and the psi of the snapshots, as far as a request leaves them.

    Snapshots at another psi are left out where the request has one.
    """
    ends = max(2, request.columns)
    return {
        name: replace(
            request,
            classes=snapshot.classes,
            interpolate=snapshot.interpolate,
            columns=request.columns if snapshot.interpolate is None else ends,
            psi=snapshot.psi if request.psi == 1 else request.psi,
        )
        for name, snapshot in snapshots.items()
        if request.psi == 1 or snapshot.psi == 1
    }


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


def transform(
    source: str | Path | Weights,
    out: str | Path,
    count: int,
    *,
    data: Data | None,
    micro_batch: int = GridRequest().micro_batch,
    device: str = "auto",
    say: Say = print,
) -> list[Path]:
    """Write what networks make of given pictures, such as swapped faces, each as a PNG under the name of its picture.

    Args:
        source: run, checkpoint or weights file, or what `Weights.open` made of one.
        out: folder; they go into the folder `pngs` in it.
        count: pictures, the first ones of what is given.
        data: the pictures.
        micro_batch: pictures in one forward.

    Returns:
        Their paths.

    Raises:
        BadInput: no such weights, or no pictures; or the folder holds something.
    """
    if count < 1:
        raise BadInput(f"--pngs {count}: expected at least 1 picture")
    opened = open_networks(source, device, say)
    recipe, folder = opened.recipe, Path(out) / "pngs"
    sources = _given(recipe, data, say)
    if folder.is_dir() and any(folder.iterdir()):
        raise BadInput(f"{folder}: holds something already, which would mix with these; choose another --out")
    paths: list[Path] = []
    with torch.no_grad(), _prepared(opened, None):
        pictures = recipe.kind.transformed(recipe.networks, opened.networks, sources, count, micro_batch)
        for number, (name, picture) in enumerate(pictures):
            stem = "".join(letter if letter.isalnum() or letter in " ._-" else "_" for letter in name)[
                :200
            ]  # untrusted
            path, again = folder / f"{stem}.png", number
            while path in paths:  # until nobody else has the name
                path, again = folder / f"{stem}-{again}.png", again + 1
            write_png(pixels(picture).numpy(), path, opened.provenance)
            paths.append(path)
    return paths


@checked
def draw(
    source: str | Path | Weights,
    out: str | Path,
    request: DrawRequest | None = None,
    *,
    npz: int | None = None,
    pngs: int | None = None,
    sheet: tuple[int, int] | None = None,
    replace_files: bool = False,
    device: str = "auto",
    say: Say = print,
) -> list[Path]:
    """Draw numbered samples of random classes into files.

    Picture number i depends on the seed and on i alone, so that 100 more continue the first ones.

    Args:
        source: run, checkpoint or weights file, or what `Weights.open` made of one.
        out: folder.
        request: which pictures.
        npz: pictures in samples.npz; None: none is written.
        pngs: pictures in the folder `pngs`, by class.
        sheet: rows and columns of random.png.
        replace_files: samples.npz and random.png may be in the folder.

    Returns:
        Paths of what was written.

    Raises:
        BadInput: no such weights, a family that draws nothing by itself, a request that makes no sense, or a file is
            there already.
    """
    opened = open_networks(source, device, say)
    folder, paths = Path(out), []
    request = request or DrawRequest()
    for name, count in (("--npz", npz), ("--pngs", pngs), ("--rows and --columns", sheet and sheet[0] * sheet[1])):
        if count is not None and count < 1:
            raise BadInput(f"{name} {count}: expected at least 1 picture")
    if sheet is not None:
        check_grid(*sheet, opened.recipe)
    written = {"samples.npz": npz, "random.png": sheet}
    _refuse_existing(
        (folder / name for name, wanted in written.items() if wanted is not None), replace_files=replace_files
    )
    choice = {"npz": npz, "pngs": pngs, "sheet": sheet}
    about = opened.provenance | retold_drawn(named(source), out, request, opened.weights.step, choice)
    with generating(opened.recipe, opened.networks, opened.layout, request) as generator:
        _move(opened, request)
        folder.mkdir(parents=True, exist_ok=True)
        if npz is not None:
            paths.append(folder / "samples.npz")
            write_npz(_blocks(generator, npz), npz, paths[-1])
            _warn_of_not_finite(generator, paths[-1], say)
        if pngs is not None:
            paths.append(folder / "pngs")
            write_pngs(_blocks(generator, pngs), pngs, paths[-1], about)
            _warn_of_not_finite(generator, paths[-1], say)
        if sheet is not None:
            drawn = torch.cat([pictures for pictures, _ in generator.draw(0, sheet[0] * sheet[1])])
            path = folder / "random.png"
            paths += _written(drawn.unflatten(0, sheet), path, about, say)
            _warn_of_not_finite(generator, path, say)
    return paths


def _written(
    grid: Tensor, path: Path, about: Mapping[str, str], say: Say, titles: Sequence[str] = ()
) -> tuple[Path, ...]:
    """Write a grid of pixels, and say where it is several files."""
    paths = write_grid(grid.float().div(127.5).sub(1), path, about, titles=titles)
    if line := many_files(paths):
        say(f"{path.name}: {line}")
    return tuple(paths)


def _warn_of_not_finite(generator: Sampler, path: Path, say: Say) -> None:
    """Say how many pictures of a file are black; the next file's are counted anew."""
    if generator.not_finite:
        say(f"warning: {path}: {generator.not_finite} pictures hold values that are not finite; they are black there")
    generator.not_finite = 0


@checked
def animate(
    source: str | Path | Weights,
    path: str | Path,
    request: GridRequest,
    *,
    replace_files: bool = False,
    device: str = "auto",
    say: Say = print,
) -> Path:
    """Write an interpolation as a film: the request's rows side by side, its columns one after the other.

    Args:
        path: ends in .gif, .webp or .mp4.
        request: with `interpolate`, `loop` or `keyframes`; as many columns as frames. None of these: from seed to
            seed if there are any, and with several classes from one class to the next.
        replace_files: the file may be there.

    Raises:
        BadInput: as `sample`; or another ending.
    """
    check_film(Path(path), request.columns)
    _refuse_existing([Path(path)], replace_files=replace_files)
    opened = open_networks(source, device, say)
    looping = isinstance(request, DrawRequest) and request.loops
    if not looping and request.interpolate is None and not _shows_directions(request):
        several = bool(request.seeds) and len(request.classes or ()) > 1
        request = replace(request, interpolate="both" if several else "latent")
    check_request(request, opened.recipe)
    _move(opened, request)
    told = opened.provenance | retold_film(named(source), Path(path), request, opened.weights.step)
    if isinstance(request, DrawRequest) and request.loops:
        folder, class_names = Path(path).parent, opened.weights.class_names
        with exploring(opened, request.micro_batch) as explorer:
            ways = loops(explorer, request, class_names, folder, say)
            columns, noise, seed = (request.loop or (1, 1))[0], request.noise, request.seed
            return write_film(explorer, ways, path, columns=columns, noise=noise, seed=seed, about=told, say=say)
    if explores(request, opened.recipe):
        draw_request = _as_draw(request)
        with exploring(opened, draw_request.micro_batch) as explorer:
            found = sheets(explorer, draw_request, (), Path(path).parent, say)
            grid = torch.cat([drawn(explorer, sheet, draw_request) for sheet in found.values()])
    else:
        with torch.no_grad(), _prepared(opened, request):
            grid = opened.recipe.kind.sample(opened.recipe.networks, opened.networks, request)
    if (line := not_finite(grid)) is not None:
        say(f"warning: {path}: {line}")
    frames = pixels(grid).transpose(0, 1).numpy()  # [frames, rows, C, R, R]
    there_and_back = (*frames, *frames[-2:0:-1])
    write_animation((side_by_side(frame) for frame in there_and_back), Path(path), told)
    return Path(path)


def _shows_directions(request: GridRequest) -> bool:
    return isinstance(request, DrawRequest) and request.shows_directions


def _blocks(generator: Sampler, count: int) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    for pictures, labels in generator.draw(0, count):
        yield pictures.numpy(), labels.numpy()


COPIED = 0.5
"""A sample nearer to a training picture than half of what is usual between two of them is worth a look."""


@dataclass(frozen=True)
class MemorisationCheck:
    """Result of `check_memorisation`."""

    sheets: tuple[Path, ...]  # one file, or several where it is large: a sample and its nearest pictures in each row
    # distance of each sample to the nearest one, as a share of what is usual for held-out pictures, or, where there are
    # none, between training pictures
    ratios: tuple[float, ...]
    suspicious: tuple[int, ...]  # rows, from 1, whose ratio is below `COPIED`


def check_memorisation(
    source: str | Path | Weights,
    data: str | Path | PictureSet,
    out: str | Path,
    request: DrawRequest | None = None,
    *,
    samples: int = 10,
    nearest: int = 5,
    replace_files: bool = False,
    device: str = "auto",
    say: Say = print,
    progress: Progress | None = None,
) -> MemorisationCheck:
    """Write a grid of samples, each beside the training pictures (mirrored ones too) that are nearest to it.

    Nearest by what is not background, at 32 x 32: a copy shows, a change of pose or colour does not.

    Args:
        source: run, checkpoint or weights file, or what `Weights.open` made of one.
        data: what it was trained on.
        out: folder for nearest.png.
        samples, nearest: rows, and training pictures in each.
        replace_files: nearest.png may be in the folder.

    Raises:
        BadInput: no such weights or pictures, counts below 1, or the file is there already.
    """
    path = Path(out) / "nearest.png"
    _refuse_existing([path], replace_files=replace_files)
    if samples < 1 or nearest < 1:
        raise BadInput(f"--rows {samples}, --nearest {nearest}: expected at least 1")
    weights = Weights.open(source, say)
    opened = open_networks(weights, device, say)
    check_grid(samples, 1 + nearest, opened.recipe)
    real = open_real(opened.recipe, data, say, progress, checkpoint_data(weights.checkpoint))
    pictures = real.given if real.of_run is None else real.of_run
    with generating(opened.recipe, opened.networks, opened.layout, request or DrawRequest()) as generator:
        drawn = torch.cat([block for block, _ in generator.draw(0, samples)])  # [samples, C, R, R]
    if nearest > len(pictures):
        say(f"--nearest {nearest}: there are {len(pictures):,} training pictures; each row shows all of them")
    count = min(nearest, len(pictures))
    near = nearest_pictures(drawn, pictures, count, progress, unseen=pictures.held_out)
    beside = torch.from_numpy(np.array(pictures[near.indices.flatten().numpy()])).unflatten(0, (samples, count))
    rows = torch.cat([drawn[:, None], beside], 1)  # [samples, 1 + count, C, R, R]
    titles = ("sample", *(f"near {number}" for number in range(1, count + 1)))
    paths = _written(rows, path, opened.provenance, say, titles)
    ratios = tuple(float(f"{ratio:.3f}") for ratio in near.ratios.tolist())
    suspicious = tuple(row for row, ratio in enumerate(ratios, 1) if ratio < COPIED)
    say(
        f"nearest: a sample is {min(ratios):.2f} to {max(ratios):.2f} times as far from its nearest training picture "
        f"as {'two training pictures usually are' if pictures.held_out is None else 'pictures are that were held out'}"
        + (f"; rows {', '.join(map(str, suspicious))} look copied" if suspicious else "; none looks copied")
    )
    return MemorisationCheck(paths, ratios, suspicious)
