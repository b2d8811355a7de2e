"""Where a kernel would read and write in maps that no memory holds: its programs run, and nothing is loaded or stored.

A map has a shape and no data. Its places are numbers of 64 bits, far from those of every other one, so that an offset
that has come out wrong leads out of its map, or not to its end.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

APART = 44
"""Maps begin at multiples of 2 to this power: 16 TiB."""


@dataclass(frozen=True)
class Far:
    """A tensor somewhere, to Triton's interpreter."""

    dtype: torch.dtype
    begin: int

    def data_ptr(self) -> int:
        """Where it begins."""
        return self.begin


@dataclass
class FarMap:
    """Memory that a tensor would have."""

    of: Tensor
    begin: int
    # places that were read or written, from the first one to the last
    first: int = 2**63
    last: int = -1
    written: bool = False

    @property
    def elements(self) -> int:
        """How many it holds."""
        return self.of.numel()


@dataclass
class FarMaps:
    """Those that kernels are started with."""

    maps: list[FarMap] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)  # kernels that left a map
    # kernels, all of them and those that have run, as "norm.apply"
    kernels: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
    _running: str = ""

    def far(self, given: Any) -> Any:
        """What stands for an argument."""
        if not isinstance(given, Tensor):
            return given
        whole = given if given._base is None else given._base
        map_ = next((each for each in self.maps if each.of is whole), None)
        if map_ is None:
            map_ = FarMap(whole, (len(self.maps) + 1) << APART)
            self.maps.append(map_)
        return Far(given.dtype, map_.begin + int(given.storage_offset()) * given.itemsize)

    def reach(self, places: Any, inside: Any, *, writes: bool) -> None:
        """Take note of places [any] as far as they are inside."""
        places = places[np.broadcast_to(inside, places.shape).astype(bool)]  # truth values may be whole numbers here
        for number in np.unique(places >> np.uint64(APART)):
            here = places[places >> np.uint64(APART) == number]
            map_ = self.maps[int(number) - 1] if 0 < number <= len(self.maps) else None
            size = 1 if map_ is None else map_.of.itemsize
            first, last = (int(end) - (int(number) << APART) for end in (here.min(), here.max()))
            if map_ is None or last >= map_.elements * size:
                self.strays.append(self._running)
                continue
            map_.first, map_.last = min(map_.first, first // size), max(map_.last, last // size)
            map_.written |= writes

    @contextmanager
    def running(self, kernel: str) -> Iterator[None]:
        """A kernel runs inside."""
        self._running = kernel
        self.started.add(kernel)
        yield


@dataclass(frozen=True)
class _Started:
    """What stands for a kernel: its first and its last program run."""

    name: str
    kernel: Any
    far: FarMaps
    choose: Callable[[tuple[int, ...], tuple[int, ...]], None]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """As Triton's kernels are started."""
        last = tuple(size - 1 for size in grid)

        def start(*given: Any, **constants: Any) -> None:
            for program in ((0,) * len(grid), last):
                self.choose(grid, program)
                with self.far.running(self.name):
                    self.kernel[(1,)](*map(self.far.far, given), **constants)

        return start


def far_maps(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> FarMaps:
    """Let the kernels of some modules run without memory; on tensors without data their operations then start them."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    builder, far = interpreter.interpreter_builder, FarMaps()
    set_dims, set_place = builder.set_grid_dim, builder.set_grid_idx
    dims, place = [1, 1, 1], [0, 0, 0]

    def choose(grid: tuple[int, ...], program: tuple[int, ...]) -> None:
        dims[:], place[:] = (*grid, 1, 1)[:3], (*program, 0, 0)[:3]

    def load(at: Any, mask: Any, *_: Any) -> Any:
        far.reach(at.data, mask.data, writes=False)
        dtype = at.get_element_ty()
        return interpreter.TensorHandle(np.zeros(at.data.shape, interpreter._get_np_dtype(dtype)), dtype)

    monkeypatch.setattr(builder, "set_grid_dim", lambda *_: set_dims(*dims))
    monkeypatch.setattr(builder, "set_grid_idx", lambda *_: set_place(*place))
    monkeypatch.setattr(builder, "create_masked_load", load)
    monkeypatch.setattr(
        builder, "create_masked_store", lambda at, _, mask, *__: far.reach(at.data, mask.data, writes=True)
    )
    monkeypatch.setattr(interpreter.GridExecutor, "_init_args_hst", lambda _, *given: given)
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)
    for module in modules:
        for name, kernel in vars(module).items():
            if isinstance(kernel, interpreter.InterpretedFunction) and not name.startswith("_"):
                full = f"{module.__name__.rpartition('.')[2]}.{name}"
                far.kernels.add(full)
                monkeypatch.setattr(module, name, _Started(full, kernel, far, choose))
    return far
