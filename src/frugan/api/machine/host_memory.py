"""How much memory this computer has, and how much of it a process may take."""

import os
from pathlib import Path

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def physical_bytes() -> int | None:
    """Return the memory of this computer; None where the system does not say (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def container_limit(file: Path = CGROUP_LIMIT) -> int | None:
    """Return what the container may take; None: there is none, or no limit."""
    try:
        return int(file.read_text("utf-8"))
    except (OSError, ValueError):  # no such file, or "max"
        return None


def host_bytes() -> int | None:
    """Return what a process here may take: the computer's memory or its container's limit, whichever is less."""
    return min((each for each in (physical_bytes(), container_limit()) if each is not None), default=None)
