"""A demo that was asked to stop: saved, and not judged."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StoppedDemo:
    """Where it stands.

    Attributes:
        run: the run folder.
        step: steps done; the same command does the others.
    """

    run: Path
    step: int
