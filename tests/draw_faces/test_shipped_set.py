"""The set that ships is what the program draws."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from frugan.faces.data import drawn_faces
from frugan.faces.data.drawn_faces import SIDE_PIXELS, UNSEEN, Unseen, unseen_faces, write_drawn_faces
from frugan.faces.data.faceset import Faceset, find_facesets, open_faceset
from tools.draw_faces import shipped_set
from tools.draw_faces.drawn_faceset import draw_faceset
from tools.draw_faces.shipped_set import DESTINATION, MOMENTS, SEED, SOURCE, unseen

LEVELS_LOST = 3.0  # frames are stored as WebP
LEVELS = 1.0  # of 255, on average: another processor rounds otherwise; another face is tens away


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Faceset]:
    workspace = write_drawn_faces(tmp_path_factory.mktemp("shipped") / "workspace")
    return {side: open_faceset(folder) for side, folder in find_facesets(workspace).items()}


def apart(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> float:
    return float(abs(first.astype(np.float32) - second).mean())


@pytest.mark.parametrize(
    ("side", "person"), [("src", SOURCE), pytest.param("dst", DESTINATION, marks=pytest.mark.long)]
)
def test_faces_are_those_of_the_program(side: str, person: int, shipped: dict[str, Faceset], tmp_path: Path) -> None:
    frames = tmp_path / "frames"
    drawn = draw_faceset(tmp_path / "aligned", person, 2, seed=SEED, size=SIDE_PIXELS, frames=frames)
    again = open_faceset(tmp_path / "aligned")
    assert [face.name for face in shipped[side].faces[:2]] == [file.name for file in drawn]
    for index in range(2):
        assert apart(shipped[side].picture(index), again.picture(index)) < LEVELS
        np.testing.assert_allclose(shipped[side].faces[index].landmarks, again.faces[index].landmarks, atol=0.01)
    assert apart(shipped[side].picture(0), again.picture(1)) > 10 * LEVELS
    stored, first, second = (
        np.asarray(cv2.imread(str(path)), np.uint8)
        for path in (shipped[side].path.parent / "00000.png", frames / "00000.png", frames / "00001.png")
    )
    assert apart(stored, first) < LEVELS_LOST
    assert apart(stored, second) > 10 * LEVELS_LOST


@pytest.mark.parametrize("which", list(Unseen))
def test_unseen_faces_are_those_of_the_program(which: Unseen) -> None:
    last = UNSEEN - 1
    pictures, _ = unseen(*MOMENTS[which], range(last, UNSEEN))
    faces = unseen_faces(which)
    assert apart(faces.pictures[last], pictures[0]) < LEVELS
    assert apart(faces.pictures[0], pictures[0]) > 10 * LEVELS


@pytest.mark.long
def test_what_is_written_is_what_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shipped: dict[str, Faceset]
) -> None:
    """A set of two faces and one unseen moment, through the same file."""
    for module in (shipped_set, drawn_faces):
        monkeypatch.setattr(module, "FACES", 2)
        monkeypatch.setattr(module, "UNSEEN", 1)
    file = tmp_path / "drawn_faces.zip"
    shipped_set.write_shipped_set(file)
    first = file.read_bytes()
    monkeypatch.setattr(drawn_faces, "files", lambda _: tmp_path)
    faces = open_faceset(find_facesets(write_drawn_faces(tmp_path / "workspace", 2))["dst"])
    assert apart(faces.picture(0), shipped["dst"].picture(0)) < LEVELS
    pictures, _ = unseen(*MOMENTS[Unseen.TRUTH], range(1))
    np.testing.assert_array_equal(unseen_faces(Unseen.TRUTH).pictures, pictures)  # nothing is lost
    shipped_set.write_shipped_set(file)
    assert file.read_bytes() == first
