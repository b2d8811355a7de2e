"""Labels to labelme, COCO and PNGs and back, and what is refused."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from frugan.errors import BadInput
from frugan.faces.data.faceset import open_faceset
from frugan.faces.data.relabel import without
from frugan.faces.masks.applying import export_labels, import_labels, take_out
from frugan.faces.masks.label_files import LabelFormat, mask_of, read_labels
from frugan.faces.masks.outlines import outlines
from frugan.faces.xseg.samples import polygon_mask
from frugan.progress import quiet


def _ring(side: int = 24) -> NDArray[np.uint8]:
    """A face with a hole in which something stands."""
    mask = np.zeros((side, side), np.uint8)
    mask[2:22, 3:21], mask[6:16, 6:16], mask[9:12, 9:13] = 1, 0, 1
    return mask


@pytest.mark.parametrize("seed", range(4))
def test_outlines_fill_to_the_mask(seed: int) -> None:
    random = np.random.default_rng(seed)
    noise: NDArray[np.uint8] = (random.random((16, 19)) < 0.6).astype(np.uint8)
    smooth = noise[:6, :7].repeat(5, axis=0).repeat(5, axis=1)
    masks: list[NDArray[np.uint8]] = [noise, smooth, _ring(), np.ones((4, 4), np.uint8)]
    for mask in masks:
        assert (polygon_mask(outlines(mask), *mask.shape) == mask).all()


def test_a_hole_is_excluded_and_not_cut_out() -> None:
    mask = np.ones((12, 12), np.uint8)
    mask[4:7, 4:7] = 0
    assert [polygon.include for polygon in outlines(mask)] == [True, False]


@pytest.mark.parametrize("kind", ["labelme", "coco", "png"])
def test_there_and_back(kind: LabelFormat, faces: Path, tmp_path: Path) -> None:
    take_out(faces, "xseg_mask", None, quiet, None)
    assert export_labels(faces, tmp_path / "labels", kind, quiet) == (1 if kind == "coco" else 8)
    before = open_faceset(faces)
    take_out(faces, "polygons", tmp_path / "bare", quiet, None)
    _, number = import_labels(tmp_path / "bare", tmp_path / "labels", tmp_path / "again", quiet, None)
    assert number == 8
    if kind == "coco":
        alone = import_labels(tmp_path / "bare", tmp_path / "labels" / "labels.json", tmp_path / "alone", quiet, None)
        assert alone[1] == 8
    for one, other in zip(before.faces, open_faceset(tmp_path / "again").faces, strict=True):
        if not one.polygons:
            assert not other.polygons
            continue
        before_mask, after_mask = mask_of(one), mask_of(other)
        assert before_mask is not None
        assert after_mask is not None
        assert (before_mask == after_mask).all(), one.name
        if kind != "png":
            assert [polygon.include for polygon in one.polygons] == [polygon.include for polygon in other.polygons]
            for before_it, after_it in zip(one.polygons, other.polygons, strict=True):
                assert (before_it.points == after_it.points).all()


def test_labelme_finds_the_pictures(faces: Path, tmp_path: Path) -> None:
    export_labels(faces, tmp_path / "out" / "labels", "labelme", quiet)
    about = json.loads((tmp_path / "out" / "labels" / "00000_0.json").read_text())
    assert (tmp_path / "out" / "labels" / about["imagePath"]).resolve() == (faces / "00000_0.jpg").resolve()


def test_the_originals_export_prefers_applied_masks(faces: Path, tmp_path: Path) -> None:
    export_labels(faces, tmp_path / "out", "jpg", quiet)
    assert (tmp_path / "out" / "00005_0_mask.jpg").is_file()  # it has a mask and no polygon


def _labelme(folder: Path, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    shape = {"label": "face", "points": [[10, 10], [90, 10], [50, 100]], "shape_type": "polygon"}
    about = {"shapes": [shape | changes], "imageWidth": 128, "imageHeight": 128}
    (folder / "00000_0.json").write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize("label", ["exclude", " Exclude", "background"])
def test_exclusion_by_its_label(label: str, faces: Path, tmp_path: Path) -> None:
    found = read_labels(_labelme(tmp_path / "labels", label=label), open_faceset(faces).faces)
    assert [polygon.include for polygon in found[0]] == [False]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"points": [[1, 2]]}, "1 points; expected three"),
        ({"points": [[1, 2], [3, 4]]}, "2 points; expected three"),
        ({"points": [[1, 2], [3, 4], ["a", 5]]}, "expected pairs of numbers"),
        ({"points": [[1, 2], [3, 4], [5e9, 5]]}, "near the picture of 128 x 128"),
        ({"shape_type": "circle"}, "is a circle; expected polygons"),
    ],
)
def test_bad_shapes_are_refused(changes: dict[str, object], said: str, faces: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=said):
        import_labels(faces, _labelme(tmp_path / "labels", **changes), tmp_path / "out", quiet, None)
    assert not (tmp_path / "out").exists()


def test_labels_of_another_size_or_of_no_face_are_refused(faces: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels"
    labels.mkdir()
    with pytest.raises(BadInput, match="no label in it is of one of the 9 faces"):
        import_labels(faces, labels, tmp_path / "out", quiet, None)
    cv2.imwrite(str(labels / "00000_0.png"), np.zeros((64, 64), np.uint8))
    with pytest.raises(BadInput, match=r"a picture of 64 x 64 pixels; 00000_0\.jpg has 128 x 128"):
        import_labels(faces, labels, tmp_path / "out", quiet, None)
    (labels / "00000_0.json").write_text("{")
    with pytest.raises(BadInput, match="cannot be read as JSON"):
        import_labels(faces, labels, tmp_path / "out", quiet, None)
    (tmp_path / "coco.json").write_text('{"images": 3}')
    with pytest.raises(BadInput, match="as COCO has them"):
        import_labels(faces, tmp_path / "coco.json", tmp_path / "out", quiet, None)


def test_nothing_to_export_says_how_labels_are_made(faces: Path, tmp_path: Path) -> None:
    take_out(faces, "xseg_mask", None, quiet, None)
    take_out(faces, "polygons", None, quiet, None)
    assert not list(without(open_faceset(faces), "polygons"))
    with pytest.raises(BadInput, match="draw them by `frugan masks draw`"):
        export_labels(faces, tmp_path / "out", "png", quiet)


def test_new_labels_are_told_from_other_faces(faces: Path, tmp_path: Path) -> None:
    before = open_faceset(faces)
    import_labels(faces, _labelme(tmp_path / "labels"), None, quiet, None)
    after = open_faceset(faces)
    assert after.digest != before.digest
    assert after.label_digests is not None
    assert after.label_digests.changed_since(before.label_digests) == 1
    take_out(faces, "xseg_mask", None, quiet, None)
    bare = open_faceset(faces)
    assert bare.label_digests is not None
    masked = sum(face.xseg_mask is not None for face in before.faces)
    assert bare.label_digests.changed_since(after.label_digests) == masked > 0
    (faces / "00000_0.jpg").unlink()
    fewer = open_faceset(faces)
    assert fewer.label_digests is not None
    assert fewer.label_digests.changed_since(bare.label_digests) == 0
