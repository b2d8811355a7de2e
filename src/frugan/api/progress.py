"""How what is called tells its caller what it does: lines, and how far it has come."""

from collections.abc import Callable

Say = Callable[[str], None]
"""Is given a line for every automatic choice."""

Progress = Callable[[int, int], None]
"""Is given (done, all)."""


def quiet(_: object) -> None:
    """Say or show nothing."""
