"""DeepFaceLab workspaces."""

from pathlib import Path

import pytest

from frugan.errors import BadInput
from frugan.faces.data.faceset import find_facesets


def test_a_workspace(tmp_path: Path) -> None:
    for folder in ("data_src/aligned", "data_dst/aligned", "data_dst/aligned_debug", "model"):
        (tmp_path / folder).mkdir(parents=True)
    assert find_facesets(tmp_path) == {"src": tmp_path / "data_src/aligned", "dst": tmp_path / "data_dst/aligned"}


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no data_src/aligned and no data_dst/aligned; looked there"):
        find_facesets(tmp_path)
    (tmp_path / "data_src/aligned").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"has no data_dst/aligned; .* --data src=PATH --data dst=PATH"):
        find_facesets(tmp_path)
    with pytest.raises(BadInput, match="is no folder"):
        find_facesets(tmp_path / "none")
