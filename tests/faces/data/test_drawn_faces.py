"""The drawn faces that ship: how many, of whom, and what the demo judges by."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.faces.data.drawn_faces import (
    FACES,
    LABELLED,
    SIDE_PIXELS,
    UNSEEN,
    Unseen,
    UnseenFaces,
    unseen_faces,
    write_drawn_faces,
)
from frugan.faces.data.face import FaceType
from frugan.faces.data.faceset import find_facesets, open_faceset
from frugan.faces.data.geometry import alignment_matrix, face_mask
from frugan.faces.xseg.samples import labelled, polygon_mask
from frugan.recipe.loading import load_recipe


@pytest.mark.long
def test_a_whole_set_of_each_person(tmp_path: Path) -> None:
    sets = {side: open_faceset(p) for side, p in find_facesets(write_drawn_faces(tmp_path / "new" / "set")).items()}
    for faceset in sets.values():
        assert len(faceset) == FACES
        assert {(f.face_type, f.height, f.width) for f in faceset.faces} == {
            (FaceType.WHOLE_FACE, SIDE_PIXELS, SIDE_PIXELS)
        }
        assert np.ptp(faceset.yaws) > 1.0  # radians: turned to either side
        for index in range(0, FACES, 40):
            inside = faceset.picture(index)[48:80, 48:80]
            assert inside.std() > 5
    assert sets["src"].digest != sets["dst"].digest
    # his skin is lighter
    skin = {side: np.mean([s.picture(i)[56:72, 56:72] for i in range(10)]) for side, s in sets.items()}
    assert skin["dst"] > skin["src"] + 20


def test_the_first_few(tmp_path: Path) -> None:
    whole, few = (find_facesets(write_drawn_faces(tmp_path / name, n)) for name, n in (("all", FACES), ("few", 3)))
    for side in ("src", "dst"):
        names = sorted(path.name for path in few[side].iterdir())
        assert names == ["00000_0.jpg", "00001_0.jpg", "00002_0.jpg"]
        for name in names:
            assert (few[side] / name).read_bytes() == (whole[side] / name).read_bytes()


@pytest.mark.parametrize("side", ["data_src", "data_dst"])
def test_frames_are_those_that_the_faces_were_cut_from(side: str, tmp_path: Path) -> None:
    workspace = write_drawn_faces(tmp_path / "set", 3)
    assert sorted(path.name for path in (workspace / side).glob("*.*")) == ["00000.png", "00001.png", "00002.png"]
    faceset = open_faceset(workspace / side / "aligned")
    for at, face in enumerate(faceset.faces):
        assert face.source_landmarks is not None
        assert face.source_filename is not None
        frame = cv2.imread(str(workspace / side / face.source_filename))
        assert frame is not None
        matrix = alignment_matrix(face.source_landmarks, face.width, face.face_type)
        again = cv2.warpAffine(frame, matrix, (face.width, face.height), borderMode=cv2.BORDER_REPLICATE)
        assert abs(again.astype(float) - faceset.picture(at)).mean() < 5
        assert abs(again.astype(float) - faceset.picture(at - 1)).mean() > 15


def test_the_first_ten_faces_have_labels_that_fill_to_their_masks(tmp_path: Path) -> None:
    for path in find_facesets(write_drawn_faces(tmp_path / "set", LABELLED + 2)).values():
        faces = open_faceset(path).faces
        assert labelled(faces) == (list(range(LABELLED)), "polygons")
        for face in faces[:LABELLED]:
            mask = face_mask(face.landmarks, face.height, face.width)
            np.testing.assert_array_equal(polygon_mask(face.polygons, face.height, face.width), mask)
            assert 0.1 < mask.mean() < 0.7


@pytest.mark.parametrize("faces", [-1, 0, FACES + 1])
def test_more_or_fewer_than_there_are(faces: int, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"{faces} faces: the set has 120 of each of the two people; expected 1 to 120"):
        write_drawn_faces(tmp_path / "set", faces)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_already(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(BadInput, match="is there already"):
        write_drawn_faces(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_unseen_faces_fit_the_recipe_and_one_another() -> None:
    recipe = load_recipe("saehd-demo-64")
    side = recipe.kind.sources(recipe.networks, recipe.objective)["dst"].resolution
    source, destination, truth = (unseen_faces(which) for which in Unseen)
    for faces in (source, destination, truth):
        assert faces.pictures.shape == (UNSEEN, side, side, 3)
        assert faces.pictures.dtype == np.uint8
        assert faces.masks.shape == (UNSEEN, side, side)
        assert faces.masks.dtype == np.float32
        assert faces.masks.min() == 0
        assert faces.masks.max() == 1
        assert (faces.masks[:, side // 2, side // 2] == 1).all()
        assert 0.1 < faces.masks.mean() < 0.7

    def behind(faces: UnseenFaces) -> NDArray[np.float64]:
        return faces.pictures[:, :4, :4].astype(float)

    def skin(faces: UnseenFaces) -> NDArray[np.float64]:
        """Mean colour inside the face, BGR [3]."""
        return np.asarray((faces.pictures * faces.masks[..., None]).sum((0, 1, 2)) / faces.masks.sum())

    # the truth is the source person in the destination's places
    assert abs(behind(truth) - behind(destination)).mean() < abs(behind(truth) - behind(source)).mean() / 4
    assert abs(skin(truth) - skin(source)).max() < abs(skin(truth) - skin(destination)).max() / 4
