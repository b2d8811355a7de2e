"""What a family asks of a data source, and what stands behind it: a kind of data, such as pictures or aligned faces.

A kind of data is one class with the methods of `SourceSpec`. A family names what it needs by objects of such classes;
what opens, checks and reads sources, and what plans with blank ones, asks the object and knows no kind by name. So a
kind of one's own is a class beside the family that reads it.
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
"""Of pictures: grey, or red, green and blue."""


class OpenedSource(Protocol):
    """An opened source of data."""

    @property
    def digest(self) -> str:
        """Of all that training reads: equal digests mean equal training data."""

    def __len__(self) -> int:
        """Samples in it."""


class Reader(Protocol):
    """An endless stream of samples, as a pure function of position: to resume, a counter is enough."""

    def take(self, position: int, count: int) -> dict[str, Tensor]:
        """What stands at position, position+1, ...: name -> [count, ...] on the host."""


class Workers(Protocol):
    """What the readers of a run share, until its data are closed.

    Attributes:
        count: processes that may make samples, for all sources together; 0: none.
    """

    @property
    def count(self) -> int: ...

    def shared(self, make: Callable[[int], Shared], close: Callable[[Shared], None]) -> Shared:
        """What `make(count)` gives, made once for all that ask by the same `make`; it is closed at the end."""

    def at_end(self, close: Callable[[], object]) -> None:
        """Have something closed at the end, before what is shared."""


@runtime_checkable
class Forgiving(Protocol):
    """A reader that skips pictures which cannot be read any more, and keeps count of them."""

    @property
    def passed_over(self) -> Mapping[str, str]:
        """Picture -> why it cannot be read."""


@dataclass(frozen=True)
class RunData:
    """One data source of a run."""

    digest: str  # of the pictures that it was last trained on
    first_digest: str  # of those that it was begun with
    # what its labels mean, in their order; empty: it has no classes, or was begun before they were kept
    class_names: tuple[str, ...] = ()
    # class of the pictures -> its name in the run, for those that are called otherwise; None: all have the
    # run's names and order
    mapping: Mapping[str, str] | None = None

    @classmethod
    def read(cls, entry: Any) -> RunData:
        """From a checkpoint's JSON; at first that was the digest alone."""
        if isinstance(entry, str):
            return cls(entry, entry)
        return cls(entry["digest"], entry["first_digest"], tuple(entry["class_names"]), entry["mapping"])

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)


@dataclass(frozen=True)
class SourceOptions:
    """How the sources of a run are opened."""

    settings: DataSettings  # the recipe's, for pictures
    prepared: Path  # folder for what is prepared of them once
    say: Callable[[str], None]  # is given a line for every automatic choice
    progress: Callable[[int, int], None] | None  # (done, all) while something is prepared; None: nobody looks
    known: Mapping[str, RunData]  # what the run that goes on was trained on, by source; empty for a new one
    # class of the data -> its name in that run, where classes were renamed; None: as before
    map_classes: Mapping[str, str] | None = None


class SourceSpec(Protocol):
    """What a family expects of one source; the class of the object is the kind of data."""

    @property
    def resolution(self) -> int:
        """Side of the square pictures in pixels."""

    @property
    def classes(self) -> int | None:
        """Number of classes; None: labels are not read."""

    @property
    def given(self) -> bool:
        """Whether samples of the networks are made of samples of this source, and not drawn from random inputs."""

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample on the host."""

    def check_settings(self, settings: DataSettings) -> None:
        """Refuse settings of a recipe that have no effect on this kind of data.

        Raises:
            ValueError: saying which, and what is set instead.
        """

    def locate(self, path: Path, names: Sequence[str]) -> Mapping[str, Path] | None:
        """Where one path has all of a family's sources; None: each is named by itself.

        Raises:
            BadInput: it should have them, and does not.
        """

    def open(self, name: str, path: Path, options: SourceOptions) -> Any:
        """Open a source.

        Raises:
            BadInput: missing, damaged or of another kind.
        """

    def fitted(self, name: str, where: str, source: Any, options: SourceOptions) -> Any:
        """The source as the family reads it.

        Args:
            where: name and place of the source, for messages.

        Raises:
            BadInput: the family cannot be trained on it.
        """

    def check_together(self, sources: Mapping[str, Any]) -> None:
        """Refuse sources of this kind that do not go with each other.

        Raises:
            BadInput: saying what differs.
        """

    def class_names(self, source: Any) -> tuple[str, ...]:
        """What the labels mean that the family reads; empty: it reads none."""

    def advice(self, source: Any) -> Iterable[str]:
        """Lines for someone who begins a run on this source: what would do better."""

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
        """A stream of samples.

        Args:
            sources: all of the run, by name.
            seed: the recipe's.
            stream: its name, so that two streams differ.
            settings: the recipe's.
            workers: that may help; None: samples are made within `take`.
        """

    def blank(self, count: int) -> dict[str, Tensor]:
        """Samples without content: neither memory nor time of a step depends on it."""
