"""Facesets of a workspace."""

from pathlib import Path


def find_facesets(path: Path) -> dict[str, Path]:
    """Find."""
    raise NotImplementedError
