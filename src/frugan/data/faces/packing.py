"""A folder of aligned faces packed into one file, which DeepFaceLab reads too."""

from collections.abc import Callable
from pathlib import Path

from frugan.data.faces.faceset import open_faceset, pack_faceset


def pack(source: Path, out: Path, say: Callable[[str], None], progress: Callable[[int, int], None] | None) -> int:
    """Pack faces.

    Returns:
        How many.

    Raises:
        BadInput: no faces, or `out` exists.
    """
    faces = open_faceset(source)
    say(f"data: {len(faces.faces):,} faces in {faces.path}")
    if faces.passed_over_line:
        say(f"data: {faces.passed_over_line}")
    out.parent.mkdir(parents=True, exist_ok=True)
    pack_faceset(faces, out, progress)
    return len(faces)
