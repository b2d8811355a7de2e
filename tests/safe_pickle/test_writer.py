"""The writer: the same bytes as the original's and Python's own pickler, under the names that DeepFaceLab knows."""

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from frugan.safe_pickle.reader import load_pickle
from frugan.safe_pickle.writer import Global, dump_pickle
from safe_pickle.equality import opcodes, same
from safe_pickle.plain_values import PLAIN

FACE_TYPE, SAMPLE_TYPE = ("facelib.FaceType", "FaceType"), ("samplelib.Sample", "SampleType")


def python_reads(data: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's, about its old name in the file
        return pickle.loads(data)


def test_the_originals_files_are_written_byte_for_byte(golden: Path) -> None:
    files = [path for path in golden.parent.rglob("*.*") if path.suffix in (".npy", ".dat")]
    assert {path.parent.name for path in files} > {"amp", "quick96", "model_dir", "df-d", "optim", "d_nets"}
    for path in files:
        data = path.read_bytes()
        assert dump_pickle(load_pickle(data, path.name)) == data, path


def test_the_index_of_the_originals_pak_is_too(golden: Path) -> None:
    data = (golden / "faceset" / "packed" / "faceset.pak").read_bytes()
    index = data[16 : 16 + int.from_bytes(data[8:16], "little")]
    enums: dict[tuple[str, int], Global] = {}  # one object per value, as enums have it

    def stand_in(names: tuple[str, str]) -> Any:
        return lambda number: enums.setdefault((names[1], number), Global(*names, (number,)))

    value = load_pickle(index, "pak", {names: stand_in(names) for names in (FACE_TYPE, SAMPLE_TYPE)})
    assert {number for _, number in enums} == {1, 2, 4, 10}
    ours, theirs = opcodes(dump_pickle(value)), opcodes(index)
    # the second mask's dtype came out of another file in the original and was written anew; ours is one object
    second = [place for place, (_, argument) in enumerate(theirs) if argument == "u1"][1]
    assert second > 2800
    assert ours[: second - 1] == theirs[: second - 1]
    assert [name for name, _ in ours[-200:]] == [name for name, _ in theirs[-200:]]


@settings(max_examples=50)
@given(value=PLAIN)
def test_plain_values_as_python_writes_them(value: Any) -> None:
    assert dump_pickle(value, 3) == pickle.dumps(value, 3)
    assert dump_pickle(value, 4) == pickle.dumps(value, 4)


@pytest.mark.parametrize("length", [65_518, 65_530, 65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("content", [bytes, lambda length: "x" * length], ids=["bytes", "text"])
def test_frames_end_where_pythons_do(content: Callable[[int], Any], length: int) -> None:
    long, losses = content(length), [0.5] * 7_300  # more than a frame
    for value in (long, [long], [long, long + long, None], {"a": losses, "b": (long, losses)}, [[long, 1], losses, {}]):
        assert dump_pickle(value) == pickle.dumps(value, 4)


@pytest.mark.parametrize("protocol", [3, 4])
def test_long_and_shared_values(protocol: int) -> None:
    shared = [0.5, 1.5]
    value = {
        "many": [*range(2001)],
        "keys": {str(i): i for i in range(1001)},
        "same": [shared] * 3,
        "texts": [f"text {i}" for i in range(300)] * 2,  # more than 256 in the memo
        "long": "x" * 70_000,
        "raw": bytes(range(256)) * 300,
    }
    data = dump_pickle(value, protocol)
    assert data == pickle.dumps(value, protocol)
    loaded = pickle.loads(data)
    assert same(loaded, value)
    assert loaded["same"][0] is loaded["same"][2]


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.arange(5000, dtype=np.float64),
        np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)[::2],
        np.asfortranarray(np.ones((2, 3), np.float16)),
        np.array(5, np.int64),
        np.zeros((0, 3), np.uint8),
        np.array([[True], [False]]),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_arrays_under_the_old_name(array: np.ndarray, protocol: int) -> None:
    data = dump_pickle([array, array], protocol)
    assert b"numpy.core.multiarray" in data
    assert b"numpy._core" not in data
    for loaded in (python_reads(data), load_pickle(data, "x")):
        assert same(loaded, [array, array])
        assert loaded[0].flags.c_contiguous
        assert loaded[0] is loaded[1]


@pytest.mark.parametrize("protocol", [3, 4])
def test_scalars(protocol: int) -> None:
    value = {"resolution": np.int64(64), "power": np.float64(0.1), "flag": np.bool_(True), "f": np.float32(0.5)}
    data = dump_pickle(value, protocol)
    assert same(python_reads(data), value)
    assert same(load_pickle(data, "x"), value)


def test_big_endian_arrays_are_turned() -> None:
    loaded = python_reads(dump_pickle(np.arange(3, dtype=">f4")))
    assert same(loaded, np.arange(3, dtype="<f4"))


@pytest.mark.parametrize("protocol", [3, 4])
def test_enums_by_given_names(protocol: int) -> None:
    data = dump_pickle([Global(*FACE_TYPE, (4,)), Global(*FACE_TYPE, (10,)), Global(*SAMPLE_TYPE, (1,))], protocol)
    loaded = load_pickle(data, "x", {FACE_TYPE: lambda number: ("face", number), SAMPLE_TYPE: lambda number: number})
    assert loaded == [("face", 4), ("face", 10), 1]


@pytest.mark.parametrize(
    "value",
    [{1, 2}, np.array([None]), np.array(["text"]), np.zeros(2, "i4,f4"), np.complex64(1), {1: "a"}, Path("x"), object],
    ids=lambda value: type(value).__name__,
)
def test_what_deepfacelab_has_no_place_for(value: Any) -> None:
    with pytest.raises(TypeError):
        dump_pickle([value])


def test_other_protocols_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 3 or 4"):
        dump_pickle(None, 5)
