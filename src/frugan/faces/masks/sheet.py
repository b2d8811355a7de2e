"""A sheet of faces with their labels and masks, and on which a network is least sure."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.faces.data.face import Face
from frugan.faces.data.geometry import opencv
from frugan.faces.masks.applying import MaskOptions, open_masker, opened, with_frames
from frugan.faces.masks.label_files import key_of
from frugan.faces.xseg.masking import FoundMask, found_masks
from frugan.faces.xseg.samples import decoded_mask, polygon_mask
from frugan.files import atomic_file, write_flushed
from frugan.progress import Progress, Say
from frugan.wording import shown

CELL = 160
"""Pixels of a face's side on the sheet."""
TITLE = 18
MOST = 200
NEAR, NEIGHBOURHOODS = 12, 40
"""Faces to either side that are nearly the same: half a second of a film; a share of few faces, which differ more."""
COLUMNS = ("face", "label", "mask", "network")
ALONE = 5
"""Faces in a row of a sheet that has nothing else to show."""
GREEN = (0, 255, 0)
INCLUDED, EXCLUDED = (0, 220, 255), (60, 60, 255)
"""Colours of polygons, BGR: yellow and red."""
Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class Doubt:
    """How unsure a network is of a face."""

    name: str
    bits: float  # mean entropy of its pixels
    labelled: bool


def to_label_first(faces: Sequence[Face], doubts: Mapping[int, float]) -> list[int]:
    """Indices of faces, those to label next first, and those that have a label last.

    Faces follow each other as they do in the film, so those beside an unsure one are nearly its twins: a label of it
    helps with them too. So the least sure of each neighbourhood comes first, then the second, and so on; a labelled one
    is the first of its own.

    Args:
        faces: all, in the order of the film.
        doubts: index of a face -> how unsure a network is of it; what is missing is left out.
    """
    near = min(NEAR, len(faces) // NEIGHBOURHOODS)
    sure = np.full(len(faces) + 2 * near, -1.0)  # nobody is beside the first and the last
    for index, doubt in doubts.items():
        sure[near + index] = np.inf if faces[index].polygons else doubt
    own = sure[near : near + len(faces)]
    beside = [sure[near + by : near + by + len(faces)] for by in range(-near, near + 1)]
    rank = np.sum([other > own for other in beside], 0)
    return sorted(doubts, key=lambda index: (bool(faces[index].polygons), rank[index], -doubts[index], index))


def show_masks(
    source: Path, out: Path, count: int, weights: Path | None, options: MaskOptions, say: Say, progress: Progress | None
) -> list[Doubt]:
    """Draw faces, a row each: the face, its polygons, the mask that was applied, and the network's.

    What none of them has gets no column; faces that have none of it stand side by side.

    Args:
        source: faceset.
        out: the picture, such as masks.png.
        count: faces on it; with a network those without polygons of which it is least sure come first, without one
            those that have polygons or a mask.
        weights: network, see `open_masker`; None: only what the faces have.
        options: of the network.
        say: is given lines.
        progress: gets (faces done, faces in all).

    Returns:
        All faces, those of which the network is least sure first, spread over the film; empty without a network.

    Raises:
        BadInput: nothing to read, or `out` has the name of no picture.
    """
    if not 1 <= count <= MOST:
        raise BadInput(f"--count {count}: expected 1 to {MOST} faces")
    if out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise BadInput(f"{out}: expected a picture's name, such as masks.png")
    faceset = opened(source, say)
    found: dict[int, FoundMask] = {}
    if weights is not None:
        masker, lost = open_masker(weights, options, say), dict[str, str]()
        for index, mask in found_masks(with_frames(faceset, masker), masker, lost):
            found[index] = mask
            if progress is not None:
                progress(index + 1, len(faceset))
        for reason in list(lost.values())[:3]:
            say(f"left out: {reason}")
    faces = faceset.faces
    if not any(face.polygons for face in faces):
        say(
            f"none of the {len(faces):,} faces has a label: frugan masks draw {shlex.quote(str(source))} --in-place "
            "draws them, frugan masks import brings in those of other programs"
        )
    order: Sequence[int] = sorted(
        range(len(faces)), key=lambda index: not (faces[index].polygons or faces[index].xseg_mask is not None)
    )
    if found:
        order = to_label_first(faces, {index: mask.doubt for index, mask in found.items()})
    rows = [_cells(faces[index], faceset.picture(index), found.get(index)) for index in order[:count]]
    columns = [column for column in COLUMNS if any(column in row for row in rows)]
    with atomic_file(out) as beside:
        write_flushed(beside, _encoded(out, _sheet(rows, columns)))
    return [Doubt(key_of(faces[index]), found[index].doubt, bool(faces[index].polygons)) for index in order if found]


def _encoded(out: Path, picture: Picture) -> bytes:
    written, encoded = opencv().imencode(out.suffix.lower(), picture)
    if not written:
        raise BadInput(f"{shown(str(out))}: this OpenCV cannot write such pictures; choose masks.png")
    return bytes(encoded.tobytes())


def _sheet(rows: Sequence[Mapping[str, Picture]], columns: Sequence[str]) -> Picture:
    """Rows of cells below their titles, [_, _, 3]; faces alone fill rows of `ALONE`. What one does not have is grey."""
    nothing: Picture = np.full((CELL, CELL, 3), 160, np.uint8)
    if len(columns) > 1:
        lines = [[row.get(column, nothing) for column in columns] for row in rows]
        return np.concatenate([_titles(columns), *(np.concatenate(line, 1) for line in lines)])
    faces, wide = [row[columns[0]] for row in rows], min(ALONE, len(rows))
    faces += [np.full_like(nothing, 255)] * (-len(faces) % wide)
    return np.concatenate([np.concatenate(faces[at : at + wide], 1) for at in range(0, len(faces), wide)])


def _titles(columns: Sequence[str]) -> Picture:
    cv2, titles = opencv(), np.full((TITLE, CELL * len(columns), 3), 255, np.uint8)
    for number, column in enumerate(columns):
        cv2.putText(titles, column, (CELL * number + 4, TITLE - 5), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (0, 0, 0), 1)
    return titles


def _cells(face: Face, picture: Picture, found: FoundMask | None) -> Mapping[str, Picture]:
    """The cells of a face by column, each [CELL, CELL, 3]; those that it does not have are left out."""
    cv2 = opencv()
    plain = _cell(picture)
    cells = {"face": plain}
    if face.polygons:
        cells["label"] = label = _through(plain, polygon_mask(face.polygons, face.height, face.width))
        scale = np.array([CELL / face.width, CELL / face.height])
        for polygon in face.polygons:
            line = (polygon.points * scale).round().astype(np.int32)
            cv2.polylines(label, [line], True, INCLUDED if polygon.include else EXCLUDED, 1)
    if face.xseg_mask is not None:
        cells["mask"] = _through(plain, decoded_mask(face))
    if found is not None:
        cells["network"] = cell = _through(plain, found.mask.astype(np.float32) / np.float32(255))
        cv2.putText(cell, f"{found.doubt:.3f}", (4, CELL - 5), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (255, 255, 255), 1)
    cv2.putText(plain, Path(face.name).stem[:22], (4, CELL - 5), cv2.FONT_HERSHEY_SIMPLEX, 0.38, (255, 255, 255), 1)
    return cells


def _cell(picture: Picture) -> Picture:
    cell: Picture = opencv().resize(picture, (CELL, CELL), interpolation=opencv().INTER_AREA)
    return cell


def _through(cell: Picture, mask: NDArray[np.float32]) -> Picture:
    """A cell, half green where a mask, 0 to 1, is not."""
    inside = opencv().resize(mask.astype(np.float32), (CELL, CELL))[..., None]
    outside = (cell + np.array(GREEN, np.float32)) / 2
    return np.asarray((cell * inside + outside * (1 - inside)).clip(0, 255), np.uint8)
