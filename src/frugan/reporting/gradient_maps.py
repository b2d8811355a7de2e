"""Gradients of a run's layers through time: what the heat maps of a report are drawn from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

MOST_COLUMNS = 80
"""Reports that are shown apart; of a longer run neighbours are put together."""


@dataclass(frozen=True)
class GradientMap:
    """Gradients of one network in one phase."""

    network: str  # name of the network
    phase: str  # name of the phase
    layers: tuple[str, ...]  # names of the layers, in the network's order
    steps: tuple[int, ...]  # last step of each column, rising
    # log10 of the L2 norm of each layer [layers][steps]; -inf: all gradients were exactly zero; None: there were none
    norms: tuple[tuple[float | None, ...], ...]
    zeros: tuple[tuple[float | None, ...], ...]  # likewise the share of exact zeros; None: it got none


@dataclass(frozen=True)
class _Cell:
    """A layer in some reports in a row."""

    logarithms: float = 0.0  # log10 of its norms above zero, added up
    above: int = 0  # how many of them there are
    zeros: float = 0.0  # shares of exact zeros, added up
    reports: int = 0  # how many of them there are

    def __add__(self, other: "_Cell") -> "_Cell":
        return _Cell(
            self.logarithms + other.logarithms,
            self.above + other.above,
            self.zeros + other.zeros,
            self.reports + other.reports,
        )

    @property
    def norm(self) -> float:
        return self.logarithms / self.above if self.above else -math.inf

    @property
    def zero_share(self) -> float:
        return self.zeros / self.reports


@dataclass(frozen=True)
class _Column:
    """Some reports in a row: the step of the last one, and the layers that had gradients."""

    step: int
    cells: Mapping[str, _Cell]

    def __add__(self, other: "_Column") -> "_Column":
        none = _Cell()
        names = dict.fromkeys([*self.cells, *other.cells])
        return _Column(other.step, {n: self.cells.get(n, none) + other.cells.get(n, none) for n in names})


@dataclass
class _Columns:
    """Columns of one map, put together in pairs as they become too many."""

    done: list[_Column] = field(default_factory=list)
    waiting: list[_Column] = field(default_factory=list)
    stride: int = 1

    def append(self, column: _Column) -> None:
        self.waiting.append(column)
        if len(self.waiting) < self.stride:
            return
        self.done.append(_together(self.waiting))
        self.waiting = []
        if len(self.done) >= 2 * MOST_COLUMNS:
            self.done = _in_pairs(self.done)
            self.stride *= 2

    def cut(self, step: int) -> None:
        self.done = [column for column in self.done if column.step <= step]
        self.waiting = [column for column in self.waiting if column.step <= step]

    def all(self) -> list[_Column]:
        columns = [*self.done, *([_together(self.waiting)] if self.waiting else [])]
        return columns if len(columns) <= MOST_COLUMNS else _in_pairs(columns)


@dataclass
class GradientMaps:
    """Gathers the gradients of reported steps, in bounded memory however long a run is."""

    # parameter -> its numbers, which weigh its share of zeros in its layer's; those not known count one
    sizes: Mapping[str, int] = field(default_factory=dict)
    _maps: dict[tuple[str, str], _Columns] = field(default_factory=dict)
    _reached: set[str] = field(default_factory=set)
    _missing: dict[str, None] = field(default_factory=dict)

    def add(self, step: int, phase: str, entry: Mapping[str, Any]) -> None:
        """Take what a step's event says of a phase; nothing unless gradients were reported."""
        if "gradients" not in entry:
            return
        self._reached.update(entry["gradients"])
        self._missing |= dict.fromkeys(entry.get("without_gradient", ()))
        for network, cells in self._by_layer(entry["gradients"], entry["zero_share"]).items():
            self._maps.setdefault((network, phase), _Columns()).append(_Column(step, cells))

    def cut(self, step: int) -> None:
        """Forget what came after a step: training has gone back to it."""
        for columns in self._maps.values():
            columns.cut(step)

    def never(self) -> dict[str, tuple[str, ...]]:
        """Network -> parameters to which no phase gave a gradient in any report."""
        missing: dict[str, tuple[str, ...]] = {}
        for name in self._missing:
            if name not in self._reached:
                network, _, parameter = name.partition(".")
                missing[network] = (*missing.get(network, ()), parameter)
        return missing

    def finish(self) -> tuple[GradientMap, ...]:
        """All maps, those of a network side by side."""
        networks = list(dict.fromkeys(network for network, _ in self._maps))
        in_order = sorted(self._maps, key=lambda key: networks.index(key[0]))
        return tuple(_map(*key, self._maps[key].all()) for key in in_order if self._maps[key].all())

    def _by_layer(self, norms: Mapping[str, Any], zeros: Mapping[str, Any]) -> dict[str, dict[str, _Cell]]:
        """Network -> layer -> its gradients; those that are not finite are left out."""
        squares: dict[tuple[str, str], float] = {}
        empty: dict[tuple[str, str], float] = {}
        sizes: dict[tuple[str, str], int] = {}
        for name, value in norms.items():
            norm, size = float(value), self.sizes.get(name, 1)
            if not math.isfinite(norm):
                continue
            network, _, parameter = name.partition(".")
            key = (network, parameter.rpartition(".")[0] or parameter)
            squares[key] = squares.get(key, 0.0) + norm**2
            empty[key] = empty.get(key, 0.0) + float(zeros[name]) * size
            sizes[key] = sizes.get(key, 0) + size
        layers_of: dict[str, dict[str, _Cell]] = {}
        for (network, layer), square in squares.items():
            above, share = square > 0, empty[network, layer] / sizes[network, layer]
            cell = _Cell(math.log10(square) / 2 if above else 0.0, int(above), share, 1)
            layers_of.setdefault(network, {})[layer] = cell
        return layers_of


def _map(network: str, phase: str, columns: Sequence[_Column]) -> GradientMap:
    layers = tuple(dict.fromkeys(name for column in columns for name in column.cells))
    rows = [[column.cells.get(layer) for column in columns] for layer in layers]
    return GradientMap(
        network,
        phase,
        layers,
        steps=tuple(column.step for column in columns),
        norms=tuple(tuple(None if cell is None else cell.norm for cell in row) for row in rows),
        zeros=tuple(tuple(None if cell is None else cell.zero_share for cell in row) for row in rows),
    )


def _together(columns: Sequence[_Column]) -> _Column:
    return reduce(add, columns)


def _in_pairs(columns: Sequence[_Column]) -> list[_Column]:
    """Neighbours put together; a last one without a neighbour as it is."""
    return [_together(columns[at : at + 2]) for at in range(0, len(columns), 2)]
