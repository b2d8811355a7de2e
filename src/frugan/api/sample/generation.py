"""Pictures drawn from a generator by number: the same ones however they are shared out or batched."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from frugan.api.progress import STANDING_BATCHES
from frugan.contract.family import GridRequest, Noise
from frugan.contract.layers import GroupNormalised, Observer, Stateful
from frugan.engine.streams import derive_seed
from frugan.engine.weights import Layout, set_normalisation_batch, working_weights
from frugan.errors import BadInput
from frugan.metrics.scores import Statistics
from frugan.recipe.recipe import Recipe

MOST_PSI = 100
"""Styles that far from the mean one give noise already."""
MOST_SEED_NUMBER = 2**32 - 1
"""Largest number that NumPy's generator takes, by which NVlabs' programs count latents."""


def check_psi(psi: float, layers: int | None, noise: Noise, recipe: Recipe) -> None:
    """Refuse a place of styles that is none, and one of networks that have no styles.

    Raises:
        BadInput: not a number, beyond all use, for no layer, or of a family without a mapping network.
    """
    asked = {"--psi": psi != 1, "--psi-layers": layers is not None, "--noise": noise != "const"}
    if any(asked.values()) and not recipe.kind.styles(recipe.networks):
        named = ", ".join(name for name, given in asked.items() if given)
        raise BadInput(
            f"{named}: {recipe.family} has no mapping network, whose styles this would change; leave it out"
            + ("" if recipe.shows_given else " (--truncation makes latents shorter)")
        )
    if not abs(psi) <= MOST_PSI:
        raise BadInput(f"--psi {psi}: expected a number from -{MOST_PSI} to {MOST_PSI}; 1 is as trained, 0 the mean")
    if layers is not None and layers < 1:
        raise BadInput(f"--psi-layers {layers}: expected at least 1")
    if layers is not None and psi == 1:
        raise BadInput(f"--psi-layers {layers}: says for how many layers --psi holds, which is 1; give --psi too")


def check_numbered(request: GridRequest, recipe: Recipe) -> None:
    """Refuse seeds and mixtures that cannot be drawn.

    Raises:
        BadInput: of a family without styles; numbers out of range, or none; layers that there are not; together.
    """
    mixing = request.mixing
    for option, given in (("--seeds", bool(request.seeds)), ("--style-mixing", mixing is not None)):
        if given and not recipe.kind.styles(recipe.networks):
            raise BadInput(f"{option}: {recipe.family} has no mapping network and no styles; leave it out")
    if mixing is not None and (request.seeds or request.interpolate):
        raise BadInput("--style-mixing: not with --seeds, --interpolate or --animate; run it once for each")
    numbers = {"--seeds": request.seeds}
    if mixing is not None:
        numbers = {"--style-mixing rows": mixing.rows, "--style-mixing cols": mixing.columns}
        if not (mixing.rows and mixing.columns and mixing.layers):
            raise BadInput("--style-mixing: expected a row, a column and a layer at least")
    for option, values in numbers.items():
        for seed in values:
            if not 0 <= seed <= MOST_SEED_NUMBER:
                raise BadInput(f"{option} {seed}: expected a whole number from 0 to {MOST_SEED_NUMBER}")


def extent(request: GridRequest) -> tuple[int, int]:
    """Rows and columns of the grid that a request gives, as far as it says so."""
    if request.mixing is not None:
        return len(request.mixing.rows) + 1, len(request.mixing.columns) + 1
    rows = len(request.classes) if request.classes is not None else 1 if request.seeds else request.rows
    return rows, len(request.seeds) if request.seeds and request.interpolate is None else request.columns


@dataclass(frozen=True)
class GridCaptions:
    """What stands above the columns and before the rows of a grid."""

    titles: tuple[str, ...]
    labels: tuple[str, ...]


def captions(request: GridRequest, labels: Sequence[str]) -> GridCaptions:
    """Seeds above and beside a grid of numbered latents; the labels of its rows otherwise."""
    if request.mixing is not None:
        titles = ("", *map(str, request.mixing.columns))
        return GridCaptions(titles, ("seed", *(f"seed {seed}" for seed in request.mixing.rows)))
    if request.seeds and request.interpolate is None:
        return GridCaptions(tuple(map(str, request.seeds)), tuple(labels))
    return GridCaptions(tuple(request.titles), tuple(labels))


BLOCK = 64
"""Pictures that are drawn from one seed: few enough to hold, many enough for a forward."""
MOST_TRUNCATION = 100
"""Latents of such a size give noise already; far larger ones are not finite in fp32."""


@dataclass(frozen=True)
class DrawRequest:
    """Which pictures to draw."""

    seed: int = 0  # of the latents and classes
    truncation: float = 1.0  # standard deviation of the latents
    # psi, psi_layers, noise: see `GridRequest`
    psi: float = 1.0
    psi_layers: int | None = None
    noise: Noise = "const"
    classes: tuple[int, ...] | None = None  # to draw from, uniformly; None: all
    statistics: Statistics = "running"  # of batch normalisation
    # standing_batches, standing_size: batches that standing statistics are gathered from, and samples in each; None:
    # the recipe's normalisation batch
    standing_batches: int = STANDING_BATCHES
    standing_size: int | None = None
    micro_batch: int = 16  # samples in one forward: memory, not the result

    def grid(self) -> GridRequest:
        """The same random inputs for a grid of samples."""
        return GridRequest(
            seed=self.seed,
            classes=self.classes,
            truncation=self.truncation,
            psi=self.psi,
            psi_layers=self.psi_layers,
            noise=self.noise,
            micro_batch=self.micro_batch,
        )


class StandingStatistics(Observer):
    """Gathers the group statistics of normalising layers, and puts their means in place of the running ones.

    Source: Brock et al. 2019 (arXiv 1809.11096), section "standing statistics".
    """

    def __init__(self) -> None:
        super().__init__()
        self._sums: dict[tuple[GroupNormalised, str], tuple[Tensor, float]] = {}

    def stage(self, layer: Stateful, buffer: str, value: Tensor, weight: float = 1) -> None:
        """Add an observation; other layers' (spectral norm's) are passed over."""
        if isinstance(layer, GroupNormalised):
            total, count = self._sums.get((layer, buffer), (torch.zeros_like(value), 0))
            self._sums[layer, buffer] = (total + value.detach() * weight, count + weight)

    def write(self) -> None:
        """Put the means in place."""
        for (layer, buffer), (total, count) in self._sums.items():
            getattr(layer, buffer).copy_(total / count)


@dataclass
class Sampler:
    """Draws pictures from prepared networks; see `generating`."""

    recipe: Recipe  # of the networks
    networks: Mapping[str, nn.Module]  # prepared
    request: DrawRequest  # which pictures
    classes: int  # that the network knows
    not_finite: int = 0  # pictures so far that held values which are not finite; they are black
    _block: int = field(init=False)

    def __post_init__(self) -> None:
        self._block = self.block_of(self.recipe, self.request)

    @staticmethod
    def block_of(recipe: Recipe, request: DrawRequest) -> int:
        """Pictures that are drawn from one seed; statistics of batches need whole ones."""
        group = recipe.training.normalisation_batch or 1
        return group * -(-BLOCK // group) if request.statistics == "batch" else BLOCK

    def draw(self, first: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Pictures first, first+1, ...: uint8 [n, C, R, R], rounded, and their classes [n], block by block."""
        after = first + count
        for block in range(first // self._block, -(-after // self._block)):
            start = block * self._block
            grid, labels = self._drawn(block)
            here = slice(max(0, first - start), min(self._block, after - start))
            self.not_finite += int((~torch.isfinite(grid[here])).flatten(1).any(1).sum())
            yield pixels(grid[here]), labels[here]

    def _drawn(self, number: int) -> tuple[Tensor, Tensor]:
        """One block of pictures [n, C, R, R] in [-1, 1], and their classes [n]."""
        request = self.request
        labels = self._labels(derive_seed(request.seed, "sample classes", number), self._block)
        seed = derive_seed(request.seed, "sample latents", number)
        return self._sheet(labels, seed), labels

    def _sheet(self, labels: Tensor, seed: int) -> Tensor:
        """[n, C, R, R] in [-1, 1]."""
        group = self.recipe.training.normalisation_batch or 1
        whole = group * max(1, self.request.micro_batch // group)
        micro_batch = whole if self.request.statistics == "batch" else self.request.micro_batch
        asked = replace(self.request.grid(), seed=seed, classes=labels.tolist(), columns=1, micro_batch=micro_batch)
        return self.recipe.kind.sample(self.recipe.networks, self.networks, asked)[:, 0]

    def _labels(self, seed: int, count: int) -> Tensor:
        random = torch.Generator().manual_seed(seed)
        choices = torch.tensor(self.request.classes) if self.request.classes is not None else torch.arange(self.classes)
        return choices[torch.randint(len(choices), (count,), generator=random)]

    @property
    def standing_size(self) -> int:
        """Samples in a batch of standing statistics."""
        request = self.request
        return request.standing_size or self.recipe.training.normalisation_batch or request.micro_batch

    def gather(self) -> None:
        """Replace running statistics by standing ones: at this truncation, over this request's classes."""
        request = self.request
        size = self.standing_size
        for batch in range(request.standing_batches):
            labels = self._labels(derive_seed(request.seed, "standing classes", batch), size)
            asked = GridRequest(
                seed=derive_seed(request.seed, "standing latents", batch),
                classes=labels.tolist(),
                columns=1,
                truncation=request.truncation,
                micro_batch=size,
            )
            self.recipe.kind.sample(self.recipe.networks, self.networks, asked)


def pixels(pictures: Tensor) -> Tensor:
    """[..., C, R, R] in [-1, 1] -> uint8, rounded."""
    return ((pictures.float().nan_to_num(nan=-1.0) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def known_classes(recipe: Recipe) -> int:
    """Classes that a recipe's generator knows; 1: none.

    Raises:
        BadInput: the family makes pictures of given ones, and draws none by itself.
    """
    if recipe.shows_given:
        raise BadInput(
            f"{recipe.family} makes pictures of given ones and draws none by itself: there is nothing to draw or to "
            "score so; `frugan sample RUN --data PATH` shows what it makes of given ones"
        )
    return recipe.classes


def check_truncation(truncation: float) -> None:
    """Refuse a standard deviation of latents that is none.

    Raises:
        BadInput: not above 0, not a number, or beyond all use.
    """
    if not 0 < truncation <= MOST_TRUNCATION:
        raise BadInput(
            f"--truncation {truncation}: expected a number above 0 and at most {MOST_TRUNCATION}; 1 is as trained"
        )


def check_draw(request: DrawRequest, recipe: Recipe) -> None:
    """Refuse what cannot be drawn.

    Raises:
        BadInput: classes out of range, a truncation or psi that is none, or sizes that are no whole groups.
    """
    known = known_classes(recipe)
    group = recipe.training.normalisation_batch or 1
    for chosen in request.classes or ():
        if not 0 <= chosen < known:
            raise BadInput(f"--classes {chosen}: expected 0 to {known - 1}; this network has {known} classes")
    check_truncation(request.truncation)
    check_psi(request.psi, request.psi_layers, request.noise, recipe)
    if min(request.micro_batch, request.standing_batches) < 1:
        raise BadInput("--micro-batch and --standing-batches: expected at least 1")
    if request.standing_size is not None and (request.standing_size < 2 or request.standing_size % group):
        raise BadInput(
            f"--standing-size {request.standing_size}: expected a multiple of the normalisation batch, {group}, and at "
            "least 2"
        )


@contextmanager
def generating(
    recipe: Recipe, networks: Mapping[str, nn.Module], layout: Layout, request: DrawRequest
) -> Iterator[Sampler]:
    """Draw pictures while the block is open; afterwards the networks are as they were.

    Raises:
        BadInput: see `check_draw`.
    """
    check_draw(request, recipe)
    layers = [m for n in networks.values() for m in n.modules() if isinstance(m, GroupNormalised)]
    kept = {(layer, name): buffer.clone() for layer in layers for name, buffer in layer.named_buffers(recurse=False)}
    modes = {name: network.training for name, network in networks.items()}
    groups = [layer.normalisation_batch for layer in layers]
    layouts = dict.fromkeys(networks, layout)
    with ExitStack() as undo, torch.no_grad():
        undo.callback(_put_back, networks, modes, kept, layers, groups)
        for network in networks.values():
            network.eval()
            set_normalisation_batch(network, recipe.training.normalisation_batch)
        made = Sampler(recipe, networks, request, known_classes(recipe))
        if request.statistics == "standing":
            _train_norms(layers)
            for network in networks.values():
                set_normalisation_batch(network, None)
            standing = StandingStatistics()
            with working_weights(networks, layouts, (), standing):
                made.gather()
            standing.write()
            for network in networks.values():
                network.eval()
        elif request.statistics == "batch":
            _train_norms(layers)
        undo.enter_context(working_weights(networks, layouts, (), None))
        yield made


def _train_norms(layers: Sequence[nn.Module]) -> None:
    for layer in layers:
        layer.train()


def _put_back(
    networks: Mapping[str, nn.Module],
    modes: Mapping[str, bool],
    kept: Mapping[tuple[GroupNormalised, str], Tensor],
    layers: Sequence[GroupNormalised],
    groups: Sequence[int | None],
) -> None:
    for name, network in networks.items():
        network.train(modes[name])
    for (layer, name), value in kept.items():
        getattr(layer, name).copy_(value)
    for layer, group in zip(layers, groups, strict=True):
        layer.normalisation_batch = group
