"""A generator to play with: prepared once, then asked for pictures of seeds, moved, mixed, on the way to each other."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract.family import LatentSpace, Noise
from frugan.engine.plan import Layout
from frugan.engine.run.checkpoint import list_checkpoints
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.run.tensor_files import read_tensors, write_tensors
from frugan.engine.state.working_weights import prepared_together
from frugan.errors import BadInput, checked
from frugan.progress import Say, quiet
from frugan.recipe.recipe import Recipe
from frugan.sampling.directions import METHODS, Directions, Method, find, weights_digest
from frugan.sampling.generators import Opened, default_micro_batch, open_networks
from frugan.setup.networks import Weights

LATENTS_FORMAT = "frugan latents"
MOST_POINTS = 10_000
"""Largest number of points in a file, which is also the largest grid."""


@dataclass(frozen=True)
class Points:
    """Places in a latent space, each of which is a picture."""

    vectors: Tensor  # [N, layers, size], fp32, on the host
    shares: Tensor | None = None  # class shares [N, classes]; None: there are no classes

    def __len__(self) -> int:
        """Number of points."""
        return len(self.vectors)

    def __getitem__(self, which: slice | Sequence[int]) -> Self:
        """Select points."""
        return replace(self, vectors=self.vectors[which], shares=None if self.shares is None else self.shares[which])

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Join points, one part after the other."""
        shares = [part.shares for part in parts if part.shares is not None]
        return cls(torch.cat([part.vectors for part in parts]), torch.cat(shares) if shares else None)

    def on_host(self) -> Self:
        """Return a copy on the host, outside the graph of gradients."""
        shares = None if self.shares is None else self.shares.detach().cpu()
        return replace(self, vectors=self.vectors.detach().clone().cpu().contiguous(), shares=shares)

    def moved(self, shift: Tensor) -> Self:
        """Return the points shifted by `Directions.shift` [layers, size]."""
        return replace(self, vectors=self.vectors + shift)

    def mixed(self, other: Self, layers: Sequence[int]) -> Self:
        """Return the points with another's vectors in some layers."""
        vectors = self.vectors.clone()
        vectors[:, list(layers)] = other.vectors[:, list(layers)]
        return replace(self, vectors=vectors)

    def walk(self, count: int) -> Self:
        """Return `count` points on straight lines from each of these points to the next, both ends included."""
        place = torch.linspace(0, len(self) - 1, count)
        before = place.floor().long().clamp(max=max(0, len(self) - 2))  # [count]
        after = (before + 1).clamp(max=len(self) - 1)
        share = place - before

        def between(values: Tensor) -> Tensor:
            return torch.lerp(values[before], values[after], share.view(-1, *[1] * (values.ndim - 1)))

        return replace(
            self, vectors=between(self.vectors), shares=None if self.shares is None else between(self.shares)
        )


@dataclass
class Explorer:
    """Draws points of the latent space of a run's generator; see `explore`."""

    opened: Opened
    digest: str  # digest of the generator's weights
    layout: Layout  # layout that the networks are prepared in at present
    micro_batch: int  # pictures in one forward
    _prepared: ExitStack = field(default_factory=ExitStack)

    @property
    def recipe(self) -> Recipe:
        """Recipe that the generator was trained by."""
        return self.opened.recipe

    @cached_property
    def device(self) -> torch.device:
        """Device of the networks."""
        return next(self.opened.networks[self.space.network].parameters()).device

    @property
    def space(self) -> LatentSpace:
        """Latent space of the prepared networks."""
        return space_of(self.recipe, self.opened.networks)

    def prepare(self, layout: Layout) -> None:
        """Prepare the networks in another precision, if they are not in it already."""
        if layout != self.layout:
            self._prepared.close()
            self.layout = layout
            self._prepared.enter_context(prepared_together(self.opened.networks, layout))

    @contextmanager
    def in_full(self) -> Iterator[None]:
        """Inside, the networks are in fp32: what is found does not depend on the machine's precision."""
        before = self.layout
        self.prepare(Layout())
        try:
            yield
        finally:
            self.prepare(before)

    @torch.no_grad()
    def seeds(
        self,
        seeds: Sequence[int],
        classes: Sequence[int] | None = None,
        *,
        truncation: float = 1.0,
        psi: float = 1.0,
        psi_layers: int | None = None,
    ) -> Points:
        """Points of seeds, class by class: the latents that NVlabs' programs draw for these numbers.

        Args:
            seeds: from 0 to 2^32 - 1.
            classes: of each seed in turn; None: class 0, where there are classes.
            truncation, psi, psi_layers: see `GridRequest`.

        Raises:
            BadInput: shorter latents are asked for of networks that take no notice of their length.
        """
        space, count = self.space, len(seeds)
        if truncation != 1 and space.mean is not None:
            raise BadInput(
                f"truncation {truncation:g}: scales latents, whose length {self.recipe.family} takes no notice of; psi "
                "moves its styles towards the mean one"
            )
        drawn = np.concatenate([np.random.RandomState(seed).randn(1, space.latent_size) for seed in seeds])
        chosen = list(classes) if classes is not None and space.classes else [0]
        z = torch.from_numpy(drawn).float().repeat(len(chosen), 1) * truncation  # [classes*N, latent]
        labels = torch.tensor(chosen).repeat_interleave(count)
        shares = F.one_hot(labels, space.classes).float() if space.classes else None
        vectors = space.place(z.to(self.device), None if shares is None else shares.to(self.device)).float()
        ws = vectors[:, None].repeat(1, space.layers, 1)  # [classes*N, layers, size]
        if psi != 1 and space.mean is not None:
            ws[:, :psi_layers] = torch.lerp(space.mean.to(ws), ws[:, :psi_layers], psi)
        return Points(ws.cpu(), None if space.class_free else shares)

    @torch.no_grad()
    def draw(self, points: Points, noise: Noise = "const", seed: int = 0) -> Tensor:
        """Pictures of points [N, C, R, R] in [-1, 1], fp32 on the host.

        Args:
            noise: what layers add, of networks that add any.
            seed: of random noise.
        """
        space, random = self.space, torch.Generator().manual_seed(seed)
        pictures = []
        for at in range(0, len(points), self.micro_batch):
            part = points[at : at + self.micro_batch]
            shares = None if part.shares is None else part.shares.to(self.device)
            pictures.append(space.draw(part.vectors.to(self.device), shares, noise, random).float().cpu())
        return torch.cat(pictures)

    def directions(self, source: str | Path, classes: Sequence[int] | None = None) -> Directions:
        """Find directions, or read them.

        Args:
            source: "sefa", "pca", either with " layers=0-3" behind it, or a file.
            classes: that samples are drawn of, for "pca"; None: all.

        Raises:
            BadInput: no such method, file or layers, or directions of other weights.
        """
        method, layers = parse_directions(str(source), self.space)
        if method is None:
            return Directions.read(Path(source), self.digest, self.space)
        with self.in_full():
            return find(method, self.space, self.digest, layers, classes, self.device)

    def finds(self, source: str | Path) -> bool:
        """Return whether `directions` computes them instead of reading a file."""
        return parse_directions(str(source), self.space)[0] is not None

    def write(self, points: Points, path: Path, about: Mapping[str, str] | None = None) -> None:
        """Write points to a file that `read` reads."""
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {"vectors": points.vectors} | ({} if points.shares is None else {"shares": points.shares})
        told = {"format": LATENTS_FORMAT, "weights": self.digest, "space": self.space.name, **(about or {})}
        told["step"] = str(self.opened.weights.step)
        write_tensors(path, tensors, told)

    def read(self, path: str | Path) -> Points:
        """Read points that `write` wrote.

        Raises:
            BadInput: no such file, another kind, damaged, or points of other weights.
        """
        tensors, about = read_tensors(Path(path))
        if about.get("format") != LATENTS_FORMAT or not tensors.keys() <= {"vectors", "shares"}:
            raise BadInput(f"--latents {path}: no file of latents; `frugan sample RUN --project PICTURE` writes one")
        if about.get("weights") != self.digest:
            raise BadInput(
                f"--latents {path}: of other weights ({about.get('weights', '')[:8]}; these are {self.digest[:8]}), "
                f"where they would be other pictures; {self._cure(about.get('step', ''))}"
            )
        return _points(tensors, self.space, f"--latents {path}: damaged")

    def _cure(self, step: str) -> str:
        """Say what to do with points of other weights, by the step in their file; empty: it has none."""
        again = "project them again, best when the training is over"
        run = RunFolder.holding(self.opened.weights.path)
        if run is None or not step.isdecimal():
            return again
        kept = [each for folder in (run.checkpoints, run.backups, run.best) for each in list_checkpoints(folder)]
        for checkpoint in kept:
            if checkpoint.step == int(step):
                path = shlex.quote(str(checkpoint.path))
                return f"they are of step {step}: if it was of this run, take {path} in place of it; else {again}"
        return f"they are of step {step}, which the run has no checkpoint of; {again}"


def _points(tensors: Mapping[str, Tensor], space: LatentSpace, damaged: str) -> Points:
    """Make points of a file's tensors.

    Raises:
        BadInput: their shapes are not those of the space, or they are not finite; the message begins with `damaged`.
    """
    vectors, shares = tensors.get("vectors"), tensors.get("shares")
    if vectors is None or vectors.shape[1:] != (space.layers, space.size) or not 0 < len(vectors) <= MOST_POINTS:
        raise BadInput(f"{damaged}: expected vectors [n, {space.layers}, {space.size}]")
    expected = None if space.class_free else (len(vectors), space.classes)
    if (None if shares is None else tuple(shares.shape)) != expected:
        raise BadInput(f"{damaged}: expected shares [n, {expected and expected[1]}] beside its vectors")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise BadInput(f"{damaged}: it holds values that are not finite")
    return Points(vectors.float(), None if shares is None else shares.float())


def parse_directions(text: str, space: LatentSpace) -> tuple[Method | None, tuple[int, ...]]:
    """Read "sefa", "pca layers=0-3": a method and the layers it is for; None: it is the name of a file.

    Raises:
        BadInput: layers that are none.
    """
    word, _, rest = text.strip().partition(" ")
    if word not in METHODS:
        return None, ()
    every = tuple(range(space.layers))
    if not rest.strip():
        return word, every  # type: ignore[return-value]
    name, _, numbers = rest.strip().partition("=")
    chosen = _layers(numbers) if name == "layers" else None
    if not chosen or not set(chosen) <= set(every):
        raise BadInput(
            f"--directions {text[:80]!r}: expected {word}, or '{word} layers=0-3' with some of the layers 0 to "
            f"{space.layers - 1}"
        )
    return word, chosen  # type: ignore[return-value]


def _layers(text: str) -> tuple[int, ...] | None:
    """Read "0,2-4"; None: it is no such list."""
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() and len(end) < 4 for end in ends):
            return None
        chosen.update(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(sorted(chosen))


def space_of(recipe: Recipe, networks: Mapping[str, torch.nn.Module]) -> LatentSpace:
    """The latent space of a family's networks.

    Raises:
        BadInput: it has none.
    """
    space = recipe.kind.latent_space(recipe.networks, networks)
    if space is None:
        raise BadInput(
            f"{recipe.family}: has no latent space to look around in"
            + (": it makes pictures of given ones" if recipe.shows_given else "")
        )
    return space


@contextmanager
@checked
def explore(source: str | Path | Weights, *, device: str = "auto", say: Say = quiet) -> Iterator[Explorer]:
    """Open a generator to play with; its networks stay prepared while the block is open.

    Args:
        source: run, checkpoint or weights file.
        device: "auto", "cpu", "cuda" or "cuda:1".
        say: is given a line for every automatic choice.

    Raises:
        BadInput: no such weights, or of a family without a latent space.
    """
    weights = Weights.open(source, say)
    space_of(weights.recipe, weights.recipe.kind.build(weights.recipe.networks, "meta"))  # before anything is read
    with exploring(open_networks(weights, device, say)) as explorer:
        yield explorer


@contextmanager
def exploring(opened: Opened, micro_batch: int | None = None) -> Iterator[Explorer]:
    """Explore networks that are open already."""
    digest = weights_digest(opened.networks[space_of(opened.recipe, opened.networks).network])
    with ExitStack() as prepared:
        prepared.enter_context(prepared_together(opened.networks, opened.layout))
        most = default_micro_batch(opened.weights) if micro_batch is None else micro_batch
        explorer = Explorer(opened, digest, opened.layout, most, prepared)
        yield explorer
