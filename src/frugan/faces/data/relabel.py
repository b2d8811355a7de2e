"""Facesets with other polygons or masks, in place or to a new place; each file is whole, or as it was.

Source: DeepFaceLab's behaviour.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import Label, relabelled_jpeg
from frugan.faces.data.face import Face
from frugan.faces.data.faceset import Faceset, write_loose
from frugan.faces.data.faceset_pak import PAK_NAME, write_pak
from frugan.faces.data.geometry import opencv
from frugan.files import atomic_file, write_flushed
from frugan.wording import count, first_names, shown

MASK_SIDE = 256
"""Pixels of a stored mask's side, whatever the picture's."""
MOST_PNG_BYTES = 50_000
"""Larger masks are stored as the best JPEG that is not."""
LABELLED_SUFFIX = "_xseg"
"""End of the name of the folder into which labelled faces are fetched, as in the original."""

Changed = Iterable[tuple[int, Face]]
"""Faces with a new label and their indices, in rising order."""
Progress = Callable[[int, int], None]


def encoded_mask(mask: NDArray[np.uint8]) -> bytes:
    """Encode a mask, uint8 [H, W] of 0 and 255, as the original stores it: a PNG, or a JPEG if that is large."""
    cv2 = opencv()
    encoded: bytes = cv2.imencode(".png", mask)[1].tobytes()
    quality = 100
    while len(encoded) > MOST_PNG_BYTES and quality >= 0:
        encoded = cv2.imencode(".jpg", mask, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()
        quality -= 1
    return encoded


def relabel(faceset: Faceset, label: Label, changed: Changed, out: Path | None, progress: Progress | None) -> Path:
    """Write a faceset in which some faces have another label; all else stays, byte for byte.

    Args:
        faceset: the faces.
        label: polygons or mask.
        changed: faces with another one, which are asked for one by one.
        out: a new folder, or a file that ends in .pak; None: the faceset is changed where it is. Loose files are then
            replaced one by one, as faces come.
        progress: gets (faces written, faces in all).

    Returns:
        Where it was written.

    Raises:
        BadInput: `out` is there already, or a face's metadata do not fit into a JPEG.
        OSError: it cannot be read or written; loose files that were replaced before stay so, and each file is whole.
    """
    if out is None and not faceset.path.is_file():
        for index, face in changed:
            path = Path(faceset.places[index][0])
            content = relabelled_jpeg(path.read_bytes(), face, label)  # as it is by now, whoever has written it since
            with atomic_file(path) as beside:
                write_flushed(beside, content)
                shutil.copymode(path, beside)
            if progress is not None:
                progress(index + 1, len(faceset))
        return faceset.path
    if out is None and faceset.passed_over:
        raise BadInput(
            f"{shown(str(faceset.path))}: {count(len(faceset.passed_over), 'face')} in it cannot be read and would be "
            f"lost ({first_names(faceset.passed_over)}); write a new one (--out)"
        )
    target = faceset.path if out is None else new_place(faceset, out)
    after = dict(changed)
    jpegs = _jpegs(faceset, label, after)
    faces = [after.get(index, face) for index, face in enumerate(faceset.faces)]
    if target.suffix == Path(PAK_NAME).suffix:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_pak(target, faces, jpegs, progress)
    else:
        write_loose(target, faceset, jpegs, progress)
    return target


def new_place(faceset: Faceset, out: Path) -> Path:
    """Where a faceset is written by that name: a pak goes into a folder under the name that is looked for there.

    Raises:
        BadInput: it is there already.
    """
    is_pak = faceset.path.is_file() and out.suffix != Path(PAK_NAME).suffix
    target = out / PAK_NAME if is_pak else out
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise BadInput(f"{shown(str(target))}: is there already; choose a new place (--out)")
    return target


def _jpegs(faceset: Faceset, label: Label, after: dict[int, Face]) -> Iterator[bytes]:
    for index in range(len(faceset)):
        jpeg = faceset.encoded(index)
        yield relabelled_jpeg(jpeg, after[index], label) if index in after else jpeg


def without(faceset: Faceset, label: Label) -> Changed:
    """Faces that have a label, each without it."""
    for index, face in enumerate(faceset.faces):
        if label == "polygons" and face.polygons:
            yield index, replace(face, polygons=())
        elif label == "xseg_mask" and face.xseg_mask is not None:
            yield index, replace(face, xseg_mask=None)


def fetch_labelled(faceset: Faceset, out: Path, progress: Progress | None = None) -> int:
    """Copy the faces that have a polygon as loose files, byte for byte; whole or not at all.

    Returns:
        How many.

    Raises:
        BadInput: no face has one, or `out` holds something.
    """
    chosen = [at for at, face in enumerate(faceset.faces) if any(len(one.points) for one in face.polygons)]
    if not chosen:
        raise no_labels(faceset)
    some = replace(
        faceset,
        faces=tuple(faceset.faces[at] for at in chosen),
        places=tuple(faceset.places[at] for at in chosen),
    )
    write_loose(out, some, map(some.encoded, range(len(some))), progress)
    return len(some)


def no_labels(faceset: Faceset) -> BadInput:
    """Say that no face of a set has polygons, and how they come in."""
    return BadInput(
        f"{shown(str(faceset.path))}: none of its {len(faceset):,} faces has a label, expected polygons around the "
        "face: draw them by `frugan masks draw`, or in labelme or DeepFaceLab's mask editor, or take masks as PNGs, "
        "and bring them in by `frugan masks import`"
    )
