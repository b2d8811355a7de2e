"""Feeds the engine from opened sources; every stream has an order of its own and is read ahead."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from frugan.api.data.faces import sample_settings
from frugan.api.data.sources import Source
from frugan.api.progress import Say
from frugan.data.batches import Batches
from frugan.data.faces.batches import FaceBatches
from frugan.data.faces.faceset import Faceset
from frugan.data.faces.sample_processes import SampleProcesses
from frugan.data.prefetch import Prefetcher
from frugan.phase import FaceNeeds
from frugan.recipe import Recipe

PREVIEW = "preview"
"""Name of the stream from which previews take their faces."""

MOST_WORKERS = 8
"""A sample takes 11 ms at 256 pixels and 20 ms at 512 (AMD EPYC, one core): 8 processes make 700 and 400 a second."""


def default_workers(device: torch.device) -> int:
    """Processes that make face samples, for all sources together.

    None beside a CPU that trains, else one for every two cores, up to MOST_WORKERS.
    """
    return 0 if device.type == "cpu" else min(MOST_WORKERS, max(1, (os.cpu_count() or 2) // 2))


@dataclass
class SourceFeed:
    """Gives the engine its pictures.

    Attributes:
        sources: by name.
        recipe: as it is at present: seed, and how samples are made.
        pinned: host memory that a GPU can copy from by itself.
        workers: processes that make samples of faces, for all sources together; 0: threads of this one.
        say: is told what cannot be had here.
    """

    sources: Mapping[str, Source]
    recipe: Recipe
    pinned: bool
    workers: int
    say: Say = lambda _: None
    _open: ExitStack = field(default_factory=ExitStack)
    _processes: SampleProcesses | None = None
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
            batches = self._batches(source, stream, in_processes=self.workers > 0)
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
            batches = self._batches(source, f"{source}/{PREVIEW}", in_processes=False)
            self._previews[source, count] = batches.take(0, count)
        return self._previews[source, count]

    def _batches(self, source: str, stream: str, *, in_processes: bool) -> Batches | FaceBatches:
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
            processes=self._started() if in_processes else None,
        )

    def _started(self) -> SampleProcesses:
        """The processes, which all streams share."""
        if self._processes is None:
            self._processes = SampleProcesses(self.workers)
            self._open.callback(self._processes.close)
        return self._processes


@contextmanager
def feeding(
    sources: Mapping[str, Source], recipe: Recipe, *, pinned: bool, workers: int, say: Say = lambda _: None
) -> Iterator[SourceFeed]:
    """A feed whose reading threads and processes end with the block."""
    feed = SourceFeed(sources, recipe, pinned, workers, say)
    with feed._open:
        yield feed
