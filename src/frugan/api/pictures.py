"""Data sources of a run: found, prepared where they are not, checked against the recipe, and fed to the engine."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from frugan.data.batches import Batches
from frugan.data.fingerprint import fingerprint
from frugan.data.picture_set import PictureSet, open_prepared
from frugan.data.prefetch import Prefetcher
from frugan.data.prepare import prepare
from frugan.data.set_file import is_prepared
from frugan.errors import BadInput
from frugan.folders import Folders
from frugan.phase import DataNeeds
from frugan.recipe import DataSettings, Recipe

Say = Callable[[str], None]
Progress = Callable[[int, int], None]


def named_sources(
    data: str | Path | Mapping[str, str | Path] | None, needs: Mapping[str, DataNeeds]
) -> dict[str, Path]:
    """Give every source that a family needs its path.

    Args:
        data: one path (if the family has one source), or paths by source name.

    Raises:
        BadInput: a source is missing or unknown.
    """
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        if len(needs) != 1:
            raise BadInput(
                f"--data {data}: this family has several sources, name them: --data {next(iter(needs))}=PATH"
            )
        data = {next(iter(needs)): data}
    if unknown := sorted(set(data) - set(needs)):
        raise BadInput(f"--data {unknown[0]}=...: no such source; this family reads {', '.join(sorted(needs))}")
    if missing := sorted(set(needs) - set(data)):
        name = f"{missing[0]}=" if len(needs) > 1 else ""
        raise BadInput(f"no pictures given for {missing[0]!r}: add --data {name}PATH")
    return {name: Path(path) for name, path in data.items()}


def check_needs(name: str, path: Path, pictures: PictureSet, needs: DataNeeds) -> None:
    """Refuse a set that the recipe cannot be trained on.

    Raises:
        BadInput: its resolution or number of classes is another.
    """
    if pictures.resolution != needs.resolution:
        raise BadInput(
            f"{name} {path}: pictures of {pictures.resolution} pixels, the recipe wants {needs.resolution}; prepare "
            f"them with --resolution {needs.resolution}, or choose a recipe of {pictures.resolution}"
        )
    if needs.classes is None:
        return
    found = len(pictures.class_names)
    if needs.classes > 1 and not pictures.labelled:
        raise BadInput(
            f"{name} {path}: one class (a flat folder, no labels), the recipe wants {needs.classes}; put the pictures "
            "of each class in a folder of its own, or train without classes: networks.classes=1"
        )
    if found != needs.classes:
        raise BadInput(
            f"{name} {path}: {found} classes, the recipe wants {needs.classes}; train with networks.classes={found}, "
            "or name the folder that holds the class folders"
        )


def open_pictures(path: Path, resolution: int, data: DataSettings, say: Say, progress: Progress | None) -> PictureSet:
    """Open a prepared set, or prepare any other source into the folder for prepared data, once.

    Raises:
        BadInput: missing, empty, unreadable, too small, or more than 1 % cannot be decoded.
    """
    if is_prepared(path) and (ready := open_prepared(path)).resolution == resolution:
        say(f"data: {path}: {len(ready):,} prepared pictures, mapped from disk")
        return ready
    key = fingerprint(path, resolution, resample=data.resample, allow_upscale=data.allow_upscale)
    out = Folders.from_environment().prepared / f"{path.resolve().name}-{resolution}-{key[:12]}"
    report = prepare(
        path,
        out,
        resolution=resolution,
        resample=data.resample,
        allow_upscale=data.allow_upscale,
        progress=progress,
    )
    for line in report.lines:
        say(f"data: {line}")
    say(f"data: {report.pictures:,} pictures of {resolution} pixels in {out} (FRUGAN_PREPARED names another place)")
    return open_prepared(out)


@dataclass
class SetFeed:
    """Feeds the engine from picture sets; every stream has an order of its own and is read ahead.

    Attributes:
        sets: by source name.
        recipe: seed and augmentation.
        pinned: host memory that a GPU can copy from by itself.
    """

    sets: Mapping[str, PictureSet]
    recipe: Recipe
    pinned: bool
    _open: ExitStack = field(default_factory=ExitStack)
    _streams: dict[str, Prefetcher] = field(default_factory=dict)

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        """Pictures position, position+1, ... of a stream."""
        if stream not in self._streams:
            seed, flip = self.recipe.training.seed, self.recipe.data.flip
            batches = Batches(self.sets[source], seed=seed, name=stream, flip=flip)
            self._streams[stream] = self._open.enter_context(Prefetcher(batches, pin_memory=self.pinned))
        return self._streams[stream].take(position, count)


@contextmanager
def feeding(sets: Mapping[str, PictureSet], recipe: Recipe, *, pinned: bool) -> Iterator[SetFeed]:
    """A feed whose reading threads end with the block."""
    feed = SetFeed(sets, recipe, pinned)
    with feed._open:
        yield feed
