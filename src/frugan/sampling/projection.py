"""Projection: the place in a generator's latent space whose picture is nearest to a given one."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from frugan.contract.family import LatentSpace
from frugan.data.formats.decoding import Reading, background, luma, read_picture
from frugan.data.formats.source import Unreadable
from frugan.data.picture_needs import PictureNeeds
from frugan.data.survey import Fitting
from frugan.errors import BadInput, checked
from frugan.files import Folders, refuse_existing
from frugan.metrics.perceptual import SMALL, WITHOUT_CODE, Distance, choose_distance
from frugan.progress import PROJECTION_STEPS, Progress, Say
from frugan.recipe.recipe import Recipe
from frugan.reporting.grids import write_grid
from frugan.reporting.sample_files import FRAMES_PER_SECOND, write_animation
from frugan.sampling.explorer import Explorer, Points, exploring
from frugan.sampling.films import check_film, side_by_side
from frugan.sampling.generation import pixels
from frugan.sampling.generators import open_networks
from frugan.sampling.provenance import named, retold_projection
from frugan.setup.networks import Weights

SAFE_FEATURES: tuple[str, ...] = WITHOUT_CODE
"""Features that a page may request: they run no code from a file."""
MOST_STEPS = 100_000
RATE = 0.1
RISE = 0.05
"""Share of the steps in which the learning rate rises linearly."""
FALL = 0.25
"""Share of the steps in which the learning rate falls as a cosine."""
NOISE = 0.05
"""Deviation of the noise on vectors at first, as a share of the vectors' own deviation."""
NOISY = 0.75
"""Share of the steps in which this noise fades out."""
CANDIDATES = 48
"""Random points that are tried before the first step."""
STARTS = 4
"""Number of the nearest of them that the search starts from."""
FULL_SIDE = 64
"""Side of pictures up to which that many are tried; of larger pictures, which take longer, fewer in proportion."""
CERTAIN = 0.9
"""Share of its class that a candidate begins with, so that others may still win."""
CALM = 1e-3
"""Weight of a latent's mean square: long latents are unlike any that the generator was trained with."""

TITLES = ("given", "mean", "found")
SHOWN_EVERY = 10
"""Steps from one picture that is shown to the next."""
WAY_POINTS = 128
"""Places of a search that are kept at most; a film of more frames walks between them."""


LEAST_REDUCED = 4
"""Pixels a side of the smallest copy of the given picture that tells how near something is; each further has twice."""
NEAR = 0.25
"""Part of the picture's side: what is as near as a copy of so many pixels is called near. Pictures of generators of 32
and 64 pixels that were found again were at least as near, and smears of the right colours were not."""
FAR = 0.7
"""Part of the mean picture's distance above which what was found is hardly nearer."""


@dataclass(frozen=True)
class Projection:
    """Result of a projection."""

    points: Points  # the point that was found
    target: Tensor  # the given picture, fitted [C, R, R] in [-1, 1]
    start: Tensor  # picture of the mean vector, and of all classes in equal shares [C, R, R]
    picture: Tensor  # picture of the point [C, R, R]
    before: float  # distance of `start` from the target
    after: float  # distance of `picture` from the target
    # pixels a side -> distance of the target reduced to them and enlarged again; smallest first
    reduced: Mapping[int, float]
    features: str  # features by which distances are measured
    space: str  # "w", "w+", "z"
    steps: int
    # places of the search on the host: the mean vector, then those of the start that was followed to the end
    way: Points

    @property
    def told(self) -> dict[str, str]:
        """Metadata for the file of the point."""
        return {
            "searched": self.space,
            "features": self.features,
            "steps": str(self.steps),
            "distance": f"{self.after:.6g}",
            "distance_of_mean": f"{self.before:.6g}",
        }

    @property
    def nearness(self) -> str:
        """Say how near what was found is, by copies of the given picture with few pixels, which people can imagine."""
        side = max((side for side, distance in self.reduced.items() if self.after <= distance), default=0)
        if side >= max(LEAST_REDUCED, NEAR * self.target.shape[-1]):
            near = "near"
        elif self.after > FAR * self.before:
            near = "hardly nearer than the mean picture"
        else:
            near = "somewhat alike" if side else "hardly alike"
        by = f"about as near as yours reduced to {side} x {side} pixels"
        if not side:
            by = f"farther than yours reduced to {LEAST_REDUCED} x {LEAST_REDUCED} pixels"
        distances = f"distance {self.after:.3g}, that of the mean picture {self.before:.3g}"
        return f"{near}: {by} ({distances}; features: {self.features})"

    def walk(self, count: int) -> Points:
        """Return `count` points along the search; the way from the mean to its start is a sixth of them."""
        to_start = max(1, count // 6)
        return Points.joined([self.way[:2].walk(to_start + 1)[:-1], self.way[1:].walk(count - to_start)])


def read_fitted(file: Path | BinaryIO, recipe: Recipe) -> Tensor:
    """A picture from a file as training would see it: cropped or padded, resized, grey where the networks are.

    Returns:
        [C, R, R] in [-1, 1].

    Raises:
        BadInput: it cannot be decoded, is a decompression bomb, or the recipe is of other data.
    """
    name = file if isinstance(file, Path) else "picture"
    data, need = recipe.data, next(iter(recipe.sources.values()))
    if not isinstance(need, PictureNeeds):
        raise BadInput(f"{recipe.family}: is not trained on pictures, so there is none to look for in it")
    try:
        on = background(data.background)
        decoded = read_picture(file, Reading(on, data.range))
    except Unreadable as error:
        raise BadInput(f"{name}: cannot be read: {error}") from error
    fitting = Fitting(need.resolution, data.resample, allow_upscale=True, background=on, fit=data.fit)
    levels = fitting(decoded)  # [3, R, R]
    levels = luma(levels) if need.channels == 1 else levels
    return torch.from_numpy(np.ascontiguousarray(levels)).float().div(127.5).sub(1)


def search(
    explorer: Explorer,
    target: Tensor,
    *,
    steps: int = PROJECTION_STEPS,
    space: str | None = None,
    features: str = SMALL,
    progress: Progress | None = None,
    shown: Callable[[Tensor], None] | None = None,
) -> Projection:
    """Look for the place whose picture is nearest to a given one.

    Several starts are followed at once, fewer as it goes on: those of the mean vector and of random points that are
    nearest. Adam, its rate rising and falling, with some noise on the vectors in the first three quarters. Layers' own
    noise stays as it is, so there is none to be optimised or regularised.

    Args:
        target: [C, R, R] in [-1, 1].
        steps: of the optimisation.
        space: "w" (one vector for all layers), "w+" (one for each) or "z"; None: the first that the generator has.
        features: that distances are measured in, see `choose_distance`.
        progress: is given (done, all) after each step.
        shown: is given the nearest picture [C, R, R] now and then.

    Raises:
        BadInput: a space that there is not, or features.

    Source: Karras et al. 2020 (arXiv 1912.04958), appendix D.
    """
    if not 1 <= steps <= MOST_STEPS:
        raise BadInput(f"--steps {steps}: expected 1 to {MOST_STEPS:,}")
    known = spaces(explorer.space)
    if space is not None and space not in known:
        raise BadInput(f"--space {space}: expected {' or '.join(known)}")
    measure = choose_distance(features, Folders.from_environment().cache, explorer.device)
    with explorer.in_full():  # in half precision gradients of single pictures are lost
        distance = measure.to(target[None].to(explorer.device))
        points = _Search(explorer, distance, space or known[0])
        reduced = reduced_distances(target.to(explorer.device), distance)
        found, after = points.run(steps, progress, shown)
        at_first, at_last = (explorer.draw(point)[0] for point in (points.first, found))
    way = Points.joined([points.first.on_host(), *points.way, found])
    before, name = points.before, space or known[0]
    return Projection(found, target, at_first, at_last, before, after, reduced, measure.name, name, steps, way)


@torch.no_grad()
def reduced_distances(target: Tensor, distance: Distance) -> dict[int, float]:
    """Distances of a picture [C, R, R] from copies of it with few pixels, by their side."""
    size = target.shape[-1]
    sides = list(itertools.takewhile(lambda side: side < size, (LEAST_REDUCED << times for times in itertools.count())))
    small = (F.adaptive_avg_pool2d(target[None], side) for side in sides)
    copies = (F.interpolate(copy, size=(size, size), mode="bicubic", align_corners=False) for copy in small)
    return {side: float(distance(copy.clamp(-1, 1))) for side, copy in zip(sides, copies, strict=True)}


@checked
def project(
    source: str | Path | Weights,
    pictures: Sequence[str | Path],
    out: str | Path,
    *,
    space: str | None = None,
    steps: int = PROJECTION_STEPS,
    features: str = SMALL,
    animate: str | None = None,
    frames: int = 48,
    replace_files: bool = False,
    device: str = "auto",
    say: Say = print,
    progress: Progress | None = None,
) -> list[Path]:
    """Look for pictures in a generator's latent space, and write what was found.

    Args:
        source: run, checkpoint or weights file, or what `Weights.open` made of one.
        pictures: files; each is fitted as the recipe fits its training pictures.
        out: folder for projections.png (each picture, what the search began with, and what it found) and, named after
            each picture, the latents of what was found: for `DrawRequest.latents`.
        space: see `search`.
        steps: see `search`.
        features: see `search`.
        animate: name of a film in `out` of the searches, a row for each picture, which stands beside it; ends in .gif,
            .webp or .mp4.
        replace_files: files of these names may be in the folder.
        frames: of the film, to which a second is added that shows its end.
        device: "auto", "cpu", "cuda" or "cuda:1".
        say: is given a line for every automatic choice, and the distances.
        progress: (done, all) of the steps of all pictures.

    Returns:
        The grid, the files of latents, and the film.

    Raises:
        BadInput: no such weights or pictures, two of one name, another kind of film, a file is there already, or as
            `search`.
    """
    files = [Path(picture) for picture in pictures]
    stems = [file.stem for file in files]
    if not files or len(set(stems)) < len(stems):
        raise BadInput(f"--project {', '.join(map(str, pictures))}: expected pictures, each of a name of its own")
    if animate is not None:
        check_film(Path(out) / animate, frames)
    folder = Path(out)
    for name in ("projections.png", *(f"{stem}.safetensors" for stem in stems), *filter(None, [animate])):
        refuse_existing(folder / name, replace=replace_files, argument="replace_files")
    opened = open_networks(source, device, say)
    with exploring(opened) as explorer:
        targets = [read_fitted(file, opened.recipe) for file in files]
        choice = {"space": space, "steps": steps, "features": features}
        choice |= {"animate": animate, "frames": frames}
        told = retold_projection(named(source), files, out, opened.weights.step, choice)
        found_of, paths, lines = list[Projection](), list[Path](), list[str]()
        for number, (file, target) in enumerate(zip(files, targets, strict=True)):

            def all_steps(done: int, of: int, before: int = number) -> None:
                if progress is not None:
                    progress(before * of + done, len(files) * of)

            found = search(explorer, target, space=space, steps=steps, features=features, progress=all_steps)
            lines.append(f"{file}: {found.nearness}, in {found.space} after {found.steps} steps")
            paths.append(folder / f"{file.stem}.safetensors")
            explorer.write(found.points, paths[-1], found.told)
            found_of.append(found)
        about = opened.provenance | told
        if animate is not None:
            paths.append(_write_film(explorer, found_of, folder / animate, frames, about))
    for line in lines:  # now: a progress bar was there
        say(line)
    rows = [torch.stack([found.target, found.start, found.picture]) for found in found_of]
    about["Description"] = f"given pictures, and what is nearest to them; {about['Description']}"
    sheet = folder / "projections.png"
    return [*write_grid(torch.stack(rows), sheet, about, titles=TITLES, labels=stems), *paths]


def _write_film(
    explorer: Explorer, projections: Sequence[Projection], path: Path, frames: int, about: Mapping[str, str]
) -> Path:
    """Write a row for each search: what it is at beside the given picture, drawn frame by frame."""
    walks = [projection.walk(frames) for projection in projections]

    def drawn() -> Iterator[NDArray[np.uint8]]:
        for number in (*range(frames), *[frames - 1] * FRAMES_PER_SECOND):
            pictures = explorer.draw(Points.joined([walk[[number]] for walk in walks]))
            pairs = [torch.stack([at, of.target]) for at, of in zip(pictures, projections, strict=True)]
            yield side_by_side(pixels(torch.cat(pairs)).numpy(), columns=2)

    with explorer.in_full():  # as the search drew them
        write_animation(drawn(), path, about)
    return path


def spaces(space: LatentSpace) -> list[str]:
    """Names of those that are searched: one vector for all layers, and where there are several layers one for each."""
    return [space.name, f"{space.name}+"] if space.layers > 1 else [space.name]


class _Search:
    """An optimisation of a few points at once, fewer as it goes on.

    Args:
        distance: to the picture.
        name: of the space.
    """

    def __init__(self, explorer: Explorer, distance: Distance, name: str) -> None:
        self.explorer, self.distance, self.space = explorer, distance, explorer.space
        self.way: list[Points] = []  # places of the start that was followed to the end, up to the last step
        vectors, shares = self._candidates()
        self.calm = CALM if self.space.mean is None else 0.0
        self.deviation = float(vectors[1:].std(0).mean())
        every = Points(vectors[:, None].expand(-1, self.space.layers, -1), shares)
        far = self._measured(every)
        self.first, self.before = every[:1], float(far[0])
        layers = self.space.layers if name.endswith("+") else 1
        nearest = far.argsort()[:STARTS].tolist()
        self.vectors = [vectors[at].repeat(layers, 1).requires_grad_() for at in nearest]  # [layers, size] each
        self.logits = [] if shares is None else [(shares[at] + 1e-9).log().requires_grad_() for at in nearest]

    @torch.no_grad()
    def _candidates(self) -> tuple[Tensor, Tensor | None]:
        """The mean vector and random ones [1 + N, size]; and shares of classes [1 + N, classes]: all alike, or mostly
        one; None where vectors hold their class."""
        space, device = self.space, self.explorer.device
        random = torch.Generator().manual_seed(0)
        count = max(STARTS, min(CANDIDATES, CANDIDATES * FULL_SIDE // self.explorer.recipe.resolution))
        z = torch.randn(count, space.latent_size, generator=random).to(device)
        shares = None
        if space.classes:
            labels = torch.randperm(max(count, space.classes), generator=random)[:count] % space.classes
            shares = F.one_hot(labels, space.classes).float().to(device)
        vectors = space.place(z, shares).float()
        mean = torch.zeros(space.size, device=device) if space.mean is None else space.mean.to(device)
        if shares is None or space.class_free:
            return torch.cat([mean[None], vectors]), None
        alike = torch.full_like(shares[:1], 1 / space.classes)
        return torch.cat([mean[None], vectors]), torch.cat([alike, alike.lerp(shares, CERTAIN)])

    @torch.no_grad()
    def _measured(self, points: Points) -> Tensor:
        """Distances of points [N]."""
        at_once = self.explorer.micro_batch
        parts = [points[at : at + at_once] for at in range(0, len(points), at_once)]
        return torch.cat([self.distance(self._drawn(part)) for part in parts])

    def _drawn(self, points: Points) -> Tensor:
        return self.space.draw(points.vectors, points.shares, "const", None)

    def _points(self, which: Sequence[int], noise: float = 0.0, random: torch.Generator | None = None) -> Points:
        """Some of the moving points, with noise of a deviation."""
        vectors = torch.stack([self.vectors[at] for at in which])  # [n, layers or 1, size]
        if noise:
            vectors = vectors + noise * torch.randn(vectors.shape, generator=random).to(vectors)
        shares = torch.stack([self.logits[at] for at in which]).softmax(1) if self.logits else None
        return Points(vectors.expand(-1, self.space.layers, -1), shares)

    def run(
        self, steps: int, progress: Progress | None, shown: Callable[[Tensor], None] | None
    ) -> tuple[Points, float]:
        """The nearest point found, and its distance."""
        random = torch.Generator().manual_seed(0)
        optimizer = torch.optim.Adam(
            [{"params": self.vectors, "scale": self.deviation}, {"params": self.logits, "scale": 1.0}]
            if self.logits
            else [{"params": self.vectors, "scale": self.deviation}]
        )
        alive = list(range(len(self.vectors)))
        kept: list[dict[int, Points]] = []
        for step in range(steps):
            done = step / steps
            for group in optimizer.param_groups:
                group["lr"] = RATE * group["scale"] * _ramp(done)
            if step % -(-steps // WAY_POINTS) == 0:
                kept.append({at: self._points([at]).on_host() for at in alive})
            points = self._points(alive, NOISE * self.deviation * max(0.0, 1 - done / NOISY) ** 2, random)
            pictures = self._drawn(points)
            far = self.distance(pictures)  # [n]
            loss = far.sum() + self.calm * points.vectors.square().mean((1, 2)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            order = far.argsort().tolist()
            if shown is not None and step % SHOWN_EVERY == 0:
                shown(pictures[order[0]].detach().cpu())
            keep = STARTS if done < 0.25 else STARTS // 2 if done < 0.5 else 1
            alive = [alive[at] for at in order[:keep]]
            if progress is not None:
                progress(step + 1, steps)
        with torch.no_grad():
            found = self._points(alive)
            far = self._measured(found)
        best = int(far.argmin())
        self.way = [places[alive[best]] for places in kept]
        return found[best : best + 1].on_host(), float(far[best])


def _ramp(done: float) -> float:
    """The learning rate's share of its largest, when a share of the steps is done."""
    falling = min(1.0, (1 - done) / FALL)
    return min(1.0, (done + 1e-3) / RISE) * (0.5 - 0.5 * math.cos(falling * math.pi))
