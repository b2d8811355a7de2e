"""Translation between a family's tensors and another program's: one table, read in both directions."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

Change = Callable[[Tensor], Tensor]
_HOLE = re.compile(r"\{(\w+)\}")


def unchanged(value: Tensor) -> Tensor:
    """The tensor as it is."""
    return value


@dataclass(frozen=True)
class Row:
    """Names of a tensor on both sides, and how it changes on the way."""

    # name in the other program, with holes: "Generator/GBlock{block}/conv0/b"; None: it has no such tensor
    theirs: str | None
    ours: str | None  # name here, with the same holes; None: the tensor is left out here
    to_ours: Change = unchanged
    to_theirs: Change = unchanged  # the inverse of `to_ours`
    # makes the tensor here, from its shape, where the other program has none
    create: Callable[[Sequence[int]], Tensor] | None = None


@dataclass(frozen=True)
class Translated:
    """Tensors under the other side's names, and names that do not fit."""

    tensors: dict[str, Tensor]  # by their new names
    unused: tuple[str, ...] = ()  # names that no row knows
    missing: tuple[str, ...] = ()  # expected names that no tensor got
    doubled: tuple[str, ...] = ()  # names that several tensors got

    @property
    def faults(self) -> list[str]:
        """A line for every name that does not fit; empty: the two sides have the same tensors."""
        return [
            *(f"{name}: not there" for name in self.missing),
            *(f"{name}: unknown here" for name in self.unused),
            *(f"{name}: there twice" for name in self.doubled),
        ]


@dataclass(frozen=True)
class NameTable:
    """Names of a family's tensors in the files of another program."""

    rows: Sequence[Row]  # the first row that matches a name counts
    # hole -> what may stand in it: a pattern, the same on both sides, or the other program's spellings with ours
    holes: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)

    def to_ours(self, theirs: Mapping[str, Tensor], expected: Mapping[str, Sequence[int]] | None = None) -> Translated:
        """Translate tensors of the other program to our names.

        Args:
            expected: name here -> shape. Tensors without a counterpart in the other program are created, and names
                that become none of these are unused. None: all names that come out are fine.
        """
        collected = _Collected()
        for name, value in theirs.items():
            self._translate(self._readers, name, value, collected, ours=True)
        if expected is None:
            return collected.result(())
        collected.keep(expected)
        for name in expected.keys() - collected.tensors.keys():
            create = next((row.create for pattern, row in self._creators if pattern.fullmatch(name)), None)
            if create is not None:
                collected.tensors[name] = create(expected[name])
        return collected.result(expected)

    def to_theirs(self, ours: Mapping[str, Tensor], expected: Iterable[str] = ()) -> Translated:
        """Translate our tensors to the other program's names.

        Args:
            expected: names there that must come out.
        """
        collected = _Collected()
        for name, value in ours.items():
            self._translate(self._writers, name, value, collected, ours=False)
        return collected.result(expected)

    def _translate(
        self,
        by: Sequence[tuple[re.Pattern[str], Row]],
        name: str,
        value: Tensor,
        collected: "_Collected",
        *,
        ours: bool,
    ) -> None:
        for pattern, row in by:
            if (match := pattern.fullmatch(name)) is not None:
                into = row.ours if ours else row.theirs
                if into is not None:
                    change = row.to_ours if ours else row.to_theirs
                    collected.add(name, self._filled(into, match.groupdict(), ours=ours), change(value))
                return
        collected.unused.append(name)

    def _filled(self, name: str, values: Mapping[str, str], *, ours: bool) -> str:
        def spelled(hole: re.Match[str]) -> str:
            known, value = self.holes[hole[1]], values[hole[1]]
            if isinstance(known, str):
                return value
            return known[value] if ours else next(there for there, here in known.items() if here == value)

        return _HOLE.sub(spelled, name)

    @cached_property
    def _readers(self) -> list[tuple[re.Pattern[str], Row]]:
        return [(self._pattern(row.theirs, ours=False), row) for row in self.rows if row.theirs is not None]

    @cached_property
    def _writers(self) -> list[tuple[re.Pattern[str], Row]]:
        return [(self._pattern(row.ours, ours=True), row) for row in self.rows if row.ours is not None]

    @cached_property
    def _creators(self) -> list[tuple[re.Pattern[str], Row]]:
        return [(pattern, row) for pattern, row in self._writers if row.create is not None]

    def _pattern(self, name: str, *, ours: bool) -> re.Pattern[str]:
        parts = _HOLE.split(name)  # text and holes in turn
        return re.compile(
            "".join(self._group(part, ours=ours) if i % 2 else re.escape(part) for i, part in enumerate(parts))
        )

    def _group(self, hole: str, *, ours: bool) -> str:
        known = self.holes[hole]
        spellings = known if isinstance(known, str) else "|".join(map(re.escape, known.values() if ours else known))
        return f"(?P<{hole}>{spellings})"


class _Collected:
    """Results of a translation so far."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.unused: list[str] = []
        self._doubled: list[str] = []
        self._sources: dict[str, str] = {}  # new name -> old name

    def add(self, source: str, name: str, value: Tensor) -> None:
        if name in self.tensors:
            self._doubled.append(name)
        self.tensors[name] = value
        self._sources[name] = source

    def keep(self, expected: Collection[str]) -> None:
        for name in [name for name in self.tensors if name not in expected]:
            del self.tensors[name]
            self.unused.append(self._sources[name])

    def result(self, expected: Iterable[str]) -> Translated:
        missing = tuple(sorted(set(expected) - self.tensors.keys()))
        return Translated(self.tensors, tuple(sorted(self.unused)), missing, tuple(sorted(self._doubled)))
