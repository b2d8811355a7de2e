"""Sets of pictures as a kind of data: what a family that learns pictures asks for, and how its sets are opened."""

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frugan.contract.data import Channels, SourceOptions, Workers
from frugan.contract.phase import MicroBatch
from frugan.contract.settings import DataSettings
from frugan.data.batches import Batches
from frugan.data.formats.decoding import LARGEST, background
from frugan.data.formats.detect import open_source
from frugan.data.formats.picture_set import PictureSet, open_prepared
from frugan.data.formats.set_file import PICTURES_FILE, Origin, is_prepared, read_set_file
from frugan.data.formats.source import Source, Unreadable, closed_on_failure
from frugan.data.in_place import open_in_place
from frugan.data.parts import refuse_too_few
from frugan.data.pixel_lines import range_lines
from frugan.data.prepare import fingerprint, kept_before, mend_block, prepare
from frugan.data.run_data import as_in_run
from frugan.data.survey import Fitting, Progress, fitting_lines, kept_lines, source_lines, survey
from frugan.errors import BadInput
from frugan.wording import first_names, shown

Say = Callable[[str], None]


class EncodedPictures:
    """N pictures of a source as an array uint8 [N, 3, R, R] of which only what is asked for exists.

    Args:
        source: stays open as long as this lives.
        members: indices in the source of the pictures that could be read.
        fitting: how they become squares.
        workers: threads that decode (Pillow's decoders let others run meanwhile).
    """

    def __init__(self, source: Source, members: NDArray[np.int64], fitting: Fitting, workers: int) -> None:
        self._source, self._members, self._fitting = source, members, fitting
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="frugan-decode")
        weakref.finalize(self, _close, self._pool, source)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[N, 3, R, R]."""
        return len(self), 3, self._fitting.resolution, self._fitting.resolution

    def __getitem__(self, indices: int | slice | NDArray[np.int64]) -> NDArray[np.uint8]:
        """Decode pictures.

        Raises:
            BadInput: one of them can no longer be read.
        """
        wanted = np.arange(len(self))[indices]
        if wanted.ndim == 0:
            return self._picture(int(wanted))
        decoded = list(self._pool.map(self._picture, wanted.tolist()))
        return np.stack(decoded) if decoded else np.empty((0, *self.shape[1:]), np.uint8)

    def _picture(self, index: int) -> NDArray[np.uint8]:
        member = int(self._members[index])
        try:
            return self._fitting(self._source.picture(member))  # [3, R, R]
        except Unreadable as error:
            raise BadInput(f"{shown(self._source.names[member])} can no longer be read ({error}).") from error


def _close(pool: ThreadPoolExecutor, source: Source) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    source.close()


def open_encoded(
    path: Path, fitting: Fitting, key: str, *, workers: int, say: Say, progress: Progress | None = None
) -> PictureSet:
    """Open pictures without preparing them.

    Args:
        path: anything that `prepare` takes, but a prepared set.
        key: `fingerprint` of path and fitting; stands for the pixels in the set's digest.
        workers: threads that decode.
        say: is told what was found.
        progress: gets (pictures done, pictures in all) while headers are read.

    Raises:
        BadInput: as `prepare`, or a prepared set, whose pixels are there already.
    """
    if is_prepared(path):
        raise BadInput(f"{shown(str(path))} is a prepared set: its pixels are there. Leave data.stored=encoded out.")
    source = open_source(path, fitting.reading)
    with closed_on_failure(source.close):
        surveyed = survey(source, fitting, workers=workers, progress=progress)
    members = np.setdiff1d(surveyed.members, list(surveyed.bad))
    found = fitting_lines(source, fitting, surveyed, surveyed.bad)
    for line in (*source_lines(source), *found, *range_lines(_largest_of_some(source, members))):
        say(f"data: {line}")
    say(f"data: {len(members):,} pictures stay encoded and are decoded as they are read, by {workers} threads")
    pictures = EncodedPictures(source, members, fitting, workers)
    return PictureSet(
        cast("NDArray[np.uint8]", pictures),  # what a set asks of its array, this has: length, shape, indices
        source.classes.labels[members],
        source.classes.names,
        source.classes.labelled,
        sha256(f"encoded {key}".encode()).hexdigest(),
    )


LOOKED_AT = 32
"""Pictures that are decoded to see what range they use."""


def _largest_of_some(source: Source, members: NDArray[np.int64]) -> list[int]:
    """Return the largest value of each picture of 16 bits among some, evenly from all."""
    largest = []
    for index in members[:: -(-len(members) // LOOKED_AT) or 1]:
        with suppress(Unreadable):  # is told of when its turn comes
            largest.append(source.picture(int(index)).info.get(LARGEST))
    return [value for value in largest if value is not None]


MOST_DECODERS = 8
"""Threads that decode pictures that stay encoded: more would wait for the disk."""


def open_pictures(path: Path, resolution: int, options: SourceOptions) -> PictureSet:
    """Open a prepared set, or a file whose pictures have the size already, where it lies.

    Any other source is prepared into the folder for prepared data, once.

    Raises:
        BadInput: missing, empty, unreadable, too small, or more than 1 % cannot be decoded.
    """
    if is_prepared(path) and (ready := open_prepared(path)).resolution == resolution:
        options.say(f"data: {path}: {len(ready):,} prepared pictures, mapped from disk")
        about = read_set_file(path)
        for line in (*kept_lines(about), *_without_effect(about.origin, options.settings)):
            options.say(f"data: {line}")
        return ready
    data = options.settings
    on = background(data.background)
    fitting = Fitting(resolution, data.resample, data.allow_upscale, on, data.fit, data.range)
    key = fingerprint(path, fitting)
    if data.stored == "encoded":
        workers = min(MOST_DECODERS, max(2, (os.cpu_count() or 2) - 1))
        return open_encoded(path, fitting, key, workers=workers, say=options.say, progress=options.progress)
    out = options.prepared / f"{path.resolve().name}-{resolution}-{key[:12]}"

    def mend(block: int) -> None:
        mend_block(out, block, path)
        options.say(f"data: {out / PICTURES_FILE} was damaged on the disk; that part of it is made again from {path}")

    kept = kept_before(out, key, lambda: open_prepared(out, mend=mend), options.say)
    if kept is None and (placed := open_in_place(path, fitting, out.with_name(f"{out.name}-in-place"), key, options)):
        return placed
    if kept is not None:
        lines, before = kept_lines(read_set_file(out)), ", prepared before from the same files"
    else:
        report = prepare(
            path,
            out,
            resolution=resolution,
            resample=data.resample,
            allow_upscale=data.allow_upscale,
            background=on,
            fit=data.fit,
            range=data.range,
            progress=options.progress,
        )
        kept, lines, before = open_prepared(out, mend=mend), report.lines, ""
    for line in lines:
        options.say(f"data: {line}")
    options.say(
        f"data: {len(kept):,} pictures of {resolution} pixels in {out}{before} (to keep them elsewhere, set "
        "FRUGAN_PREPARED)"
    )
    return kept


def _without_effect(origin: Origin, settings: DataSettings) -> Iterator[str]:
    """A line where a set was prepared otherwise than a recipe asks for."""
    wanted: dict[str, tuple[str, str]] = {
        "fit": (settings.fit, origin.fit),
        "resample": (settings.resample, origin.resample),
        "stored": (settings.stored, "pixels"),
    }
    if settings.range is not None:
        wanted["range"] = (f"{settings.range:.17g}", "none" if origin.range is None else f"{origin.range:.17g}")
    if origin.transparent:  # else what they would be laid on makes no difference
        wanted["background"] = (background(settings.background), origin.background)
    if other := [f"{field}={stored}, not {here}" for field, (here, stored) in wanted.items() if here != stored]:
        yield f"prepared with {'; '.join(other)}, which holds: what the recipe says of it has no effect"


def real_pictures(micro: MicroBatch) -> Tensor:
    """Pictures of the source "images" with values from -1 to 1 [n, channels, R, R]."""
    return micro.pictures["images"]["pictures"] / 127.5 - 1


@dataclass(frozen=True)
class PictureNeeds:
    """A source of pictures as a family expects it: "pictures" uint8 [n, channels, R, R] and "labels" int64 [n]."""

    resolution: int  # side of the square pictures
    classes: int | None  # number of classes; None: labels are not read
    # 3: red, green, blue; 1: grey. A family that offers the choice calls it `networks.channels`.
    channels: Channels = 3
    without_classes: str = "none"  # what `networks.classes` is then

    @property
    def given(self) -> bool:
        """False: pictures are learnt from, and samples are drawn from random inputs."""
        return False

    @property
    def sample_bytes(self) -> int:
        """Return the size of a picture in bytes."""
        return self.channels * self.resolution**2

    def check_settings(self, settings: DataSettings) -> None:
        """Refuse those that are for faces.

        Raises:
            ValueError: one is set.
        """
        for name in ("pretrain", "masks"):
            if (value := getattr(settings, name)) is not None:
                raise ValueError(f"data.{name}={value}: for faces alone; leave it out")

    def locate(self, path: Path, names: Sequence[str]) -> None:
        """Each source is named by itself."""

    def open(self, name: str, path: Path, options: SourceOptions) -> PictureSet:
        """Open a prepared set, or prepare any other source once; see `open_pictures`."""

        settings = options.settings
        if (settings.subset is not None or isinstance(settings.holdout, int)) and not is_prepared(path):
            with open_source(path) as source:
                refuse_too_few(len(source), settings, f"{name} {path}")
        return open_pictures(path, self.resolution, options)

    def fitted(self, name: str, where: str, source: PictureSet, options: SourceOptions) -> PictureSet:
        """The set with the labels of the run that goes on, if one does, and in the channels that are wanted.

        Raises:
            BadInput: of another resolution or number of classes, of other classes than the run's, or no pictures.
        """
        if not isinstance(source, PictureSet):
            raise BadInput(f"{where}: expected a set of pictures, not {type(source).__name__}")
        if name in options.known:
            source = as_in_run(where, source, self.classes, options.known[name], options.map_classes)
        self._check(where, source)
        if self.classes is not None and (empty := source.empty_classes):
            options.say(f"classes: {first_names(empty)} without pictures: nothing can be learned of such a class")
        if self.classes is None and source.labelled and len(source.class_names) > 1:
            options.say(
                "classes: not used, because this recipe trains without them; to train by class, if this model can: "
                f"networks.classes={len(source.class_names)}"
            )
        return self._in_channels(name, source, options)

    def _check(self, where: str, pictures: PictureSet) -> None:
        if pictures.resolution != self.resolution:
            raise BadInput(
                f"{where}: pictures of {pictures.resolution} pixels, but the recipe needs {self.resolution}; prepare "
                f"them with --resolution {self.resolution}"
            )
        if self.classes is None:
            return
        count = len(pictures.class_names)
        if self.classes > 1 and not pictures.labelled:
            raise BadInput(
                f"{where}: one class (a flat folder, no labels), but the recipe has {self.classes}; to train without "
                f"classes, begin a run with networks.classes={self.without_classes}; otherwise put the pictures of "
                "each class in a folder of its own (folders in a tar are no classes: unpack it)"
            )
        if count != self.classes:
            found, fitting = ("1 class", self.without_classes) if count == 1 else (f"{count:,} classes", count)
            raise BadInput(
                f"{where}: {found}, but the recipe has {self.classes:,}; begin a run with networks.classes={fitting}, "
                "or give the folder that contains your class folders"
            )

    def _in_channels(self, name: str, pictures: PictureSet, options: SourceOptions) -> PictureSet:
        if self.channels == 1:
            if not pictures.all_grey and pictures.channels == 3:
                options.say("data: pictures in colour are turned grey (ITU-R 601 luma), because networks.channels is 1")
            return pictures.in_grey()
        if pictures.channels == 1:
            raise BadInput(
                f"{name}: this set is read in grey, but the recipe needs colour: open the set without `in_grey`"
            )
        return pictures

    def check_together(self, sources: Mapping[str, PictureSet]) -> None:
        """Accept any combination: all picture sets go together."""

    def class_names(self, source: PictureSet) -> tuple[str, ...]:
        """Names of the classes that are read; empty: no labels are."""
        return source.class_names if self.classes is not None and source.labelled else ()

    def advice(self, source: PictureSet) -> Iterator[str]:
        """A line where pictures are all grey though the networks draw in colour."""
        if self.channels == 3 and source.all_grey:
            yield (
                f"data: all {len(source):,} pictures are grey: networks.channels=1 draws grey pictures, where three "
                "channels may tint them (add it to the command for a new run)"
            )

    def reader(
        self,
        source: PictureSet,
        sources: Mapping[str, object],
        *,
        seed: int,
        stream: str,
        settings: DataSettings,
        workers: Workers | None,
    ) -> Batches:
        """Every picture once per epoch; reading a prepared set needs no workers."""
        return Batches(source, seed=seed, name=stream, flip=settings.flip)

    def blank(self, count: int) -> dict[str, Tensor]:
        """Grey pictures of class 0."""
        pictures = torch.full((count, self.channels, self.resolution, self.resolution), 128, dtype=torch.uint8)
        return {"pictures": pictures, "labels": torch.zeros(count, dtype=torch.int64)}
