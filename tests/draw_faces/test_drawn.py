"""Drawn people: the same for the same numbers, unlike each other, with landmarks that fit, in files that read back."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from frugan.faces.data.dfl_jpeg import read_face_jpeg
from frugan.faces.data.face import FaceType
from frugan.faces.data.faceset import open_faceset
from frugan.faces.data.geometry import alignment_matrix, face_mask, pitch_yaw_roll, transform_points
from tools.draw_faces.drawn_faceset import draw_faceset
from tools.draw_faces.frame import DrawnFrame, draw_frame
from tools.draw_faces.moment import Moment, draw_moment
from tools.draw_faces.people import PEOPLE
from tools.draw_faces.person import Person

cv2 = pytest.importorskip("cv2")
pytestmark = pytest.mark.long  # of a tool: what it made, which ships, is looked at in every run (test_shipped_set)
SIZE = 192
EVENLY_LIT = Moment(softness=1.0, rim=0.0, warmth=0.0)
TURNS = [
    Moment(),
    Moment(yaw=0.6, pitch=0.2, roll=0.25, jaw=0.6, smile=0.8),
    Moment(yaw=-0.6, pitch=-0.2, roll=-0.25, jaw=1.0, lids=0.0),
]
EITHER = pytest.mark.parametrize("person", PEOPLE)


def under_landmarks(frame: DrawnFrame, which: list[int]) -> NDArray[np.float32]:
    """Return mean B, G, R within 1 pixel of some landmarks, [n, 3]."""
    picture = cv2.blur(frame.picture, (3, 3)).astype(np.float32)
    places = frame.landmarks[which].round().astype(int)
    return np.asarray(picture[places[:, 1], places[:, 0]])


def test_the_same_numbers_draw_the_same_frame() -> None:
    first, second = (draw_frame(PEOPLE[0], draw_moment(3, 0, 7), 64) for _ in range(2))
    np.testing.assert_array_equal(first.picture, second.picture)
    np.testing.assert_array_equal(first.landmarks, second.landmarks)
    assert first.picture.shape == (64, 64, 3)
    assert first.picture.dtype == np.uint8
    assert first.landmarks.dtype == np.float32


def test_seed_person_and_index_each_change_the_moment() -> None:
    moments = {draw_moment(seed, person, index) for seed in (0, 1) for person in (0, 1) for index in (0, 1)}
    assert len(moments) == 8


def test_moments_cover_what_a_face_model_has_to_learn() -> None:
    moments = [draw_moment(0, 0, index) for index in range(200)]
    assert min(m.yaw for m in moments) < -0.5
    assert max(m.yaw for m in moments) > 0.5
    assert 40 < sum(m.jaw > 0 for m in moments) < 160
    assert any(m.lids < 0.3 for m in moments)
    assert max(m.smile for m in moments) > 0.8


def test_the_two_people_differ_in_colour_and_shape() -> None:
    her, him = (draw_frame(person, EVENLY_LIT, SIZE) for person in PEOPLE)
    nose = [28, 29]
    assert (under_landmarks(him, nose) - under_landmarks(her, nose)).min() > 20  # his skin is lighter
    chin, lower_lip = [8], [57]
    beard = under_landmarks(him, nose).mean() - under_landmarks(him, chin).mean()
    assert beard > under_landmarks(her, nose).mean() - under_landmarks(her, chin).mean() + 20
    assert abs(under_landmarks(him, lower_lip) - under_landmarks(her, lower_lip)).max() > 10
    (her_eye, him_eye) = (np.ptp(frame.landmarks[36:42], axis=0) for frame in (her, him))
    assert her_eye[1] > 1.3 * him_eye[1]
    assert him.landmarks[8, 1] - him.landmarks[30, 1] > her.landmarks[8, 1] - her.landmarks[30, 1] + 2


@EITHER
@pytest.mark.parametrize("moment", TURNS)
def test_the_picture_is_the_face_where_the_landmarks_say(person: Person, moment: Moment) -> None:
    frame = draw_frame(person, moment, SIZE)
    elsewhere = draw_frame(person, replace(moment, scene=moment.scene + 1), SIZE)
    changed = abs(frame.picture.astype(int) - elsewhere.picture).max(axis=2) > 0
    np.testing.assert_array_equal(frame.landmarks, elsewhere.landmarks)
    inside = face_mask(frame.landmarks, SIZE, SIZE, eyebrows_expand_mod=0) > 0
    core = cv2.erode(inside.astype(np.uint8), np.ones((9, 9), np.uint8)) > 0
    assert core.sum() > 0.04 * SIZE**2
    assert changed[core].mean() < 0.002  # neither background nor clothes show through
    assert changed[~inside].mean() > 0.3  # it did change where there is no face


@EITHER
def test_open_mouth_and_shut_eyes_move_the_landmarks_and_the_paint(person: Person) -> None:
    still = draw_frame(person, EVENLY_LIT, SIZE)
    agape = draw_frame(person, replace(EVENLY_LIT, jaw=1.0), SIZE)
    asleep = draw_frame(person, replace(EVENLY_LIT, lids=0.0), SIZE)

    def gap(frame: DrawnFrame, upper: int, lower: int) -> float:
        return float(frame.landmarks[lower, 1] - frame.landmarks[upper, 1])

    assert gap(still, 62, 66) == 0
    assert gap(agape, 62, 66) > 5
    assert agape.landmarks[8, 1] > still.landmarks[8, 1] + 4
    assert gap(still, 37, 41) > 2 * gap(asleep, 37, 41)
    middle = agape.landmarks[[62, 66]].mean(axis=0).round().astype(int)
    assert agape.picture[middle[1], middle[0]].mean() < 0.6 * still.picture[middle[1], middle[0]].mean()
    eye = still.landmarks[36:42].mean(axis=0).round().astype(int)
    pupil = np.s_[eye[1] - 2 : eye[1] + 3, eye[0] - 2 : eye[0] + 3]
    assert still.picture[pupil].mean() < asleep.picture[pupil].mean()


@EITHER
@pytest.mark.parametrize("turn", [-0.5, -0.2, 0.2, 0.5])
def test_turns_are_those_that_the_pose_finds(person: Person, turn: float) -> None:
    for moment in (Moment(yaw=turn), Moment(pitch=turn / 2)):
        frame = draw_frame(person, moment, SIZE)
        matrix = alignment_matrix(frame.landmarks, SIZE, FaceType.WHOLE_FACE)
        pitch, yaw, _ = pitch_yaw_roll(transform_points(matrix, frame.landmarks), SIZE)
        if moment.yaw:
            assert yaw == pytest.approx(turn, abs=0.25)
        assert np.sign(yaw if moment.yaw else pitch) == np.sign(turn)


def test_a_larger_picture_is_the_same_picture() -> None:
    moment = draw_moment(0, 1, 4)
    small, large = (draw_frame(PEOPLE[1], moment, size) for size in (SIZE, 2 * SIZE))
    shrunk = cv2.resize(large.picture, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
    assert abs(shrunk.astype(float) - small.picture).mean() < 4
    np.testing.assert_allclose((large.landmarks + 0.5) / 2 - 0.5, small.landmarks, atol=0.3)


@pytest.mark.parametrize("size", [0, 63, 193])
def test_sizes_that_cannot_be_drawn_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"size {size}: expected an even number"):
        draw_frame(PEOPLE[0], Moment(), size)


def test_written_faces_read_back_aligned(tmp_path: Path) -> None:
    files = draw_faceset(tmp_path / "aligned", 1, 3, seed=5, size=128)
    assert [file.name for file in files] == ["00000_0.jpg", "00001_0.jpg", "00002_0.jpg"]
    for index, file in enumerate(files):
        face = read_face_jpeg(file.read_bytes(), str(file))
        assert (face.face_type, face.height, face.width) == (FaceType.WHOLE_FACE, 128, 128)
        assert face.source_filename == f"{index:05d}.png"
        assert face.eyebrows_expand_mod == 1.0
        assert face.source_landmarks is not None
        assert face.image_to_face is not None
        assert face.source_rect is not None
        moved = transform_points(face.image_to_face, face.source_landmarks)
        np.testing.assert_allclose(moved, face.landmarks, atol=0.01)
        again = alignment_matrix(face.landmarks, 128, FaceType.WHOLE_FACE)
        np.testing.assert_allclose(again, [[1, 0, 0], [0, 1, 0]], atol=0.02)
        left, top, right, bottom = face.source_rect
        assert left <= face.source_landmarks[:, 0].min() < face.source_landmarks[:, 0].max() <= right
        assert top <= face.source_landmarks[:, 1].min() < face.source_landmarks[:, 1].max() <= bottom
        assert 0 < face.landmarks.min() < face.landmarks.max() < 127
    faceset = open_faceset(tmp_path / "aligned")
    assert len(faceset.faces) == 3
    assert faceset.picture(0).shape == (128, 128, 3)


@pytest.mark.parametrize(("person", "count"), [(2, 1), (-1, 1), (0, -1)])
def test_unknown_people_are_refused(tmp_path: Path, person: int, count: int) -> None:
    with pytest.raises(ValueError, match="expected 0 to 1, and at least 0"):
        draw_faceset(tmp_path, person, count, seed=0)
