"""Feeds the engine from opened sources; every stream has an order of its own and is read ahead."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from frugan.api.faces import sample_settings
from frugan.api.pictures import Say
from frugan.api.sources import Source
from frugan.data.batches import Batches
from frugan.data.faces.batches import FaceBatches
from frugan.data.faces.faceset import Faceset
from frugan.data.prefetch import Prefetcher
from frugan.phase import FaceNeeds
from frugan.recipe import Recipe

PREVIEW = "preview"
"""Name of the stream from which previews take their faces."""


def default_workers(device: torch.device) -> int:
    """Processes that make face samples, for each source: none beside a CPU that trains, else half of the cores."""
    return 0 if device.type == "cpu" else max(1, (os.cpu_count() or 2) // 2)


@dataclass
class SourceFeed:
    """Gives the engine its pictures.

    Attributes:
        sources: by name.
        recipe: as it is at present: seed, and how samples are made.
        pinned: host memory that a GPU can copy from by itself.
        workers: processes for each source of faces; 0: threads of this one.
        say: is told what cannot be had here.
    """

    sources: Mapping[str, Source]
    recipe: Recipe
    pinned: bool
    workers: int
    say: Say = lambda _: None
    _open: ExitStack = field(default_factory=ExitStack)
    _streams: dict[str, Prefetcher] = field(default_factory=dict)
    _last: dict[str, tuple[tuple[int, int], Mapping[str, Tensor]]] = field(default_factory=dict)
    _previews: dict[tuple[str, int], Mapping[str, Tensor]] = field(default_factory=dict)
    _said: list[str] = field(default_factory=list)

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        """Pictures position, position+1, ... of a stream.

        The last ones are kept: every phase of a step asks for them, and one that is repeated asks again.
        """
        known = self._last.get(stream)
        if known is not None and known[0] == (position, count):
            return known[1]
        if stream not in self._streams:
            batches = self._batches(source, stream, self.workers)
            if isinstance(batches, FaceBatches):
                self._open.callback(batches.close)
            reader = Prefetcher(batches, pin_memory=self.pinned, say=self._say_once)
            self._streams[stream] = self._open.enter_context(reader)
        self._last.pop(stream, None)  # else two batches would be held while the third is read
        self._last[stream] = ((position, count), self._streams[stream].take(position, count))
        return self._last[stream][1]

    def _say_once(self, line: str) -> None:
        if not self._said:
            self._said.append(line)
            self.say(line)

    def preview(self, source: str, count: int) -> Mapping[str, Tensor]:
        """The same few pictures each time, apart from the training streams."""
        if (source, count) not in self._previews:
            batches = self._batches(source, f"{source}/{PREVIEW}", 0)
            self._previews[source, count] = batches.take(0, count)
            if isinstance(batches, FaceBatches):
                batches.close()
        return self._previews[source, count]

    def _batches(self, source: str, stream: str, workers: int) -> Batches | FaceBatches:
        opened, seed = self.sources[source], self.recipe.training.seed
        if not isinstance(opened, Faceset):
            return Batches(opened, seed=seed, name=stream, flip=self.recipe.data.flip)
        needs = self.recipe.kind.sources(self.recipe.networks, self.recipe.objective)[source]
        if not isinstance(needs, FaceNeeds):
            raise TypeError(f"source {source}: faces given where {needs} is wanted")
        references = self.sources[needs.colours_of] if needs.colours_of else None
        return FaceBatches(
            opened,
            sample_settings(needs),
            seed=seed,
            name=stream,
            uniform_yaw=needs.uniform_yaw,
            references=references if isinstance(references, Faceset) else None,
            workers=workers,
        )


@contextmanager
def feeding(
    sources: Mapping[str, Source], recipe: Recipe, *, pinned: bool, workers: int, say: Say = lambda _: None
) -> Iterator[SourceFeed]:
    """A feed whose reading threads and processes end with the block."""
    feed = SourceFeed(sources, recipe, pinned, workers, say)
    with feed._open:
        yield feed
