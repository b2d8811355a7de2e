"""Data of a run: finding, opening and checking its sources, and feeding the step."""

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

from frugan.accelerator.choice import accelerator_of
from frugan.contract.data import (
    Forgiving,
    Labelled,
    OpenedSource,
    Reader,
    Rereading,
    RunData,
    Shared,
    SourceOptions,
    SourceSpec,
)
from frugan.data.batches import Pinning, Prefetcher
from frugan.data.formats.picture_set import PictureSet, relabelled
from frugan.data.formats.source import local_path
from frugan.data.parts import Drawing, held_out, held_out_by_place, of_each_class, pixel_digests, subset, whole
from frugan.data.run_data import read_run_data
from frugan.engine.run.checkpoint import STATE_FILE, list_checkpoints
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.files import Folders, read_json
from frugan.progress import Progress, Say, quiet
from frugan.recipe.recipe import Recipe
from frugan.setup.masks import masked
from frugan.setup.small_pictures import small_for_training
from frugan.wording import count, first_names

Data = str | Path | PictureSet | Mapping[str, str | Path] | Mapping[str, OpenedSource]
"""A path, an opened set of pictures, paths by source name, or opened sources by source name."""

HOLDOUT = "holdout"
"""Name of the random numbers that draw test pictures: the same for every seed, whose scores compare therefore."""


def named_sources(
    data: str | Path | Mapping[str, str | Path] | None, needs: Mapping[str, SourceSpec]
) -> dict[str, Path]:
    """Give every source that a family needs its path.

    Args:
        data: one path (if the family has one source, or if one path has them all), or paths by source name.
        needs: requirements on each source, by name.

    Raises:
        BadInput: a source is missing or unknown.
    """
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        located = next(iter(needs.values())).locate(Path(data), list(needs)) if needs else None
        if located is not None:
            return dict(located)
        if len(needs) != 1:
            raise BadInput(
                f"--data {data}: this model needs several kinds of data; name each: --data {next(iter(needs))}=PATH"
            )
        data = {next(iter(needs)): data}
    if unknown := sorted(set(data) - set(needs)):
        raise BadInput(f"--data {unknown[0]}=...: unknown name; this model reads {', '.join(sorted(needs))}")
    if missing := sorted(set(needs) - set(data)):
        if len(needs) == 1:
            raise BadInput("no pictures given: add --data PATH")
        raise BadInput(f"no pictures given for {missing[0]!r}: add --data {missing[0]}=PATH")
    return {name: Path(path) for name, path in data.items()}


def open_sources(
    recipe: Recipe,
    data: Data | None,
    say: Say,
    progress: Progress | None,
    known: Mapping[str, RunData] = MappingProxyType({}),
    map_classes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Open every source that a recipe reads, and check it.

    Args:
        recipe: recipe of the training.
        data: where the sources are.
        say: see `SourceOptions`.
        progress: see `SourceOptions`.
        known: data that the resumed run was trained on; pictures get its labels.
        map_classes: class of the pictures -> its name in that run, as for `train`.

    Raises:
        BadInput: a source is missing or unknown, the recipe cannot be trained on it, or its classes are not the run's.
    """
    options = SourceOptions(recipe.data, Folders.from_environment().prepared, say, progress, known, map_classes)
    needs, fitted = recipe.sources, {}
    for name, opened in _opened_sources(recipe, data, options).items():
        source = opened.with_test_folder(opened.divided(options), options)
        fitted[name] = needs[name].fitted(name, opened.where, source, options)
        for line in opened.part_lines(fitted[name]):
            say(f"data: {line}")
    _check_together(needs, fitted)
    return fitted if recipe.data.masks is None else masked(fitted, recipe.data.masks, say, progress)


@dataclass(frozen=True)
class _OpenedSource:
    """A source before it is fitted to its family's needs: whole, and with the parts that the recipe makes of it."""

    recipe: Recipe
    name: str
    source: Any
    path: Path | None  # None: it was given opened

    @property
    def where(self) -> str:
        """Name and place, for messages."""
        return self.name if self.path is None else f"{self.name} {self.path}"

    def divided(self, options: SourceOptions) -> Any:
        """The pictures that training sees, with a part of them held out where the recipe says so.

        A run that goes on holds out as it did before.

        Raises:
            BadInput: there are too few, or they are no set of pictures.
        """
        settings, source = self.recipe.data, self.source
        if settings.subset is None and settings.holdout is None:
            return source
        if not isinstance(source, PictureSet):
            raise BadInput(f"{self.where}: data.subset and data.holdout are for sets of pictures; leave them out")
        seed, classes = self.recipe.training.seed, self.recipe.sources[self.name].classes is not None
        if isinstance(settings.holdout, int | float):
            source = self._held_out(source, settings.holdout, options.known.get(self.name), options.progress)
        if settings.subset is not None:
            source = subset(source, settings.subset, f"{seed}/subset/{self.name}", self.where, classes=classes)
        return source

    def _held_out(
        self, pictures: PictureSet, part: float, known: RunData | None, progress: Progress | None
    ) -> PictureSet:
        classes = self.recipe.sources[self.name].classes is not None
        by_seed = f"{self.recipe.training.seed}/holdout/{self.name}"
        if known is not None and known.held_out_below is None:
            return held_out_by_place(pictures, part, by_seed, self.where, classes=classes)
        stream = by_seed if known is not None and known.held_out_by_seed else HOLDOUT
        digests = pixel_digests(pictures, Folders.from_environment().cache / "pixel-digests", progress)
        drawing = Drawing(stream, digests, None if known is None else known.held_out_below)
        return held_out(pictures, part, drawing, self.where, classes=classes)

    def with_test_folder(self, source: Any, options: SourceOptions) -> Any:
        """The pictures with those of the folder that the recipe names for tests, if it names one.

        Raises:
            BadInput: the folder lies among the pictures, or it is no set of pictures of the same classes.
        """
        if not isinstance(self.recipe.data.holdout, str) or not isinstance(source, PictureSet):
            return source
        folder, need = local_path(self.recipe.data.holdout), self.recipe.sources[self.name]
        where = f"data.holdout={folder}"
        share = "or name a share, such as data.holdout=0.1"
        if self.path is not None and folder.resolve().is_relative_to(self.path.resolve()):
            raise BadInput(f"{where}: lies inside {self.path}, whose pictures are trained on; move it out, {share}")
        if self.path is not None and self.path.resolve().is_relative_to(folder.resolve()):
            raise BadInput(f"{where}: holds {self.path}, whose pictures are trained on; name another folder, {share}")
        if not folder.exists():
            raise BadInput(
                f"{where}: does not exist (looked from {Path.cwd()}); expected a folder of test pictures, which may "
                "have another place now (--holdout FOLDER), or for a new run a share of the pictures, such as 0.1"
            )
        with small_for_training(folder, need.resolution, self.recipe):
            test = need.open(self.name, folder, replace(options, settings=whole(options.settings)))
        if need.classes is not None and source.labelled and test.labelled:
            if unknown := sorted(set(test.class_names) - set(source.class_names)):
                raise BadInput(
                    f"{where}: its class {unknown[0]!r} is none of {self.where}: {first_names(source.class_names)}; "
                    "give the test pictures' folders the names of the classes"
                )
            test = relabelled(test, source.class_names, {name: name for name in test.class_names})
        need.fitted(self.name, where, test, replace(options, say=quiet, known={}))
        if test.digest == self.source.digest:
            raise BadInput(f"{where}: holds the very pictures that are trained on; name another folder, {share}")
        return replace(source, held_out=test)

    def of_run(self, known: RunData, options: SourceOptions) -> PictureSet | None:
        """The parts that a run made of these pictures; None: it made none, or was trained on others.

        Raises:
            BadInput: as `with_test_folder`.
        """
        settings, need = self.recipe.data, self.recipe.sources[self.name]
        if settings.subset is None and settings.holdout is None:
            return None
        quietly = replace(options, say=quiet, known={self.name: known})
        try:
            divided = self.divided(quietly)
            fitted = need.fitted(self.name, self.where, divided, quietly)
        except BadInput:  # too few of them, or of other classes
            return None
        if fitted.digest != known.digest:
            return None
        pictures: PictureSet = need.fitted(self.name, self.where, self.with_test_folder(divided, options), quietly)
        return pictures

    def part_lines(self, fitted: Any) -> Iterator[str]:
        """Lines on the parts that the recipe makes of the pictures."""
        settings, training = self.recipe.data, self.recipe.training
        test = getattr(fitted, "held_out", None)
        if test is not None:
            yield (
                f"{count(len(test), 'picture')} held out{of_each_class(test)} (data.holdout={settings.holdout}): "
                "training never sees them, and scores are measured against them"
            )
        if settings.subset is not None:
            yield (
                f"{len(fitted):,} of {count(len(self.source), 'picture')} trained on{of_each_class(fitted)} "
                f"(data.subset={settings.subset}, drawn by training.seed={training.seed})"
            )
            if settings.subset < training.batch:
                yield (
                    f"data.subset={settings.subset} is less than training.batch={training.batch}: a batch holds some "
                    "pictures several times"
                )


def _opened_sources(recipe: Recipe, data: Data | None, options: SourceOptions) -> dict[str, _OpenedSource]:
    """Open every source that a recipe reads, whole.

    Raises:
        BadInput: a source is missing or unknown, or cannot be opened.
    """
    needs = recipe.sources
    opened: dict[str, Any] = {}
    paths: dict[str, Path] | Path | None = None
    if isinstance(data, PictureSet):
        if len(needs) > 1:
            each = ", ".join(f"{name!r}: …" for name in needs)
            raise BadInput(f"data: one set of pictures, but this model reads several kinds of data; write {{{each}}}")
        data = dict.fromkeys(needs, data)
    if isinstance(data, Mapping):
        paths = {name: local_path(value) for name, value in data.items() if isinstance(value, str | Path)}
        opened = {name: value for name, value in data.items() if name not in paths}
    else:
        paths = None if data is None else local_path(data)
    wanted = {name: need for name, need in needs.items() if name not in opened}
    named = named_sources(paths, wanted) if wanted else {}
    for name, path in named.items():
        with small_for_training(path, wanted[name].resolution, recipe):
            opened[name] = wanted[name].open(name, path, options)
    if unknown := sorted(set(opened) - set(needs)):
        raise BadInput(f"data {unknown[0]!r}: unknown name; this model reads {', '.join(sorted(needs))}")
    return {name: _OpenedSource(recipe, name, opened[name], named.get(name)) for name in needs}


def _check_together(needs: Mapping[str, SourceSpec], fitted: Mapping[str, Any]) -> None:
    """Check the sources of each kind against each other."""
    for kind in {type(need) for need in needs.values()}:
        alike = [name for name, need in needs.items() if type(need) is kind]
        needs[alike[0]].check_together({name: fitted[name] for name in alike})


def advice(recipe: Recipe, sources: Mapping[str, Any]) -> Iterator[str]:
    """Lines that tell a person who begins a run on these sources what would train better."""
    for name, need in recipe.sources.items():
        yield from need.advice(sources[name])


@dataclass(frozen=True)
class RealPictures:
    """Real pictures that generated ones are compared with, in the recipe's channels."""

    given: PictureSet  # all of them
    # those of them that a run was trained on, with those that it held out; None: its recipe makes no parts, these are
    # other pictures, or nobody knows
    of_run: PictureSet | None


def open_real(
    recipe: Recipe,
    data: str | Path | PictureSet,
    say: Say,
    progress: Progress | None,
    known: Mapping[str, RunData] = MappingProxyType({}),
) -> RealPictures:
    """Open the real pictures that generated ones are compared with.

    Args:
        known: data that the run was trained on, by source; empty where nobody knows.

    Raises:
        BadInput: see `open_sources`; or they are no set of pictures.
    """
    sources: Data = dict.fromkeys(recipe.sources, data) if isinstance(data, PictureSet) else data
    options = SourceOptions(whole(recipe.data), Folders.from_environment().prepared, say, progress, {})
    name, opened = next(iter(_opened_sources(recipe, sources, options).items()))
    given = recipe.sources[name].fitted(name, opened.where, opened.source, options)
    if not isinstance(given, PictureSet):
        raise BadInput(f"--data {data}: expected pictures")
    of_run = opened.of_run(known[name], options) if name in known else None
    for line in opened.part_lines(of_run) if of_run is not None else ():
        say(f"data: {line}")
    return RealPictures(given, of_run)


def last_run_data(run: RunFolder) -> dict[str, RunData]:
    """Data that a run was last trained on, by source; empty before its first checkpoint.

    Checkpoints are not verified, for which they would have to be read as a whole.
    """
    for checkpoint in reversed(list_checkpoints(run.checkpoints)):
        if data := checkpoint_data(checkpoint.path):
            return data
        # else it is damaged; a line says so when the run goes on
    return {}


def checkpoint_data(checkpoint: Path | None) -> dict[str, RunData]:
    """Data that the run of a checkpoint was last trained on, by source; empty for none, or a damaged one."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        return {} if checkpoint is None else read_run_data(read_json(checkpoint / STATE_FILE))
    return {}


def run_data_of(
    recipe: Recipe,
    sources: Mapping[str, OpenedSource],
    known: Mapping[str, RunData],
    map_classes: Mapping[str, str] | None,
) -> dict[str, RunData]:
    """Data that a run is trained on from now on, by source.

    Args:
        recipe: recipe of the run.
        sources: opened sources, with the run's labels.
        known: data that it was trained on before; empty for a new run.
        map_classes: as for `train`.
    """
    needs = recipe.sources
    run_data = {}
    for name, source in sources.items():
        before, names = known.get(name), needs[name].class_names(source)
        mapping = None
        if before is not None and names:
            mapping = before.mapping if map_classes is None else map_classes
        first = before.first_digest if before else source.digest
        labels = source.label_digests if isinstance(source, Labelled) else None
        first_without = before.first_without_labels if before else None
        if labels is not None and source.digest == first:
            first_without = labels.without
        run_data[name] = RunData(
            source.digest, first, names, mapping, labels=labels, first_without_labels=first_without
        )
        if isinstance(source, PictureSet) and source.held_out is not None:
            test = source.held_out
            by_seed = before is not None and before.held_out_by_seed
            drawn = replace(run_data[name], held_out_below=source.held_out_below, held_out_by_seed=by_seed)
            run_data[name] = replace(drawn, held_out=test.digest)
    return run_data


PREVIEW = "preview"
"""Name of the stream that previews take their samples from."""

MOST_WORKERS = 8
"""Largest number of processes chosen by default. A sample of a face takes 11 ms at 256 pixels and 20 ms at 512 (AMD
EPYC, one core), so 8 processes make 700 and 400 a second."""


def default_workers(device: torch.device, ranks: int = 1) -> int:
    """Number of processes that make samples for all sources, where a kind of data needs any.

    0 beside a CPU that trains, else one for every two cores, up to MOST_WORKERS.

    Args:
        device: device that trains.
        ranks: number of ranks that share the machine's cores.
    """
    return 0 if device.type == "cpu" else min(MOST_WORKERS, max(1, (os.cpu_count() or 2) // (2 * ranks)))


@dataclass
class FeedWorkers:
    """Processes and other means that the readers of a feed share; see `Workers`."""

    count: int  # processes, for all sources together
    opened: ExitStack  # closes all that is shared
    _shared: dict[Hashable, object] = field(default_factory=dict)

    def shared(self, make: Callable[[int], Shared], close: Callable[[Shared], None]) -> Shared:
        """Return what `make(count)` gives, which is made once."""
        if make not in self._shared:
            shared = make(self.count)
            self._shared[make] = shared
            self.opened.callback(close, shared)
        return cast("Shared", self._shared[make])

    def at_end(self, close: Callable[[], object]) -> None:
        """Have something closed at the end."""
        self.opened.callback(close)


@dataclass
class SourceFeed:
    """Gives the engine its pictures."""

    sources: Mapping[str, OpenedSource]  # opened sources by name
    recipe: Recipe  # recipe as it is at present, for the seed and for making samples
    pinning: Pinning | None  # pins memory, so that a card copies pictures by itself; None: memory is not pinned
    workers: int  # processes that make samples for all sources; 0: threads of this process do
    seed: int | None = None  # seed of the order of pictures; None: the recipe's
    say: Say = quiet  # is told of means that this machine lacks
    # is told of every picture that cannot be read any more: source, picture, reason, and their number so far
    lost: Callable[[str, str, str, int], None] = lambda source, picture, reason, count: None
    _open: ExitStack = field(default_factory=ExitStack)
    _streams: dict[str, Prefetcher] = field(default_factory=dict)
    _last: dict[str, tuple[tuple[int, int], Mapping[str, Tensor]]] = field(default_factory=dict)
    _previews: dict[tuple[str, int], Mapping[str, Tensor]] = field(default_factory=dict)
    _said: list[str] = field(default_factory=list)
    _forgiving: dict[str, Forgiving] = field(default_factory=dict)
    _told: dict[str, int] = field(default_factory=dict)
    _lost: set[tuple[str, str]] = field(default_factory=set)
    _rereading: dict[str, Rereading] = field(default_factory=dict)
    _rewritten: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._shared = FeedWorkers(self.workers, self._open)

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        """Take pictures position, position+1, ... of a stream.

        The last ones are kept, as every phase of a step and every repetition of one takes them.
        """
        known = self._last.get(stream)
        if known is not None and known[0] == (position, count):
            return known[1]
        if stream not in self._streams:
            reader = self._reader(source, stream, self._shared, self.seed)
            prefetched = Prefetcher(reader, pinning=self.pinning, say=self._say_once)
            self._streams[stream] = self._open.enter_context(prefetched)
            if isinstance(reader, Forgiving):
                self._forgiving[stream] = reader
            if isinstance(reader, Rereading):
                self._rereading[stream] = reader
        self._tell_lost(source, stream)
        self._tell_rewritten(source, stream)
        self._last.pop(stream, None)  # otherwise two batches would be held while the third is read
        self._last[stream] = ((position, count), self._streams[stream].take(position, count))
        return self._last[stream][1]

    def _tell_lost(self, source: str, stream: str) -> None:
        """Report every picture that a stream has skipped, once."""
        if stream not in self._forgiving:
            return
        lost = self._forgiving[stream].passed_over
        for picture, reason in [*lost.items()] if len(lost) > self._told.get(stream, 0) else ():
            if (source, picture) not in self._lost:
                self._lost.add((source, picture))
                self.lost(source, picture, reason, len(self._lost))
        self._told[stream] = len(lost)

    def _tell_rewritten(self, source: str, stream: str) -> None:
        """Tell once that files of a source have been written since it was opened."""
        number = self._rereading[stream].rewritten if stream in self._rereading else 0
        if number and source not in self._rewritten:
            self._rewritten.add(source)
            self.say(
                f"data {source}: {count(number, 'face')} changed since the start, so far: read again as they come, "
                "with the masks and labels of the start until the run is started again"
            )

    def _say_once(self, line: str) -> None:
        if not self._said:
            self._said.append(line)
            self.say(line)

    def preview(self, source: str, count: int) -> Mapping[str, Tensor]:
        """Return a few pictures, each time the same ones, from no stream of training."""
        if (source, count) not in self._previews:
            self._previews[source, count] = self._reader(source, f"{source}/{PREVIEW}", None).take(0, count)
        return self._previews[source, count]

    def _reader(self, source: str, stream: str, workers: FeedWorkers | None, order: int | None = None) -> Reader:
        recipe = self.recipe
        need = recipe.sources[source]
        opened: Any = self.sources[source]
        seed, settings = recipe.training.seed if order is None else order, recipe.data
        return need.reader(opened, self.sources, seed=seed, stream=stream, settings=settings, workers=workers)


@contextmanager
def feeding(
    sources: Mapping[str, OpenedSource],
    recipe: Recipe,
    device: torch.device,
    *,
    workers: int | None = None,
    ranks: int = 1,
    seed: int | None = None,
    say: Say = quiet,
    lost: Callable[[str, str, str, int], None] = lambda source, picture, reason, count: None,
) -> Iterator[SourceFeed]:
    """Open a feed whose reading threads and processes end with the block.

    Args:
        sources: opened sources by name.
        recipe: recipe of the training.
        device: device that trains; for a card, memory is pinned.
        workers: processes that make samples; None: see `default_workers`.
        ranks: number of ranks that share the machine's cores.
        seed: see `SourceFeed`.
        say: see `SourceFeed`.
        lost: see `SourceFeed`.
    """
    accelerator = accelerator_of(device)
    count = default_workers(device, ranks) if workers is None else workers
    feed = SourceFeed(sources, recipe, accelerator if accelerator.is_card else None, count, seed, say, lost)
    with feed._open:
        yield feed
