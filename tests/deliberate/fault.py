"""A deliberate fault."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A change of the code that tests must notice.

    Attributes:
        name: what goes wrong.
        file: in `src/frugan`.
        old: text that stands there once.
        new: what takes its place.
        tests: what should fail, as pytest names it, in `tests`.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str
