"""Faults that a file may have by the hundred: the first of them are told."""

from collections.abc import Sequence

MOST_SHOWN = 8


def first_of(lines: Sequence[str], between: str = "\n  ") -> str:
    """The first few lines, and how many more there are."""
    more = [f"and {len(lines) - MOST_SHOWN} more"] if len(lines) > MOST_SHOWN else []
    return between.join([*lines[:MOST_SHOWN], *more])
