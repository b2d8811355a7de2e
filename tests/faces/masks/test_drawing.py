"""Labels drawn in the browser: what its server gives out, and what it keeps."""

from pathlib import Path

import numpy as np
import pytest

from frugan.errors import BadInput
from frugan.faces.data.faceset import open_faceset, pack
from frugan.faces.masks.applying import MaskOptions
from frugan.faces.masks.drawing import Drawing, open_drawing
from frugan.page.labels import served_labels
from frugan.progress import quiet
from page.asking import Asking

SQUARE = [[10.25, 10.0], [90.0, 12.5], [60.0, 100.0]]


def drawing_on(faces: Path, out: Path | None = None, weights: Path | None = None) -> Drawing:
    return open_drawing(faces, out, weights, MaskOptions(), quiet, None)


def test_what_is_saved_is_what_xseg_learns_from(faces: Path) -> None:
    drawing = drawing_on(faces)
    first = drawing.pictures()[0]
    assert (first["name"], first["labelled"]) == ("00005_0.jpg", False)  # the one without a label
    others = {path.name: path.read_bytes() for path in faces.iterdir() if path.name != first["name"]}
    drawing.save(first["index"], [{"include": True, "points": SQUARE}, {"include": False, "points": SQUARE[::-1]}])
    face = next(face for face in open_faceset(faces).faces if face.name == first["name"])
    assert [polygon.include for polygon in face.polygons] == [True, False]
    np.testing.assert_array_equal(face.polygons[0].points, np.array(SQUARE, np.float32))
    assert drawing.label(first["index"])["polygons"][0] == {"include": True, "points": SQUARE}
    assert drawing.labelled() == 9
    assert {name: (faces / name).read_bytes() for name in others} == others
    assert drawing.picture(first["index"]) == (faces / first["name"]).read_bytes()
    drawing.save(first["index"], [])
    assert not next(face for face in open_faceset(faces).faces if face.name == first["name"]).polygons


@pytest.mark.parametrize(
    ("polygons", "says"),
    [
        ([{"include": True, "points": SQUARE[:2]}], "polygon 1 has 2 points; expected three or more"),
        ([{"include": True, "points": []}], "has 0 points"),
        ([{"include": True, "points": [[1, 2], [3, 4], [5, float("nan")]]}], "expected pairs of numbers"),
        ([{"include": True, "points": [[1, 2], [3, 4], [5, 1e9]]}], "expected pairs of numbers"),
        ([{"include": 1, "points": SQUARE}], "expected include, true or false"),
        ({}, "expected a list"),
        ([{"include": True, "points": SQUARE * 3000}], "draw polygons with fewer points"),
    ],
)
def test_what_is_no_label_changes_nothing(faces: Path, polygons: object, says: str) -> None:
    drawing, before = drawing_on(faces), {path: path.read_bytes() for path in faces.iterdir()}
    with pytest.raises(BadInput, match=says):
        drawing.save(0, polygons)
    assert {path: path.read_bytes() for path in faces.iterdir()} == before


def test_the_face_of_which_a_network_is_least_sure_comes_first(faces: Path, original: Path, tmp_path: Path) -> None:
    unlabelled = tmp_path / "unlabelled"
    drawing = drawing_on(faces, unlabelled, original)
    listed = drawing.pictures()
    assert listed[0]["name"] == "00005_0.jpg"
    bits = [face["bits"] for face in listed[1:]]
    assert bits == sorted(bits, reverse=True)
    assert len(set(bits)) > 1
    assert {path.name for path in unlabelled.iterdir()} == {path.name for path in faces.iterdir()}


def test_a_pak_is_drawn_on_as_loose_files(faces: Path, tmp_path: Path) -> None:
    pak = tmp_path / "faceset.pak"
    pack(faces, pak, quiet, None)
    with pytest.raises(BadInput, match="--out NEW"):
        drawing_on(pak)
    drawing = drawing_on(pak, tmp_path / "loose")
    drawing.save(4, [{"include": True, "points": SQUARE}])
    assert len(open_faceset(tmp_path / "loose").faces[4].polygons) == 1


def test_over_http(faces: Path) -> None:
    with served_labels(drawing_on(faces), 0) as (address, _):
        page = Asking(address)
        listed = page.get("/api/pictures").json["pictures"]
        index = listed[0]["index"]
        assert page.get(f"/pictures/{index}").body == (faces / listed[0]["name"]).read_bytes()
        assert page.post(f"/api/labels/{index}", {"polygons": [{"include": True, "points": SQUARE}]}).json == {
            "labelled": 9
        }
        assert page.get(f"/api/labels/{index}").json["polygons"][0]["points"] == SQUARE
        refused = page.post(f"/api/labels/{index}", {"polygons": [{"include": True, "points": SQUARE[:1]}]})
        assert (refused.status, "has 1 points; expected three or more" in refused.json["error"]) == (422, True)
        assert page.get("/api/labels/99").status == 422
        assert page.ask("GET", "/api/pictures").status == 401
        (faces / listed[1]["name"]).unlink()
        gone = page.post(f"/api/labels/{listed[1]['index']}", {"polygons": []})
        assert gone.status == 503
        assert listed[1]["name"] in gone.json["error"]
        for name in ("", "labels.js", "labels.css", "charts.js"):
            assert page.get(f"/{name}").status == 200
