"""What is said where faces are given as pictures that a recipe is to be chosen for."""

import shlex
from pathlib import Path

from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import NotJpeg, metadata_segments
from frugan.faces.data.faceset import ALIGNED, HEAD_BYTES, SOURCES, listed
from frugan.faces.data.faceset_pak import PAK_NAME
from frugan.wording import shown

LOOKED_AT = 8
"""Pictures whose metadata tell whether a folder holds aligned faces."""


def notice_of_faces(path: Path) -> str | None:
    """Return a line on a folder of aligned faces; None: it is none.

    Raises:
        BadInput: it is a DeepFaceLab workspace, whose folders are no classes of pictures, a side of one, or a pak.
    """
    if any((path / folder / ALIGNED).is_dir() for folder in SOURCES.values()):
        raise _needs_recipe(path, "a DeepFaceLab workspace", path)
    if path.name in SOURCES.values() and (path / ALIGNED).is_dir():
        raise _needs_recipe(path, "one side of a DeepFaceLab workspace", path.parent)
    if path.name == PAK_NAME and path.is_file():
        raise _needs_recipe(path, "a set of aligned faces", None)
    if not path.is_dir() or not _are_aligned(path):
        return None
    return (
        "faces: these are faces that DeepFaceLab aligned; without a recipe they are trained on as pictures are, to "
        "draw new ones. To swap two faces, name a face recipe and both sides: frugan train saehd-df-ud-256 --data "
        "src=PATH --data dst=PATH --out runs/swap"
    )


def _needs_recipe(path: Path, what: str, workspace: Path | None) -> BadInput:
    """Error for faces without a recipe; `workspace`: which one to name, None: nobody knows the other side."""
    given = "--data src=PATH --data dst=PATH" if workspace is None else f"--data {shlex.quote(str(workspace))}"
    return BadInput(
        f"--data {shown(str(path))}: this is {what}, and frugan chooses no recipe for faces; name one. With a card: "
        f"frugan train saehd-df-ud-256 {given} --out runs/swap (or quick96, for a first look). Without one: frugan "
        f"train saehd-demo-64 {given} --out runs/swap. All of them: frugan recipes"
    )


def _are_aligned(folder: Path) -> bool:
    """Return whether the first pictures of a folder, or of the folders in it, have metadata of faces."""
    try:
        names, folders = listed(folder)
        names = names or [f"{inner}/{name}" for inner in folders[:LOOKED_AT] for name in listed(folder / inner)[0]]
    except BadInput:
        return False  # told of where its pictures are read
    return bool(names) and all(_has_metadata(folder / name) for name in names[:LOOKED_AT])


def _has_metadata(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return any(True for _ in metadata_segments(file.read(HEAD_BYTES)))
    except (OSError, NotJpeg):
        return False
