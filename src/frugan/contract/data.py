"""Data sources, and the kinds of data that families read from them, such as pictures or aligned faces.

A kind of data is one class with the methods of `SourceSpec`. A family says what it needs by objects of such classes.
The code that opens, checks and reads sources, or plans with blank ones, asks these objects and knows no kind by name.
So a new kind of data is a class beside the family that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from frugan.contract.settings import DataSettings

Shared = TypeVar("Shared")

Channels = Literal[1, 3]
"""Channels of a picture: grey, or red, green and blue."""


@runtime_checkable
class OpenedSource(Protocol):
    """An opened source of data."""

    @property
    def digest(self) -> str:
        """Digest of all that training reads: equal digests mean equal training data."""

    def __len__(self) -> int:
        """Number of samples."""


class Reader(Protocol):
    """An endless stream of samples, as a pure function of position: to resume, a counter is enough."""

    def take(self, position: int, count: int) -> dict[str, Tensor]:
        """Samples at position, position+1, ...: name -> [count, ...] on the host."""


class Workers(Protocol):
    """Processes and other means that the readers of a run share, until its data are closed.

    Attributes:
        count: processes that may make samples, for all sources together; 0: none.
    """

    @property
    def count(self) -> int: ...

    def shared(self, make: Callable[[int], Shared], close: Callable[[Shared], None]) -> Shared:
        """Return what `make(count)` gives, which is made once for all callers with the same `make` and closed at the
        end."""

    def at_end(self, close: Callable[[], object]) -> None:
        """Have something closed at the end, before the shared objects."""


@runtime_checkable
class Forgiving(Protocol):
    """A reader that skips pictures which cannot be read any more, and keeps count of them."""

    @property
    def passed_over(self) -> Mapping[str, str]:
        """Picture -> why it cannot be read."""


@runtime_checkable
class Rereading(Protocol):
    """A reader of files that may be written while they are in use."""

    @property
    def rewritten(self) -> int:
        """Files that have been written since they were opened, as far as is known: 0 until it met the first."""


@dataclass(frozen=True)
class LabelDigests:
    """Digests of a source's labels, such as masks, apart from what they are of, so that a change of them is known."""

    without: str  # digest of all but the labels
    each: tuple[str, ...]  # a short one of each sample's labels

    def changed_since(self, before: LabelDigests | None) -> int:
        """Return how many samples have other labels than before; 0: none, or they are other samples."""
        if before is None or self.without != before.without:
            return 0
        return sum(now != was for now, was in zip(self.each, before.each, strict=True))


@runtime_checkable
class Labelled(Protocol):
    """A source whose samples have labels that may be made anew while all else stays."""

    @property
    def label_digests(self) -> LabelDigests | None:
        """Its labels; None: it cannot tell them from the rest."""


@dataclass(frozen=True)
class RunData:
    """A data source of a run, as checkpoints keep it."""

    digest: str  # digest of the pictures that the run was last trained on
    first_digest: str  # digest of the pictures that it began with
    # what the labels mean, in their order; empty: there are no classes, or the run began before names were kept
    class_names: tuple[str, ...] = ()
    # class of the pictures -> its name in the run, for classes that have another name there; None: all have the
    # run's names and order
    mapping: Mapping[str, str] | None = None
    held_out: str | None = None  # digest of its test pictures; None: it has none
    # drawn numbers below it are of test pictures; None: there are none, or they were drawn by places in the set
    held_out_below: float | None = None
    held_out_by_seed: bool = False  # whether its recipe's seed drew them, as in runs of earlier versions
    labels: LabelDigests | None = None  # of what it was last trained on; None: nobody knows
    first_without_labels: str | None = None  # digest of what it began with, but for labels; None: nobody knows

    @classmethod
    def read(cls, entry: Any) -> RunData:
        """Read an entry of a checkpoint's JSON; in the first checkpoints it was the digest alone."""
        if isinstance(entry, str):
            return cls(entry, entry)
        names = tuple(entry["class_names"])
        held_out, below = entry.get("held_out"), entry.get("held_out_below")
        by_seed = entry.get("held_out_by_seed", held_out is not None)
        kept = entry.get("labels")
        labels = None if kept is None else LabelDigests(kept["without"], tuple(kept["each"].split()))
        return cls(
            entry["digest"],
            entry["first_digest"],
            names,
            entry["mapping"],
            held_out,
            below,
            by_seed,
            labels,
            entry.get("first_without_labels"),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the entry for a checkpoint's JSON."""
        labels = None if self.labels is None else {"without": self.labels.without, "each": " ".join(self.labels.each)}
        return asdict(self) | {"labels": labels}


@dataclass(frozen=True)
class SourceOptions:
    """Options for opening the sources of a run."""

    settings: DataSettings  # the recipe's section `data`
    prepared: Path  # folder for prepared data, which are made once
    say: Callable[[str], None]  # is given a line for every automatic choice
    progress: Callable[[int, int], None] | None  # is given (done, all) while data are prepared; None: not reported
    known: Mapping[str, RunData]  # source -> data that the resumed run was trained on; empty for a new run
    # class of the data -> its name in the resumed run, where classes were renamed; None: as before
    map_classes: Mapping[str, str] | None = None


class SourceSpec(Protocol):
    """Requirements of a family on one source; the class of the object is the kind of data."""

    @property
    def resolution(self) -> int:
        """Side of the square pictures in pixels."""

    @property
    def classes(self) -> int | None:
        """Number of classes; None: labels are not read."""

    @property
    def given(self) -> bool:
        """Whether the networks make their samples from samples of this source, and not from random inputs."""

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample on the host."""

    def check_settings(self, settings: DataSettings) -> None:
        """Refuse settings of a recipe that have no effect on this kind of data.

        Raises:
            ValueError: it says which settings, and what to set instead.
        """

    def locate(self, path: Path, names: Sequence[str]) -> Mapping[str, Path] | None:
        """Find all of a family's sources under one path: source -> path. None: each source is named by itself.

        Raises:
            BadInput: a source that should be there is not.
        """

    def open(self, name: str, path: Path, options: SourceOptions) -> Any:
        """Open a source.

        Raises:
            BadInput: it is missing, damaged or of another kind.
        """

    def fitted(self, name: str, where: str, source: Any, options: SourceOptions) -> Any:
        """Return the source as the family reads it.

        Args:
            where: name and place of the source, for messages.

        Raises:
            BadInput: the family cannot be trained on this source.
        """

    def check_together(self, sources: Mapping[str, Any]) -> None:
        """Refuse sources of this kind that do not go together.

        Raises:
            BadInput: it says what differs.
        """

    def class_names(self, source: Any) -> tuple[str, ...]:
        """Names of the classes that the labels stand for; empty: the family reads no labels."""

    def advice(self, source: Any) -> Iterable[str]:
        """Lines that tell a person who begins a run on this source what would train better."""

    def reader(
        self,
        source: Any,
        sources: Mapping[str, Any],
        *,
        seed: int,
        stream: str,
        settings: DataSettings,
        workers: Workers | None,
    ) -> Reader:
        """Return a stream of samples.

        Args:
            sources: all sources of the run, by name.
            seed: the recipe's.
            stream: name of the stream; streams of different names differ.
            settings: the recipe's.
            workers: processes that may help; None: samples are made within `take`.
        """

    def blank(self, count: int) -> dict[str, Tensor]:
        """Samples without content, for plans: neither memory nor time of a step depends on the content."""
