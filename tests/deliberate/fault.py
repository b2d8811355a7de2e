"""A deliberate fault."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A change of the code that tests must notice."""

    name: str  # what goes wrong
    file: str  # in `src/frugan`
    old: str  # text that stands there once
    new: str  # what takes its place
    tests: str  # what should fail, as pytest names it, in `tests`
