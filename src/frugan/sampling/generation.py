"""Pictures drawn from a generator by number: the same ones however they are shared out or batched."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from frugan.contract.family import GridRequest
from frugan.contract.layers import GroupNormalised, Observer, Stateful
from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import set_normalisation_batch, working_weights
from frugan.engine.streams import derive_seed
from frugan.errors import BadInput
from frugan.metrics.provenance import Rounding
from frugan.recipe.recipe import Recipe
from frugan.sampling.requests import DrawRequest, check_draw, known_classes

BLOCK = 64
"""Pictures that are drawn from one seed: few enough to hold, many enough for a forward."""


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

    recipe: Recipe  # recipe of the networks
    networks: Mapping[str, nn.Module]  # prepared networks
    request: DrawRequest  # pictures to draw
    classes: int  # number of classes that the network knows
    not_finite: int = 0  # pictures so far that held values which are not finite; they are black
    _block: int = field(init=False)

    def __post_init__(self) -> None:
        self._block = self.block_of(self.recipe, self.request)

    @staticmethod
    def block_of(recipe: Recipe, request: DrawRequest) -> int:
        """Number of pictures that are drawn from one seed; statistics of batches need whole batches."""
        group = recipe.training.normalisation_batch or 1
        return group * -(-BLOCK // group) if request.statistics == "batch" else BLOCK

    def draw(self, first: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Pictures first, first+1, ...: uint8 [n, C, R, R], and their classes [n], block by block."""
        after = first + count
        for block in range(first // self._block, -(-after // self._block)):
            start = block * self._block
            grid, labels = self._drawn(block)
            here = slice(max(0, first - start), min(self._block, after - start))
            self.not_finite += int((~torch.isfinite(grid[here])).flatten(1).any(1).sum())
            yield pixels(grid[here], self.request.rounding), labels[here]

    def _drawn(self, number: int) -> tuple[Tensor, Tensor]:
        """Draw a block of pictures [n, C, R, R] in [-1, 1], with their classes [n]."""
        request = self.request
        labels = self._labels(derive_seed(request.seed, "sample classes", number), self._block)
        seed = derive_seed(request.seed, "sample latents", number)
        group = self.recipe.training.normalisation_batch or 1
        whole = group * max(1, self.request.micro_batch // group)
        micro_batch = whole if self.request.statistics == "batch" else self.request.micro_batch
        block = replace(self.request, seed=seed, classes=labels.tolist(), columns=1, micro_batch=micro_batch)
        return self.recipe.kind.sample(self.recipe.networks, self.networks, block)[:, 0], labels

    def _labels(self, seed: int, count: int) -> Tensor:
        random = torch.Generator().manual_seed(seed)
        choices = self._choices
        return choices[torch.randint(len(choices), (count,), generator=random)]

    @cached_property
    def _choices(self) -> Tensor:
        """Classes to draw from; those that come several times are drawn as much more often [n]."""
        return torch.tensor(self.request.classes) if self.request.classes is not None else torch.arange(self.classes)

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
            grid_request = GridRequest(
                seed=derive_seed(request.seed, "standing latents", batch),
                classes=labels.tolist(),
                columns=1,
                truncation=request.truncation,
                micro_batch=size,
            )
            self.recipe.kind.sample(self.recipe.networks, self.networks, grid_request)


def pixels(pictures: Tensor, rounding: Rounding = "nearest") -> Tensor:
    """[..., C, R, R] in [-1, 1] -> uint8."""
    if rounding == "bf16":
        return (pictures.bfloat16().nan_to_num(nan=-1.0) * 127.5 + 128).clamp(0, 255).to(torch.uint8)
    return ((pictures.float().nan_to_num(nan=-1.0) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


@contextmanager
def generating(
    recipe: Recipe, networks: Mapping[str, nn.Module], layout: Layout, request: DrawRequest
) -> Iterator[Sampler]:
    """Draw pictures while the block is open; afterwards the networks are as they were.

    Raises:
        BadInput: see `check_draw`, and `with_statistics`.
    """
    check_draw(request, recipe)
    with with_statistics(recipe, networks, layout, request) as sampler:
        yield sampler


@contextmanager
def with_statistics(
    recipe: Recipe, networks: Mapping[str, nn.Module], layout: Layout, request: DrawRequest
) -> Iterator[Sampler]:
    """Prepare networks with the statistics that a request asks of batch normalisation, for single pictures or grids.

    Raises:
        BadInput: other statistics than running ones, of networks that normalise no batches.
    """
    layers = [m for n in networks.values() for m in n.modules() if isinstance(m, GroupNormalised)]
    if request.statistics != "running" and not layers:
        raise BadInput(
            f"--statistics {request.statistics}: this {recipe.family} network normalises no batches, so there are none "
            "to choose; leave it out"
        )
    kept = {(layer, name): buffer.clone() for layer in layers for name, buffer in layer.named_buffers(recurse=False)}
    modes = {name: network.training for name, network in networks.items()}
    groups = [layer.normalisation_batch for layer in layers]
    layouts = dict.fromkeys(networks, layout)
    with ExitStack() as undo, torch.no_grad():
        undo.callback(_put_back, networks, modes, kept, layers, groups)
        for network in networks.values():
            network.eval()
            set_normalisation_batch(network, recipe.training.normalisation_batch)
        sampler = Sampler(recipe, networks, request, known_classes(recipe))
        if request.statistics == "standing":
            _train_norms(layers)
            for network in networks.values():
                set_normalisation_batch(network, None)
            standing = StandingStatistics()
            with working_weights(networks, layouts, (), standing):
                sampler.gather()
            standing.write()
            for network in networks.values():
                network.eval()
        elif request.statistics == "batch":
            _train_norms(layers)
        undo.enter_context(working_weights(networks, layouts, (), None))
        yield sampler


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
