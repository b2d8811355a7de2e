"""The sheet of masks, and which face to label next."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.faces.masks.applying import MaskOptions, opened, take_out
from frugan.faces.masks.sheet import CELL, TITLE, show_masks, to_label_first
from frugan.progress import quiet


def _read(path: Path) -> NDArray[np.uint8]:
    return np.asarray(cv2.imread(str(path)), np.uint8)


def test_what_faces_have(faces: Path, tmp_path: Path) -> None:
    assert show_masks(faces, tmp_path / "sheet.png", 9, None, MaskOptions(), quiet, None) == []
    sheet = _read(tmp_path / "sheet.png")[TITLE:]
    assert sheet.shape == (9 * CELL, 3 * CELL, 3)
    label, mask = sheet[:, CELL : 2 * CELL], sheet[:, 2 * CELL :]
    assert (mask[:CELL] == 160).all()  # none was applied to the first
    assert not all((mask[CELL * row : CELL * (row + 1)] == 160).all() for row in range(9))
    assert label[3, 3, 1] > label[3, 3, 2] + 50  # green outside of the label


def test_faces_without_labels_are_shown_as_they_are(faces: Path, tmp_path: Path, said: list[str]) -> None:
    """No grey cells: nothing is missing that was ever there."""
    bare = tmp_path / "bare"
    take_out(faces, "polygons", bare, quiet, None)
    take_out(bare, "xseg_mask", None, quiet, None)
    assert show_masks(bare, tmp_path / "sheet.png", 6, None, MaskOptions(), said.append, None) == []
    sheet = _read(tmp_path / "sheet.png")
    assert sheet.shape == (2 * CELL, 5 * CELL, 3)
    assert (sheet[CELL:, CELL:] == 255).all()  # the sixth is alone in its row
    assert (sheet[:CELL].reshape(-1, 3).std(0) > 5).all()
    (line,) = [line for line in said if "has a label" in line]
    assert line.startswith(f"none of the 9 faces has a label: frugan masks draw {bare} --in-place draws them")


def test_unlabelled_faces_come_first(faces: Path, original: Path, tmp_path: Path) -> None:
    doubts = show_masks(faces, tmp_path / "sheet.png", 3, original, MaskOptions(), quiet, None)
    assert [doubt.name for doubt in doubts if not doubt.labelled] == [doubts[0].name] == ["00005_0.jpg"]
    rest = [doubt.bits for doubt in doubts[1:]]
    assert rest == sorted(rest, reverse=True)
    assert all(0 < bits <= 1 for bits in rest)
    assert _read(tmp_path / "sheet.png").shape == (TITLE + 3 * CELL, 4 * CELL, 3)


def test_twins_of_an_unsure_face_come_later(faces: Path) -> None:
    """Three unsure moments of a film of 200 faces are named before their neighbours; of nine faces each is its own."""
    bare, labelled = (
        next(face for face in opened(faces, quiet).faces if bool(face.polygons) is known) for known in (False, True)
    )
    doubts = {n: max(0.9 - 0.01 * abs(n - at) - 0.1 * row for row, at in enumerate((40, 120, 160))) for n in range(200)}
    assert to_label_first([bare] * 200, doubts)[:3] == [40, 120, 160]
    order = to_label_first([labelled if n == 41 else bare for n in range(200)], doubts)
    assert (order[:2], order[-1]) == ([120, 160], 41)  # the first moment has a label
    assert sorted(order) == list(range(200))
    assert to_label_first([bare] * 9, {n: n / 10 for n in range(1, 9)}) == [8, 7, 6, 5, 4, 3, 2, 1]


def test_no_picture_is_refused(faces: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"such as masks\.png"):
        show_masks(faces, tmp_path / "sheet.txt", 3, None, MaskOptions(), quiet, None)
    with pytest.raises(BadInput, match="--count 0: expected 1 to 200"):
        show_masks(faces, tmp_path / "sheet.png", 0, None, MaskOptions(), quiet, None)
