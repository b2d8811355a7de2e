"""Directions of a generator's latent space: found in its weights or among its samples, named, kept in a file.

Sources: Shen and Zhou 2020 (arXiv 2007.06600), closed-form factorisation; Härkönen et al. 2020 (arXiv 2004.02546),
principal components.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.family import LatentSpace
from frugan.engine.streams import derive_seed
from frugan.errors import BadInput, OtherWeights
from frugan.files import atomic_file, read_json
from frugan.wording import first_names, nearest, shown

Method = Literal["sefa", "pca"]
METHODS: tuple[str, ...] = get_args(Method)
FORMAT = "frugan directions"
MOST_FOUND = 64
"""Directions that are kept of those found: the later ones change next to nothing."""
MOST_NAME = 60
FOUND_NAME = re.compile(rf"({'|'.join(METHODS)})-\d+")
"""Names that `find` gives, as opposed to those that a person chose."""
ALIKE = 0.999
"""Cosine from which on two directions are one."""


@dataclass(frozen=True)
class Direction:
    """One way to move vectors."""

    name: str
    layers: tuple[int, ...]  # layers whose vectors it moves, counted from 0
    deviation: float  # standard deviation of the generator's own vectors along it: what moves are counted in
    vector: Tensor  # vector of length 1 [size], fp32, on the host

    def is_along(self, other: Self) -> bool:
        """Return whether both move the same layers along the same line, in either sense."""
        return self.layers == other.layers and abs(float(self.vector @ other.vector)) > ALIKE


@dataclass(frozen=True)
class Directions:
    """Directions of one generator."""

    weights: str  # digest of the weights that they were found in
    space: str  # name of the space: "z", "w"
    method: str  # method by which they were found
    entries: tuple[Direction, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Direction]:
        return {direction.name: direction for direction in self.entries}

    def __getitem__(self, name: str) -> Direction:
        """Find one.

        Raises:
            BadInput: there is none of this name.
        """
        if name not in self.by_name:
            names = list(self.by_name)
            raise BadInput(
                f"no direction is called {shown(name)[:MOST_NAME]!r}{nearest(name, names)}; "
                f"there are {first_names(names, 8)}"
            )
        return self.by_name[name]

    def shift(self, moves: Mapping[str, float], layers: int) -> Tensor:
        """Return what moves add to vectors [layers, size].

        Args:
            moves: name -> standard deviations.
            layers: of the latent space.

        Raises:
            BadInput: there is no direction of a name.
        """
        added = torch.zeros(layers, len(self.entries[0].vector))
        for name, amount in moves.items():
            direction = self[name]
            added[list(direction.layers)] += amount * direction.deviation * direction.vector
        return added

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Return a copy in which old names are replaced by new ones.

        Raises:
            BadInput: no direction of an old name, or two of one new name.
        """
        for old in names:
            _ = self[old]
        directions = tuple(
            replace(direction, name=names.get(direction.name, direction.name)) for direction in self.entries
        )
        _check_names([direction.name for direction in directions], "directions")
        return replace(self, entries=directions)

    def beside(self, before: Self) -> Self:
        """These behind those of before that somebody has named, which are not lost when others are found."""
        named = [direction for direction in before.entries if not FOUND_NAME.fullmatch(direction.name)]
        new = [direction for direction in self.entries if not any(direction.is_along(other) for other in named)]
        return replace(self, entries=(*named, *new))

    def write(self, path: Path) -> None:
        """Write a JSON file, a line for each direction, its name first: it may be changed there by hand."""
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"format": FORMAT, "weights": self.weights, "space": self.space, "method": self.method}
        entries = [
            {
                "name": direction.name,
                "layers": list(direction.layers),
                "deviation": direction.deviation,
                "vector": [float(f"{value:.8g}") for value in direction.vector.tolist()],
            }
            for direction in self.entries
        ]
        head = json.dumps(about, ensure_ascii=False)[:-1]
        lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
        with atomic_file(path) as beside:
            beside.write_text(f'{head},\n"directions": [\n{lines}\n]}}\n', encoding="utf-8")

    @classmethod
    def read(cls, path: Path, weights: str, space: LatentSpace) -> Self:
        """Read what `write` wrote.

        Args:
            weights: digest of those that it shall be used with.
            space: of them.

        Raises:
            BadInput: no such file, another kind, or damaged.
            OtherWeights: they were found in others.
        """
        if not path.is_file():
            raise BadInput(
                f"--directions {path}: no such file; expected sefa, pca, or a file that either of them wrote"
            )

        def damaged(why: str) -> BadInput:
            return BadInput(f"{path}: no file of directions, or a damaged one ({why}); --directions sefa writes one")

        values = read_json(path, damaged)
        if values.get("format") != FORMAT:
            raise damaged(f"its format is not {FORMAT!r}")
        if values.get("weights") != weights or values.get("space") != space.name:
            raise OtherWeights(
                f"{path}: directions of other weights ({str(values.get('weights'))[:8]}; these are {weights[:8]}), "
                "where they would mean something else; find new ones with --directions sefa or pca"
            )
        try:
            directions = tuple(_direction(entry, space) for entry in values["directions"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise damaged(str(error)) from error
        if not directions:
            raise damaged("it holds no direction")
        _check_names([direction.name for direction in directions], str(path))
        return cls(weights, space.name, str(values.get("method", "")), directions)


def _direction(entry: Mapping[str, object], space: LatentSpace) -> Direction:
    """One entry of a file.

    Raises:
        ValueError, KeyError, TypeError: it is none of this space.
    """
    name, layers, deviation = entry["name"], entry["layers"], entry["deviation"]
    vector = torch.tensor(entry["vector"], dtype=torch.float32)
    if not isinstance(name, str) or not name.strip() or len(name) > MOST_NAME or not name.isprintable():
        raise ValueError(f"name {str(name)[:MOST_NAME]!r}: expected 1 to {MOST_NAME} letters")
    if not isinstance(layers, list) or not set(layers) <= set(range(space.layers)) or not layers:
        raise ValueError(f"{name}: layers {str(layers)[:80]}; expected some of 0 to {space.layers - 1}")
    if not isinstance(deviation, int | float) or not (0 < deviation < math.inf):
        raise ValueError(f"{name}: deviation {deviation!r}; expected a number above 0")
    if vector.shape != (space.size,) or not bool(torch.isfinite(vector).all()):
        raise ValueError(f"{name}: expected {space.size} finite numbers as its vector")
    return Direction(name, tuple(layers), float(deviation), vector)


def _check_names(names: Sequence[str], where: str) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"{where}: two directions are called {shown(twice[0])!r}; names tell them apart")


def weights_digest(network: nn.Module) -> str:
    """Return the SHA-256 of a network's parameters, whichever file they came from."""
    hashed = sha256()
    for name, parameter in sorted(network.named_parameters()):
        hashed.update(name.encode())
        hashed.update(parameter.detach().float().cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()


# Finding directions.

SAMPLES_OF_VECTORS = 10_000
"""Pairs of vectors that deviations and principal components are taken from."""
SAMPLES_OF_ACTIVATIONS = 4096
"""Pairs where a part of the network has to run for each; at least eight for each number of a latent."""
ACTIVATIONS_AT_ONCE = 64
"""Pairs in one forward pass."""
SIDE_OF_ACTIVATIONS = 4
"""Pixels that activations are averaged to."""


@dataclass(frozen=True)
class Pairs:
    """Random pairs of vectors of one class each: their differences vary as vectors do within their class."""

    first: Tensor  # [N, size]
    second: Tensor  # [N, size]
    shares: Tensor | None  # class shares of the pairs [N, classes]

    @classmethod
    @torch.no_grad()
    def draw(cls, space: LatentSpace, count: int, classes: Sequence[int] | None, device: torch.device) -> Self:
        """Draw pairs, always the same.

        Args:
            classes: that they are of; None: any.
        """
        random = torch.Generator().manual_seed(derive_seed(0, "pairs of latents", count))
        shares = None
        if space.classes:
            choices = torch.tensor(list(classes)) if classes is not None else torch.arange(space.classes)
            labels = choices[torch.randint(len(choices), (count,), generator=random)]
            shares = F.one_hot(labels, space.classes).float().to(device)
        z = torch.randn(2, count, space.latent_size, generator=random).to(device)
        first, second = (space.place(latents, shares).float() for latents in z)
        return cls(first, second, shares)

    @property
    def differences(self) -> Tensor:
        """[N, size], with the covariance that vectors have within a class."""
        return (self.first - self.second) / math.sqrt(2)

    def deviations(self, vectors: Tensor) -> list[float]:
        """Standard deviation along each of some vectors [M, size] of length 1."""
        return [
            float(deviation) for deviation in (self.differences @ vectors.T).square().mean(0).sqrt().clamp(min=1e-6)
        ]


@torch.no_grad()
def find(
    method: Method,
    space: LatentSpace,
    weights: str,
    layers: Sequence[int],
    classes: Sequence[int] | None,
    device: torch.device,
) -> Directions:
    """Find the directions that change pictures most, in order.

    Args:
        method: "sefa" looks at weights alone; "pca" at what the generator makes of random latents.
        space: of prepared networks.
        weights: digest of the generator's weights.
        layers: whose maps are looked at, and whose vectors the directions move.
        classes: that samples are drawn of; None: all.
        device: where the networks are.
    """
    pairs = Pairs.draw(space, SAMPLES_OF_VECTORS, classes, device)
    if method == "sefa":
        vectors = factorised(space.maps(layers).float())
    elif space.activations is None:
        vectors = principal(pairs.differences)
    else:
        vectors = of_activations(space, space.activations, classes, device)
    vectors = vectors[:MOST_FOUND]
    named = zip(vectors.cpu(), pairs.deviations(vectors), strict=True)
    found = [Direction(f"{method}-{i}", tuple(layers), deviation, v) for i, (v, deviation) in enumerate(named, 1)]
    return Directions(weights, space.name, method, tuple(found))


def factorised(maps: Tensor) -> Tensor:
    """Unit vectors [size, size] that a linear map [outputs, size] makes longest, in order: eigenvectors of its AᵀA.

    Source: Shen and Zhou 2020 (arXiv 2007.06600), equations 5 to 7.
    """
    return _signed(torch.linalg.eigh((maps.T @ maps).double()).eigenvectors.flip(1).T.float())


def principal(differences: Tensor) -> Tensor:
    """Unit vectors [size, size] along which vectors [N, size] of mean 0 vary most, in order."""
    return factorised(differences / math.sqrt(len(differences)))


def of_activations(
    space: LatentSpace,
    activations: Callable[[Tensor, Tensor | None], Tensor],
    classes: Sequence[int] | None,
    device: torch.device,
) -> Tensor:
    """Unit vectors of latents that go with the principal components of what a first block gives [size, size].

    Activations are averaged to 4 x 4 pixels. The latents that belong to each component are found by least squares, and
    made orthogonal in order.

    Source: Härkönen et al. 2020 (arXiv 2004.02546), section 2.2.
    """
    count = max(SAMPLES_OF_ACTIVATIONS, 8 * space.size)
    pairs = Pairs.draw(space, count, classes, device)
    rows = []
    for at in range(0, count, ACTIVATIONS_AT_ONCE):
        part = slice(at, at + ACTIVATIONS_AT_ONCE)
        shares = None if pairs.shares is None else pairs.shares[part]
        both = [_reduced(activations(vectors[part], shares)) for vectors in (pairs.first, pairs.second)]
        rows.append(both[0] - both[1])
    y = torch.cat(rows).cpu()  # [N, F], on the host, whose random stream alone can be lent
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of a stream that the reader of this line has no other hold on
        components = torch.svd_lowrank(y, q=min(space.size, *y.shape), niter=4)[0]  # left singular vectors [N, K]
    # Coordinates on a component are its left singular vector, times a number that only says how long the result is.
    found = (pairs.differences.cpu().T @ components).T  # [K, size]
    return _signed(torch.linalg.qr(found.T.double()).Q.T.float())


def _reduced(activations: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, C·16] at most."""
    values = activations.float()
    if values.ndim == 4 and values.shape[-1] > SIDE_OF_ACTIVATIONS:
        values = F.adaptive_avg_pool2d(values, SIDE_OF_ACTIVATIONS)
    return values.flatten(1)


def _signed(vectors: Tensor) -> Tensor:
    """Rows turned so that their largest number is positive: which end is which is anybody's choice, but kept."""
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    return vectors * largest.sign()
