"""Metadata saved before other programs edit the pictures, and written into them again."""

import shutil
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from faces.data.golden_faces import GOLDEN
from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import metadata_segments
from frugan.faces.data.faceset import open_faceset, pack_faceset
from frugan.faces.data.metadata_file import restore_metadata, save_metadata

ALIGNED = GOLDEN / "faceset" / "aligned"


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ALIGNED, tmp_path / "aligned"))


def edit(folder: Path, side: int) -> None:
    """Write the pictures anew, as a program that knows nothing of metadata."""
    for path in folder.glob("*.jpg"):
        picture = cv2.resize(np.asarray(cv2.imread(str(path))), (side, side))
        path.write_bytes(cv2.imencode(".jpg", picture)[1].tobytes())
        assert not [*metadata_segments(path.read_bytes())]


def test_what_was_saved_comes_back_as_it_was(faces: Path, tmp_path: Path, said: list[str]) -> None:
    before = {path.name: path.read_bytes() for path in faces.glob("*.jpg")}
    assert save_metadata(faces, tmp_path / "faces.metadata", said.append, None) == 8
    edit(faces, 128)
    assert restore_metadata(tmp_path / "faces.metadata", faces, said.append, None) == 8
    for name, jpeg in before.items():
        (old,), (new,) = (metadata_segments(data) for data in (jpeg, (faces / name).read_bytes()))
        assert jpeg[old.content : old.end] == (faces / name).read_bytes()[new.content : new.end]
    assert said == []


def test_enlarged_pictures_get_enlarged_landmarks(faces: Path, tmp_path: Path, said: list[str]) -> None:
    before = open_faceset(faces).faces
    save_metadata(
        pack_faceset(open_faceset(faces), tmp_path / "faceset.pak"), tmp_path / "m.metadata", said.append, None
    )
    edit(faces, 256)
    (faces / before[7].name).unlink()
    assert restore_metadata(tmp_path / "m.metadata", faces, said.append, None) == 7
    assert said == [f"1 face without a picture in {faces}: {before[7].name}"]
    for old, new in zip(before, open_faceset(faces).faces, strict=False):
        np.testing.assert_allclose(new.landmarks, old.landmarks * 2, rtol=1e-6)
        assert (new.width, new.xseg_mask, new.oddities) == (256, old.xseg_mask, ())
        assert [p.points.tolist() for p in new.polygons] == [(p.points * 2).tolist() for p in old.polygons]


def test_files_that_are_none_change_nothing(faces: Path, tmp_path: Path, said: list[str]) -> None:
    file = tmp_path / "faces.metadata"
    file.write_bytes(b"no zip")
    with pytest.raises(BadInput, match="no file of face metadata that can be read"):
        restore_metadata(file, faces, said.append, None)
    with pytest.raises(BadInput, match="exists already"):
        save_metadata(faces, file, said.append, None)
    outside = tmp_path / "outside.jpg"
    shutil.copy(ALIGNED / "00000_0.jpg", outside)
    with zipfile.ZipFile(file, "w") as written:
        written.writestr("../outside.jpg", (ALIGNED / "00001_0.jpg").read_bytes())
    with pytest.raises(BadInput, match="no picture there is called as in"):
        restore_metadata(file, faces, said.append, None)
    assert outside.read_bytes() == (ALIGNED / "00000_0.jpg").read_bytes()
    with zipfile.ZipFile(file, "w") as written:
        written.writestr("00000_0.jpg", bytes(2 << 20))
    with pytest.raises(BadInput, match="larger than metadata are"):
        restore_metadata(file, faces, said.append, None)
