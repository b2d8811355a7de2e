"""Where frugan keeps what it makes: one base folder, and a setting for each kind of thing in it."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Folders:
    """Folders for what commands write when no path is given.

    Attributes:
        prepared: memory-mapped training sets.
        runs: run folders of `frugan train` without `--out`.
        moments: reference moments of data sets.
        cache: anything that can be computed again.
    """

    prepared: Path
    runs: Path
    moments: Path
    cache: Path

    @classmethod
    def from_environment(cls) -> "Folders":
        """Read FRUGAN_BASE (default: `.frugan` in the home folder) and the settings that override its parts:
        FRUGAN_PREPARED, FRUGAN_RUNS, FRUGAN_MOMENTS and FRUGAN_CACHE.
        """
        base = Path(os.environ.get("FRUGAN_BASE") or Path.home() / ".frugan").expanduser()

        def folder(name: str) -> Path:
            return Path(os.environ.get(f"FRUGAN_{name.upper()}") or base / name).expanduser()

        return cls(folder("prepared"), folder("runs"), folder("moments"), folder("cache"))
