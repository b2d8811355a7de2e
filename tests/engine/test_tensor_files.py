"""Tensor files: what the library reads, equal for equal contents, and readable by whom the user lets."""

import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from frugan.engine.run.tensor_files import DTYPES, read_tensors, write_tensors

TENSORS = {
    **{f"of {name}": torch.tensor([[1, 0], [2, 3]]).to(dtype) for dtype, name in DTYPES.items()},
    "scalar": torch.tensor(3),
    "empty": torch.zeros(0, 3),
    "strided": torch.arange(24.0).view(2, 3, 4).transpose(0, 2),
}
METADATA = {"recipe": '{"summary": "größer, \\"so\\"\\n"}', "format": "frugan", "class_names": "[]"}


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, TENSORS, METADATA)
    tensors, metadata = read_tensors(path)
    assert metadata == METADATA
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor), name
    # but for the order of names in the header, the library writes the same
    contiguous = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    assert len(save(contiguous, METADATA)) == path.stat().st_size


def test_aliases_are_written_twice(tmp_path: Path) -> None:
    tied = torch.arange(6.0)
    write_tensors(tmp_path / "a.safetensors", {"a": tied, "b": tied, "c": tied[2:]}, {})
    tensors = load_file(tmp_path / "a.safetensors")
    assert torch.equal(tensors["b"], tied)
    assert torch.equal(tensors["c"], tied[2:])


def test_equal_contents_make_equal_files(tmp_path: Path) -> None:
    for name, step in (("a", 1), ("b", -1)):
        write_tensors(tmp_path / name, dict(list(TENSORS.items())[::step]), dict(list(METADATA.items())[::step]))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_permissions_are_the_users_own(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_tensors(tmp_path / "a", {"x": torch.ones(2)}, METADATA)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
