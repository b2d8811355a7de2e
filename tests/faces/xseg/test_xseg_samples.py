"""Samples of labelled faces against the original's, bit for bit where OpenCV is the one it had."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from faces.data.golden_faces import OPENCV_4
from frugan.faces.data.face import Face, FaceType, Polygon
from frugan.faces.data.faceset import open_faceset
from frugan.faces.data.relabel import encoded_mask
from frugan.faces.data.sample import Wanted
from frugan.faces.xseg.samples import (
    Labelled,
    XSegMaker,
    labelled,
    make_labelled_sample,
    polygon_mask,
    read_labelled,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "xseg"
SIDE = 256


def _recorded(name: str) -> dict[str, NDArray[Any]]:
    with np.load(GOLDEN / name) as file:
        return dict(file)


class Queue:
    """The original's: all faces in an order drawn anew when none is left, from the end."""

    def __init__(self, faces: list[int], random: np.random.RandomState) -> None:
        self._faces, self._random, self._left = faces, random, list[int]()

    def next(self) -> int:
        if not self._left:
            self._left = list(self._faces)
            self._random.shuffle(self._left)
        return self._left.pop()


@pytest.mark.parametrize("name", ["wf", "head", "masks_wf", "masks_f"])
def test_samples_are_the_originals(name: str) -> None:
    case, recorded = json.loads((GOLDEN / "samples" / f"{name}.json").read_text()), _recorded(f"samples/{name}.npz")
    by_polygons = not name.startswith("masks")
    faceset = open_faceset(GOLDEN / ("faceset" if by_polygons else "faceset_masks"))
    face_type = FaceType.from_option(case["face_type"])
    assert [face.name for face in faceset.faces] == case["files"]
    assert labelled(faceset.faces) == (case["kept"], "polygons" if by_polygons else "applied masks")

    def read(index: int) -> Labelled:
        face, picture = faceset.faces[index], faceset.picture(index)
        return read_labelled(face, picture, face_type, SIDE, by_polygons=by_polygons, as_original=True)

    def another(queue: Queue) -> Labelled:
        return read(queue.next())

    dropped = 0
    for seed in sorted({one["seed"] for one in case["cases"]}):
        random = np.random.RandomState(seed)
        faces, backgrounds = Queue(case["kept"], random), Queue(case["kept"], random)
        for one in [one for one in case["cases"] if one["seed"] == seed]:
            while (sample := make_labelled_sample(read(faces.next()), partial(another, backgrounds), random)) is None:
                dropped += 1
            key = f"s{seed}_{one['index']}"
            expected = np.unpackbits(recorded[f"{key}_mask"]).reshape(SIDE, SIDE)
            wrong = int((sample.mask[..., 0] != expected).sum())
            difference = np.abs(sample.picture[::8, ::8] - recorded[f"{key}_image"])
            assert sample.picture.dtype == sample.mask.dtype == np.float32
            if OPENCV_4:
                assert (wrong, difference.max()) == (0, 0), key
            else:  # measured at most: 90 pixels of 65,536 on the outline, and 0.004, where pictures have edges
                assert wrong < 150, key
                assert difference.mean() < 0.01, key
    assert dropped == (name == "masks_wf")


def _with_mask_of_twice_its_size(face: Face) -> Face:
    """A face whose polygons became a mask that was applied: 256 pixels, as the original stores them, on 128."""
    larger = [Polygon(one.include, one.points * 2) for one in face.polygons]
    return replace(face, xseg_mask=encoded_mask(255 * polygon_mask(larger, 256, 256).astype(np.uint8)))


def test_masks_of_another_size_are_placed_as_polygons_are_but_not_as_the_original() -> None:
    faceset, met = open_faceset(GOLDEN / "faceset"), dict[bool, float]()
    face = _with_mask_of_twice_its_size(faceset.faces[0])
    assert (face.height, face.width, face.face_type) == (128, 128, FaceType.WHOLE_FACE)

    def label(*, by_polygons: bool, as_original: bool) -> NDArray[np.bool_]:
        kinds = {"by_polygons": by_polygons, "as_original": as_original}
        return read_labelled(face, faceset.picture(0), FaceType.FULL, SIDE, **kinds).mask >= 0.5

    right = label(by_polygons=True, as_original=False)
    for as_original in (False, True):
        found = label(by_polygons=False, as_original=as_original)
        met[as_original] = float((found & right).sum() / (found | right).sum())
    assert met[False] > 0.95
    assert met[True] < 0.6
    assert (label(by_polygons=True, as_original=True) == right).all()


def test_a_sample_that_the_original_drops_gives_way_to_another() -> None:
    """A mask of 256 pixels on a picture of the model's 128: no surroundings can be put behind it."""
    faceset = open_faceset(GOLDEN / "faceset")
    face = replace(_with_mask_of_twice_its_size(faceset.faces[0]), polygons=())
    alone = replace(faceset, faces=(face,), places=faceset.places[:1])
    maker = XSegMaker(alone, FaceType.WHOLE_FACE, 128, by_polygons=False, pretrain=False, as_original=True)
    into = {name: np.full(shape, np.nan, np.float32) for name, shape in maker.shapes(8).items()}
    for place in range(8):
        assert maker.make(Wanted(0, place, 0), into, place) == {}
    first_draws = [np.random.RandomState(seed).randint(2) for seed in range(8)]
    assert 0 in first_draws  # of those seeds the first try was dropped
    assert np.isfinite(into["picture"]).all()
    assert set(np.unique(into["mask"])) == {0, 1}


def test_polygons_fill_as_the_originals() -> None:
    recorded = _recorded("polys.npz")
    for case in json.loads((GOLDEN / "polys.json").read_text()):
        polygons = [Polygon(bool(kind), recorded[f"{case['name']}_p{i}"]) for i, kind in enumerate(case["types"])]
        height, width = case["h"], case["w"]
        expected = np.unpackbits(recorded[f"{case['name']}_mask"])[: height * width].reshape(height, width)
        wrong = int((polygon_mask(polygons, height, width) != expected).sum())
        assert wrong <= (0 if OPENCV_4 else 40), case["name"]


def test_excluding_wins_whatever_the_order() -> None:
    square = np.array([[2, 2], [9, 2], [9, 9], [2, 9]], np.float32)
    hole = np.array([[4, 4], [6, 4], [6, 6], [4, 6]], np.float32)
    mask = polygon_mask([Polygon(False, hole), Polygon(True, square)], 12, 12)
    assert mask[5, 5] == 0
    assert mask[3, 3] == 1
    assert mask.sum() == 64 - 9
