"""Feeds the engine from opened sources; every stream has an order of its own and is read ahead."""

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from frugan.api.progress import Say, quiet
from frugan.contract.data import Forgiving, OpenedSource, Reader, Shared
from frugan.data.prefetch import Prefetcher
from frugan.recipe.recipe import Recipe

PREVIEW = "preview"
"""Name of the stream from which previews take their samples."""

MOST_WORKERS = 8
"""A sample of a face takes 11 ms at 256 pixels and 20 ms at 512 (AMD EPYC, one core): 8 processes make 700 and 400 a
second."""


def default_workers(device: torch.device, ranks: int = 1) -> int:
    """Processes that make samples where a kind of data needs them, for all sources together.

    None beside a CPU that trains, else one for every two cores, up to MOST_WORKERS.

    Args:
        ranks: that share the machine's cores.
    """
    return 0 if device.type == "cpu" else min(MOST_WORKERS, max(1, (os.cpu_count() or 2) // (2 * ranks)))


@dataclass
class FeedWorkers:
    """What the readers of a feed share; see `Workers`.

    Attributes:
        count: processes, for all sources together.
        opened: closes it all.
    """

    count: int
    opened: ExitStack
    _shared: dict[Hashable, object] = field(default_factory=dict)

    def shared(self, make: Callable[[int], Shared], close: Callable[[Shared], None]) -> Shared:
        """What `make(count)` gives, made once."""
        if make not in self._shared:
            made = make(self.count)
            self._shared[make] = made
            self.opened.callback(close, made)
        return cast("Shared", self._shared[make])

    def at_end(self, close: Callable[[], object]) -> None:
        """Have something closed at the end."""
        self.opened.callback(close)


@dataclass
class SourceFeed:
    """Gives the engine its pictures.

    Attributes:
        sources: by name.
        recipe: as it is at present: seed, and how samples are made.
        pinned: host memory that a GPU can copy from by itself.
        workers: processes that make samples, for all sources together; 0: threads of this one.
        seed: of the order in which pictures are shown; None: the recipe's.
        say: is told what cannot be had here.
        lost: is told of every picture that cannot be read any more: source, picture, reason, and how many so far.
    """

    sources: Mapping[str, OpenedSource]
    recipe: Recipe
    pinned: bool
    workers: int
    seed: int | None = None
    say: Say = quiet
    lost: Callable[[str, str, str, int], None] = lambda source, picture, reason, count: None
    _open: ExitStack = field(default_factory=ExitStack)
    _streams: dict[str, Prefetcher] = field(default_factory=dict)
    _last: dict[str, tuple[tuple[int, int], Mapping[str, Tensor]]] = field(default_factory=dict)
    _previews: dict[tuple[str, int], Mapping[str, Tensor]] = field(default_factory=dict)
    _said: list[str] = field(default_factory=list)
    _forgiving: dict[str, Forgiving] = field(default_factory=dict)
    _told: dict[str, int] = field(default_factory=dict)
    _lost: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._shared = FeedWorkers(self.workers, self._open)

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        """Pictures position, position+1, ... of a stream.

        The last ones are kept: every phase of a step asks for them, and one that is repeated asks again.
        """
        known = self._last.get(stream)
        if known is not None and known[0] == (position, count):
            return known[1]
        if stream not in self._streams:
            reader = self._reader(source, stream, self._shared, self.seed)
            prefetched = Prefetcher(reader, pin_memory=self.pinned, say=self._say_once)
            self._streams[stream] = self._open.enter_context(prefetched)
            if isinstance(reader, Forgiving):
                self._forgiving[stream] = reader
        self._tell_lost(source, stream)
        self._last.pop(stream, None)  # else two batches would be held while the third is read
        self._last[stream] = ((position, count), self._streams[stream].take(position, count))
        return self._last[stream][1]

    def _tell_lost(self, source: str, stream: str) -> None:
        """Tell of every picture once that a stream has passed over."""
        if stream not in self._forgiving:
            return
        found = self._forgiving[stream].passed_over
        for picture, reason in [*found.items()] if len(found) > self._told.get(stream, 0) else ():
            if (source, picture) not in self._lost:
                self._lost.add((source, picture))
                self.lost(source, picture, reason, len(self._lost))
        self._told[stream] = len(found)

    def _say_once(self, line: str) -> None:
        if not self._said:
            self._said.append(line)
            self.say(line)

    def preview(self, source: str, count: int) -> Mapping[str, Tensor]:
        """The same few pictures each time, apart from the training streams."""
        if (source, count) not in self._previews:
            self._previews[source, count] = self._reader(source, f"{source}/{PREVIEW}", None).take(0, count)
        return self._previews[source, count]

    def _reader(self, source: str, stream: str, workers: FeedWorkers | None, order: int | None = None) -> Reader:
        recipe = self.recipe
        need = recipe.kind.sources(recipe.networks, recipe.objective)[source]
        opened: Any = self.sources[source]
        seed, settings = recipe.training.seed if order is None else order, recipe.data
        return need.reader(opened, self.sources, seed=seed, stream=stream, settings=settings, workers=workers)


@contextmanager
def feeding(
    sources: Mapping[str, OpenedSource],
    recipe: Recipe,
    *,
    pinned: bool,
    workers: int,
    seed: int | None = None,
    say: Say = quiet,
    lost: Callable[[str, str, str, int], None] = lambda source, picture, reason, count: None,
) -> Iterator[SourceFeed]:
    """A feed whose reading threads and processes end with the block."""
    feed = SourceFeed(sources, recipe, pinned, workers, seed, say, lost)
    with feed._open:
        yield feed
