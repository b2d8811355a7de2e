"""Samples against the original's."""

import json
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest

from faces.data.golden_faces import GOLDEN, OPENCV_4, load_face, recorded
from frugan.errors import BadInput
from frugan.faces.data.face import FaceType, SampleSettings
from frugan.faces.data.sample import FaceSample, make_sample

CASES: list[dict[str, Any]] = json.loads((GOLDEN / "sample_proc" / "sample_processor.json").read_text())
RECORDED = recorded("sample_processor.npz")
PLAIN = SampleSettings(64, FaceType.WHOLE_FACE, random_warp=True, random_flip=False)


def outputs(sample: FaceSample) -> dict[str, np.ndarray]:
    assert sample.eyes_mouth is not None
    return {"warped": sample.warped, "target": sample.target, "mask": sample.mask, "em": sample.eyes_mouth}


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["case"]))
def test_samples_are_the_originals(case: dict[str, Any]) -> None:
    face, picture = load_face(case["sample_index"])
    reference = None if case["ct_sample_index"] is None else load_face(case["ct_sample_index"])[1]
    settings = SampleSettings(
        case["resolution"],
        FaceType.from_file(case["face_type"]),
        random_warp=True,
        random_flip=case["random_flip"],
        hsv_power=case["hsv"],
        colour_transfer=case["ct_mode"] or "none",
    )
    seed = np.random.RandomState(case["np_random_seed"]).randint(2**31)  # as the original draws it
    for name, array in outputs(make_sample(face, picture, settings, seed, reference)).items():
        expected = RECORDED[f"c{case['case']}_{name}"]
        assert array.shape == expected.shape
        assert array.dtype == np.float32
        difference = np.abs(array - expected)
        if OPENCV_4:
            assert difference.max() <= (3e-5 if reference is not None else 0)
        else:  # measured at most: 0.025 and 0.0010, where the pictures have edges
            assert difference.max() < 0.03
            assert difference.mean() < 0.0012


def sharp(size: int = 128) -> tuple[Any, np.ndarray]:
    face, _ = load_face(0)
    return face, np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)


def test_without_a_warp_both_pictures_are_the_same() -> None:
    face, picture = load_face(0)
    still, bent = (make_sample(face, picture, replace(PLAIN, random_warp=on), 7) for on in (False, True))
    np.testing.assert_array_equal(still.warped, still.target)
    np.testing.assert_array_equal(still.target, bent.target)
    assert np.abs(bent.warped - bent.target).max() > 0.1


def test_colours_are_moved_in_what_the_network_sees_only() -> None:
    face, picture = load_face(0)
    plain, moved = (make_sample(face, picture, replace(PLAIN, hsv_power=power), 7) for power in (0, 0.2))
    np.testing.assert_array_equal(plain.target, moved.target)
    assert np.abs(plain.warped - moved.warped).mean() > 0.01
    np.testing.assert_array_equal(plain.mask, moved.mask)


def test_the_seed_decides_and_the_picture_stays() -> None:
    face, picture = sharp()
    kept = picture.copy()
    first, again, other = (make_sample(face, picture, PLAIN, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(picture, kept)
    for name, array in outputs(first).items():
        np.testing.assert_array_equal(array, outputs(again)[name])
        assert (array != outputs(other)[name]).any()


def test_all_values_are_in_range_and_laid_out_for_copying() -> None:
    face, picture = sharp()
    settings = replace(PLAIN, random_flip=True, hsv_power=0.3)
    for seed in range(12):
        sample = make_sample(face, picture, settings, seed)
        for array in outputs(sample).values():
            assert array.flags.c_contiguous
            assert array.min() >= 0
            assert array.max() <= 1
        assert sample.eyes_mouth is not None
        assert sample.eyes_mouth.max() == 1


def test_a_flipped_sample_is_the_mirror_image() -> None:
    face, picture = load_face(1)
    flipping = replace(PLAIN, random_flip=True)
    pairs = [
        (make_sample(face, picture, flipping, seed), make_sample(face, picture, PLAIN, seed)) for seed in range(20)
    ]
    mirrored = [(outputs(one), outputs(other)) for one, other in pairs if (one.mask != other.mask).any()]
    assert 3 <= len(mirrored) <= 13
    for flipped, plain in mirrored:
        for name, array in flipped.items():
            np.testing.assert_array_equal(array, plain[name][:, ::-1])


def test_the_eyes_mask_is_left_out_when_not_wanted() -> None:
    face, picture = load_face(0)
    without = make_sample(face, picture, replace(PLAIN, eyes_mouth=False), 7)
    assert without.eyes_mouth is None
    np.testing.assert_array_equal(without.mask, make_sample(face, picture, PLAIN, 7).mask)


def test_eyes_outside_the_drawn_mask_do_not_count() -> None:
    face, picture = load_face(0)
    upper = np.zeros((256, 256), np.uint8)
    upper[:150] = 255  # the eyes, not the mouth
    drawn = replace(face, xseg_mask=cv2.imencode(".png", upper)[1].tobytes())
    whole, part = (make_sample(each, picture, PLAIN, 7).eyes_mouth for each in (face, drawn))
    assert whole is not None
    assert part is not None
    assert part[:32].max() == 1
    assert part[44:].max() == 0
    assert whole[36:].max() > 0.9


def test_small_samples_are_the_large_ones_made_smaller() -> None:
    face, picture = load_face(0)
    large, small = (make_sample(face, picture, replace(PLAIN, resolution=size), 7) for size in (64, 32))
    for name, array in outputs(small).items():
        assert array.shape[:2] == (32, 32)
        means = outputs(large)[name].reshape(32, 2, 32, 2, -1).mean((1, 3))
        assert np.abs(array - means).mean() < 0.01


def test_the_references_colours_are_taken() -> None:
    face, picture = load_face(0)
    blue = np.zeros((40, 60, 3), np.uint8)
    blue[..., 0] = np.random.default_rng(0).integers(100, 200, (40, 60))
    sample = make_sample(face, picture, replace(PLAIN, colour_transfer="lct"), 7, blue)
    assert sample.target[..., 0].mean() == pytest.approx(150 / 255, abs=0.03)
    assert sample.target[..., 2].mean() < 0.02
    assert sample.warped[..., 2].mean() < 0.02
    with pytest.raises(ValueError, match="without a reference"):
        make_sample(face, picture, replace(PLAIN, colour_transfer="lct"), 7)


@pytest.mark.parametrize("method", ["idt", "sot"])
def test_random_colour_transfers_follow_the_seed(method: Any) -> None:
    (face, picture), (_, reference) = load_face(0), load_face(2)
    settings = replace(PLAIN, colour_transfer=method)
    first, again = (make_sample(face, picture, settings, 3, reference) for _ in range(2))
    np.testing.assert_array_equal(first.target, again.target)


@pytest.mark.parametrize(("index", "face_type"), [(6, FaceType.WHOLE_FACE), (6, FaceType.HEAD), (0, FaceType.HEAD)])
def test_more_than_the_picture_shows_is_refused(index: int, face_type: FaceType) -> None:
    face, picture = load_face(index)
    message = rf"{face.name}: extracted as {face.face_type.in_files}, the recipe wants {face_type.option}, .*face_type"
    with pytest.raises(BadInput, match=message):
        make_sample(face, picture, replace(PLAIN, face_type=face_type), 7)


def test_a_broken_drawn_mask_is_named() -> None:
    face, picture = load_face(0)
    with pytest.raises(BadInput, match=rf"{face.name}: its XSeg mask"):
        make_sample(replace(face, xseg_mask=b"no picture"), picture, PLAIN, 7)


def test_broken_landmarks_are_named() -> None:
    face, picture = load_face(0)
    flat = replace(face, landmarks=np.full((68, 2), 9, np.float32))
    with pytest.raises(BadInput, match=rf"{face.name}: its landmarks"):
        make_sample(flat, picture, replace(PLAIN, face_type=FaceType.FULL), 7)
