"""Files of torch.save, in both formats: read number for number, and nothing in them run."""

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from frugan.errors import BadInput
from frugan.safe_pickle.torch_files import Layer, read_torch_file

WHOLE = {
    "itr": 4,
    "best": np.float32(2.5),
    "none": None,
    "config": {"G_activation": nn.ReLU(inplace=True), "betas": (0.0, 0.999), "text": "ä", "flag": True},
}
STATES = OrderedDict(
    a=torch.randn(3, 4),
    turned=torch.randn(3, 4).T,
    scalar=torch.tensor(2.5),
    empty=torch.zeros(0, 3),
    half=torch.ones(2, dtype=torch.float16),
    whole=torch.arange(5),
    flag=torch.tensor([True, False]),
    parameter=nn.Parameter(torch.randn(2)),
)
SHARED = torch.randn(10)

each_format = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def saved(path: Path, value: Any, zipped: bool = True) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


@each_format
def test_state_dicts(tmp_path: Path, zipped: bool) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    for states in (STATES, network.state_dict()):
        loaded = read_torch_file(saved(tmp_path / "s.pth", states, zipped))
        assert list(loaded) == list(states)
        for key, expected in states.items():
            assert (loaded[key].shape, loaded[key].dtype) == (expected.shape, expected.detach().numpy().dtype)
            assert np.array_equal(loaded[key], expected.detach().numpy())


@each_format
def test_options_and_counters(tmp_path: Path, zipped: bool) -> None:
    """With a layer as an object, whose program's text older files hold too."""
    loaded = read_torch_file(saved(tmp_path / "s.pth", WHOLE, zipped))
    assert (loaded["itr"], loaded["best"], loaded["none"]) == (4, 2.5, None)
    layer = loaded["config"].pop("G_activation")
    assert type(layer) is Layer
    assert layer.kind == "ReLU"
    assert loaded["config"] == {"betas": (0.0, 0.999), "text": "ä", "flag": True}


@each_format
def test_optimizer_states(tmp_path: Path, zipped: bool) -> None:
    weight = nn.Parameter(torch.randn(3))
    adam = torch.optim.Adam([weight])
    weight.sum().backward()
    adam.step()
    loaded = read_torch_file(saved(tmp_path / "s.pth", adam.state_dict(), zipped))
    assert loaded["param_groups"][0]["params"] == [0]
    assert np.array_equal(loaded["state"][0]["exp_avg"], adam.state[weight]["exp_avg"].numpy())


@each_format
def test_tensors_that_share_numbers(tmp_path: Path, zipped: bool) -> None:
    loaded = read_torch_file(saved(tmp_path / "s.pth", {"all": SHARED, "some": SHARED[2:6]}, zipped))
    assert np.array_equal(loaded["some"], SHARED[2:6].numpy())
    many = {str(i): SHARED.expand(100, 10) for i in range(1000)}
    with pytest.raises(BadInput, match="take more than the whole file"):
        read_torch_file(saved(tmp_path / "s.pth", many, zipped))


class Hostile:
    """Pickled, it is a call of what the file names."""

    def __init__(self, what: Any, *arguments: Any) -> None:
        self.call = what, arguments

    def __reduce__(self) -> Any:
        return self.call


@each_format
@pytest.mark.parametrize("deep", [False, True])
def test_nothing_is_run(tmp_path: Path, zipped: bool, deep: bool) -> None:
    hostile: Any = Hostile(os.mkdir, str(tmp_path / "was-run"))
    value = {"config": {"a": [hostile]}} if deep else hostile
    with pytest.raises(
        BadInput, match=r"refers to .*mkdir', which could run a program; expected numbers, text, tensors"
    ):
        read_torch_file(saved(tmp_path / "s.pth", value, zipped))
    with pytest.raises(BadInput, match=r"refers to 'torch\.nn\.modules\.linear\.Linear'"):
        read_torch_file(saved(tmp_path / "s.pth", {"config": nn.Linear(2, 2)}, zipped))
    assert [path.name for path in tmp_path.iterdir()] == ["s.pth"]


class Filled:
    """Pickled, it is a ReLU whose insides are what is given."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return nn.ReLU, (), self.state


def test_what_a_layer_is_filled_with_is_not_run_either(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="mkdir"):
        read_torch_file(saved(tmp_path / "s.pth", Filled({"x": Hostile(os.mkdir, str(tmp_path / "was-run"))})))
    assert not (tmp_path / "was-run").exists()


@each_format
def test_every_file_that_is_cut_off_is_told(tmp_path: Path, zipped: bool) -> None:
    data = saved(tmp_path / "s.pth", STATES, zipped).read_bytes()
    for length in [*range(0, len(data) - 1, 97), len(data) - 1]:
        (tmp_path / "cut.pth").write_bytes(data[:length])
        with pytest.raises(BadInput, match=r"cut\.pth"):
            read_torch_file(tmp_path / "cut.pth")


@settings(max_examples=30)
@given(data=st.data(), zipped=st.booleans())
def test_any_byte_changed_is_told_or_harmless(data: st.DataObject, zipped: bool, tmp_path_factory: Any) -> None:
    buffer = io.BytesIO()
    torch.save(WHOLE | {"tensor": torch.ones(3)}, buffer, _use_new_zipfile_serialization=zipped)
    raw = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed.pth"
    path.write_bytes(raw)
    with suppress(BadInput):
        read_torch_file(path)


def rewritten(path: Path, change: Any, compression: int = zipfile.ZIP_STORED) -> Path:
    """A zip with some members' contents changed; None: left out."""
    with zipfile.ZipFile(path) as old:
        members = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(path, "w", compression) as new:
        for name, data in members.items():
            if (made := change(name.partition("/")[2], data)) is not None:
                new.writestr(name, made)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda name, data: None if name == "data.pkl" else data, r"has no data\.pkl"),
        (lambda name, data: None if name == "data/0" else data, "has no member for storage '0'"),
        (lambda name, data: data[:-4] if name == "data/0" else data, "has 44 bytes, and should have 48"),
        (lambda name, data: b"big" if name == "byteorder" else data, "another order of bytes"),
        (lambda name, data: b"" if name == "data.pkl" else data, "damaged"),
        (lambda name, data: pickle.dumps(Hostile(os.getpid)) if name == "data.pkl" else data, "getpid"),
    ],
)
def test_zips_put_together_wrongly(tmp_path: Path, change: Any, message: str) -> None:
    path = rewritten(saved(tmp_path / "s.pth", {"a": torch.randn(3, 4)}), change)
    with pytest.raises(BadInput, match=message):
        read_torch_file(path)


def test_zips_that_unpack_to_more_than_they_are(tmp_path: Path) -> None:
    path = saved(tmp_path / "s.pth", {"a": torch.zeros(100_000)})
    with pytest.raises(BadInput, match="is compressed, which torch's never are"):
        read_torch_file(rewritten(path, lambda _, data: data, zipfile.ZIP_DEFLATED))


def test_zips_whose_members_lie_on_each_other(tmp_path: Path) -> None:
    """A directory that lists the same place again and again."""
    path = tmp_path / "s.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data/0", bytes(10_000))
        info = archive.infolist()[0]
        for n in range(1, 50):
            again = zipfile.ZipInfo(f"a/data/{n}")
            again.header_offset, again.CRC = info.header_offset, info.CRC
            again.file_size = again.compress_size = info.file_size
            archive.filelist.append(again)
    with pytest.raises(BadInput, match="members that lie on each other"):
        read_torch_file(path)


def test_zips_whose_members_would_lie_before_their_beginning(tmp_path: Path) -> None:
    path = saved(tmp_path / "s.pth", {"a": torch.zeros(3)})
    data = path.read_bytes()
    for length in (8, 30, 100, 400):
        path.write_bytes(data[:4] + data[4 + length :])
        with pytest.raises(BadInput, match="damaged or cut off"):
            read_torch_file(path)


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        read_torch_file(tmp_path / "none.pth")
    for data in (b"", b"text", pickle.dumps({"a": 1}), b"PK\3\4"):
        (tmp_path / "other.pth").write_bytes(data)
        with pytest.raises(BadInput, match=r"other\.pth"):
            read_torch_file(tmp_path / "other.pth")
    with pytest.raises(BadInput, match="BFloat16Storage"):
        read_torch_file(saved(tmp_path / "b.pth", torch.zeros(2, dtype=torch.bfloat16)))
