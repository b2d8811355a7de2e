"""Face types and their names."""

import pytest

from frugan.errors import BadInput
from frugan.faces.data.face import FaceType


@pytest.mark.parametrize("face_type", FaceType)
def test_names_in_files(face_type: FaceType) -> None:
    assert FaceType.from_file(face_type.in_files) is face_type


@pytest.mark.parametrize("option", ["h", "mf", "f", "wf", "head"])
def test_names_in_options(option: str) -> None:
    assert FaceType.from_option(option).option == option


def test_unknown_names() -> None:
    with pytest.raises(BadInput, match="'wf': expected one of half_face, midfull_face"):
        FaceType.from_file("wf")
    with pytest.raises(BadInput, match="'whole_face': expected one of h, mf, f, wf, head"):
        FaceType.from_option("whole_face")
    with pytest.raises(ValueError, match="MARK_ONLY is no face type of a model"):
        _ = FaceType.MARK_ONLY.option
