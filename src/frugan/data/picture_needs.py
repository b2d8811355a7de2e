"""Sets of pictures as a kind of data: what a family that learns pictures, by classes or not, asks for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from frugan.contract.data import Channels, SourceOptions, Workers
from frugan.contract.settings import DataSettings
from frugan.data.batches import Batches
from frugan.data.picture_set import PictureSet
from frugan.data.run_classes import as_in_run
from frugan.errors import BadInput


@dataclass(frozen=True)
class PictureNeeds:
    """What a family expects of a source of pictures: "pictures" uint8 [n, channels, R, R] and "labels" int64 [n].

    Attributes:
        resolution: side of the square pictures.
        classes: number of classes; None: labels are not read.
        channels: 3: red, green, blue; 1: grey. A family that offers the choice calls it `networks.channels`.
    """

    resolution: int
    classes: int | None
    channels: Channels = 3

    @property
    def given(self) -> bool:
        """False: pictures are learnt from, and samples are drawn from random inputs."""
        return False

    @property
    def sample_bytes(self) -> int:
        """Bytes of a picture."""
        return self.channels * self.resolution**2

    def check_settings(self, settings: DataSettings) -> None:
        """All of them are for pictures."""

    def locate(self, path: Path, names: Sequence[str]) -> None:
        """Each source is named by itself."""

    def open(self, name: str, path: Path, options: SourceOptions) -> PictureSet:
        """Open a prepared set, or prepare any other source once; see `open_pictures`."""
        from frugan.data.open_pictures import open_pictures  # noqa: PLC0415  (decoders: a plan needs none)

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
        found = len(pictures.class_names)
        if self.classes > 1 and not pictures.labelled:
            raise BadInput(
                f"{where}: one class (a flat folder, no labels), but the recipe has {self.classes}; to train without "
                "classes, add networks.classes=1; otherwise put the pictures of each class in a folder of its own"
            )
        if found != self.classes:
            raise BadInput(
                f"{where}: {found:,} classes, but the recipe has {self.classes:,}; add networks.classes={found} when "
                "you begin a run, or give the folder that contains your class folders"
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
        """Any sets of pictures go together."""

    def class_names(self, source: PictureSet) -> tuple[str, ...]:
        """What the labels mean that are read; empty: none are."""
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
