"""A sheet of faces with their labels and masks, and on which a network is least sure."""

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


def show_masks(
    source: Path, out: Path, count: int, weights: Path | None, options: MaskOptions, say: Say, progress: Progress | None
) -> list[Doubt]:
    """Draw faces, a row each: the face, its polygons, the mask that was applied, and the network's.

    Args:
        source: faceset.
        out: the picture, such as masks.png.
        count: faces on it; with a network those without polygons of which it is least sure come first.
        weights: network, see `open_masker`; None: only what the faces have.
        options: of the network.
        say: is given lines.
        progress: gets (faces done, faces in all).

    Returns:
        All faces, those of which the network is least sure first; empty without a network.

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
    order = sorted(found, key=lambda index: (bool(faces[index].polygons), -found[index].doubt)) or range(len(faces))
    rows = [_row(faces[index], faceset.picture(index), found.get(index)) for index in list(order)[:count]]
    columns = ("face", "label", "mask", *(["network"] if found else []))
    with atomic_file(out) as beside:
        write_flushed(beside, _encoded(out, np.concatenate([_titles(columns), *rows])))
    return [Doubt(key_of(faces[index]), found[index].doubt, bool(faces[index].polygons)) for index in order if found]


def _encoded(out: Path, picture: Picture) -> bytes:
    written, encoded = opencv().imencode(out.suffix.lower(), picture)
    if not written:
        raise BadInput(f"{shown(str(out))}: this OpenCV cannot write such pictures; choose masks.png")
    return bytes(encoded.tobytes())


def _titles(columns: tuple[str, ...]) -> Picture:
    cv2, titles = opencv(), np.full((TITLE, CELL * len(columns), 3), 255, np.uint8)
    for number, column in enumerate(columns):
        cv2.putText(titles, column, (CELL * number + 4, TITLE - 5), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (0, 0, 0), 1)
    return titles


def _row(face: Face, picture: Picture, found: FoundMask | None) -> Picture:
    """The cells of a face, [CELL, columns * CELL, 3]; what it does not have is grey."""
    cv2 = opencv()
    plain = _cell(picture)
    nothing: Picture = np.full_like(plain, 160)
    label, applied = nothing, nothing
    if face.polygons:
        label = _through(plain, polygon_mask(face.polygons, face.height, face.width))
        scale = np.array([CELL / face.width, CELL / face.height])
        for polygon in face.polygons:
            line = (polygon.points * scale).round().astype(np.int32)
            cv2.polylines(label, [line], True, INCLUDED if polygon.include else EXCLUDED, 1)
    if face.xseg_mask is not None:
        applied = _through(plain, decoded_mask(face))
    cells = [plain, label, applied]
    if found is not None:
        cells.append(_through(plain, found.mask.astype(np.float32) / np.float32(255)))
        cv2.putText(cells[-1], f"{found.doubt:.3f}", (4, CELL - 5), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (255, 255, 255), 1)
    cv2.putText(plain, Path(face.name).stem[:22], (4, CELL - 5), cv2.FONT_HERSHEY_SIMPLEX, 0.38, (255, 255, 255), 1)
    return np.concatenate(cells, 1)


def _cell(picture: Picture) -> Picture:
    cell: Picture = opencv().resize(picture, (CELL, CELL), interpolation=opencv().INTER_AREA)
    return cell


def _through(cell: Picture, mask: NDArray[np.float32]) -> Picture:
    """A cell, half green where a mask, 0 to 1, is not."""
    inside = opencv().resize(mask.astype(np.float32), (CELL, CELL))[..., None]
    outside = (cell + np.array(GREEN, np.float32)) / 2
    return np.asarray((cell * inside + outside * (1 - inside)).clip(0, 255), np.uint8)
