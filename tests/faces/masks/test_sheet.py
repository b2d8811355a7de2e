"""The sheet of masks, and which face to label next."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.faces.masks.applying import MaskOptions
from frugan.faces.masks.sheet import CELL, TITLE, show_masks
from frugan.progress import quiet


def _read(path: Path) -> NDArray[np.uint8]:
    return np.asarray(cv2.imread(str(path)), np.uint8)


def test_what_faces_have(faces: Path, tmp_path: Path) -> None:
    assert show_masks(faces, tmp_path / "sheet.png", 4, None, MaskOptions(), quiet, None) == []
    sheet = _read(tmp_path / "sheet.png")
    assert sheet.shape == (TITLE + 4 * CELL, 3 * CELL, 3)
    first_label, first_mask = sheet[TITLE : TITLE + CELL, CELL : 2 * CELL], sheet[TITLE : TITLE + CELL, 2 * CELL :]
    assert (first_mask == 160).all()  # no mask was applied to it
    assert first_label[3, 3, 1] > first_label[3, 3, 2] + 50  # green outside of the label


def test_unlabelled_faces_come_first(faces: Path, original: Path, tmp_path: Path) -> None:
    doubts = show_masks(faces, tmp_path / "sheet.png", 3, original, MaskOptions(), quiet, None)
    assert [doubt.name for doubt in doubts if not doubt.labelled] == [doubts[0].name] == ["00005_0.jpg"]
    rest = [doubt.bits for doubt in doubts[1:]]
    assert rest == sorted(rest, reverse=True)
    assert all(0 < bits <= 1 for bits in rest)
    assert _read(tmp_path / "sheet.png").shape == (TITLE + 3 * CELL, 4 * CELL, 3)


def test_no_picture_is_refused(faces: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"such as masks\.png"):
        show_masks(faces, tmp_path / "sheet.txt", 3, None, MaskOptions(), quiet, None)
    with pytest.raises(BadInput, match="--count 0: expected 1 to 200"):
        show_masks(faces, tmp_path / "sheet.png", 0, None, MaskOptions(), quiet, None)
