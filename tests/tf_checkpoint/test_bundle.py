"""TensorFlow's checkpoints: one that TensorFlow wrote, ones made here, and damaged or hostile ones."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frugan.errors import BadInput
from frugan.tf_checkpoint import SNAPPY, crc32c, decompress, read_bundle, read_sorted_table, unmask
from tf_checkpoint.written import block, entry, field, header, literals, masked, table, varint, write_bundle

GOLDEN = Path(__file__).parents[1] / "golden" / "tfhub"
FIRST = {
    "trained": [-0.008302188478410244, 0.006029569078236818, -0.12044700235128403],
    "averaged": [-0.12019901722669601, 0.035095419734716415, -0.022690678015351295],
}
"""Numbers of one variable as they were written."""


def test_what_tensorflow_wrote() -> None:
    """Every tensor whose numbers were kept agrees with its checksum, and some with what was written."""
    bundle = read_bundle(GOLDEN)
    assert len(bundle.entries) == 234
    kept = (GOLDEN / "variables" / "variables.data-00000-of-00001").stat().st_size
    whole = [name for name, each in bundle.entries.items() if each.offset + each.size <= kept]
    assert len(whole) == 12
    tensors = {name: bundle.tensor(name) for name in whole}
    assert tensors["Generator/GBlock/CrossReplicaBN/accumulation_counter"].shape == ()
    weights = tensors["Generator/GBlock/HyperBN/beta/w"]
    assert weights.shape == (148, 64)
    assert weights.dtype == np.float32
    assert weights.reshape(-1)[:3].tolist() == pytest.approx(FIRST["trained"], rel=1e-6)
    averaged = tensors["Generator/GBlock/HyperBN/beta/w/ema_b999900"]
    assert averaged.reshape(-1)[:3].tolist() == pytest.approx(FIRST["averaged"], rel=1e-6)
    assert not np.array_equal(weights, averaged)
    with pytest.raises(BadInput, match=r"00000-of-00001: cut off: linear/w ends at byte .*, the file at 78,504"):
        bundle.tensor("linear/w")


@pytest.mark.parametrize("packing", [0, SNAPPY])
@pytest.mark.parametrize("place", ["", "variables", "variables/variables.index"])
def test_there_and_back(tmp_path: Path, packing: int, place: str) -> None:
    random = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {f"block_{i}/w": random.normal(size=(3, i)).astype(np.float32) for i in range(40)}
    tensors |= {"scalar": np.array(2.5), "whole": np.arange(6), "half": np.ones((2, 2), np.float16)}
    bundle = read_bundle(write_bundle(tmp_path / "module", tensors, packing) / place)
    assert bundle.entries.keys() == tensors.keys()
    for name, expected in tensors.items():
        tensor = bundle.tensor(name)
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(tensor, expected)


def test_checksums() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720's check value
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert unmask(masked(b"text")) == crc32c(b"text")


@settings(max_examples=10)
@given(length=st.integers(0, 70_000), seed=st.integers(0, 9))
def test_long_texts_have_the_checksum_of_their_bytes_one_by_one(length: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(length)
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    assert crc32c(data) == state ^ 0xFFFFFFFF


def test_snappys_references() -> None:
    # "ab", then 6 bytes from 2 before (which repeat), then 4 from 8 before with a longer tag
    packed = varint(12) + b"\x04ab" + bytes([(6 - 4) << 2 | 1, 2]) + bytes([(4 - 1) << 2 | 2, 8, 0])
    assert decompress(packed, 100) == b"abababababab"
    long = bytes(range(256)) * 2
    assert decompress(varint(512) + bytes([61 << 2]) + (511).to_bytes(2, "little") + long, 512) == long


@pytest.mark.parametrize(
    ("packed", "error"),
    [
        (varint(1 << 40), "expected at most"),
        (varint(4) + b"\x04a", "cut off"),
        (varint(4) + b"\x00a" + bytes([1, 9]), "before its beginning"),
        (varint(4) + b"\x00a" + bytes([1, 0]), "before its beginning"),
        (varint(40) + b"\x00a" + bytes([1, 1]), "has 5 bytes, and should have 40"),
        (varint(2) + b"\x00a" + bytes([1, 1]), "has 5 bytes, and should have 2"),
        (b"\xff" * 11, "more than ten bytes"),
    ],
)
def test_damaged_snappy(packed: bytes, error: str) -> None:
    with pytest.raises((ValueError, IndexError), match=error):
        decompress(packed, 1 << 20)
    assert decompress(literals(b"abc"), 3) == b"abc"


def _index(tmp_path: Path, data: bytes) -> Path:
    (tmp_path / "variables.index").write_bytes(data)
    return tmp_path


GOOD = table({b"": header(), b"a": entry((2,), 0, bytes(8))})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cut off, or another kind of file"),
        (GOOD[:-1], "cut off, or another kind of file"),
        (b"\1" + GOOD[1:], "its checksum is another"),
        (GOOD[:5] + b"\xff" + GOOD[6:], "its checksum is another"),
        (table({b"": header(), b"b": b"", b"a": b""}, in_order=False), "not in order"),
        (table({b"": header(), b"a": b"\xff" * 12}), "more than ten bytes"),
        (table({b"": header(), b"a": field(2, b"")[:-1] + b"\x09ab"}), "cut off"),
        (table({b"": header(), b"a": varint(7)}), "a field of kind 7"),
        (table({b"": header(), b"\xff": b""}), "invalid start byte"),
        (table({b"": header(endianness=1)}), "another order of bytes"),
        (table({b"a": b""}), "speaks of 0 data files"),
        (table({b"": header(shards=1 << 30)}), r"speaks of 1,073,741,824 data files"),
        (
            table({b"": header(), b"a": field(2, b"".join(field(2, field(1, 1)) for _ in range(40)))}),
            "a tensor of shape",
        ),
        (table({b"": header()}, packing=7), r"packed in way 7; expected 0 \(plain\) or 1 \(Snappy\)"),
        (GOOD[:-48] + varint(1 << 50) * 4 + bytes(8) + GOOD[-8:], "lies beyond its end"),
    ],
)
def test_damaged_indexes(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_bundle(_index(tmp_path, data))


@settings(max_examples=150)
@given(position=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255))
def test_any_byte_changed_is_told_or_harmless(position: int, value: int) -> None:
    data = bytearray(GOOD)
    data[position] = value
    try:
        table = dict(read_sorted_table(bytes(data)))
    except (ValueError, IndexError):
        return
    assert table.keys() <= {b"", b"a"}


def _tensor(tmp_path: Path, message: bytes, data: bytes | None = bytes(8), shards: int = 1) -> None:
    _index(tmp_path, table({b"": header(shards), b"a": message}))
    if data is not None:
        (tmp_path / "variables.data-00000-of-00001").write_bytes(data)
    read_bundle(tmp_path).tensor("a")


@pytest.mark.parametrize(
    ("message", "data", "shards", "error"),
    [
        (entry((3,), 0, bytes(8)), bytes(8), 1, r"a \[3\] takes 12 bytes, and the index says 8"),
        (entry((1 << 40, 1 << 20), 0, bytes(8)), bytes(8), 1, r"takes 4,611,686,018,427,387,904 bytes"),
        (entry((2,), 4, bytes(8)), bytes(8), 1, r"cut off: a ends at byte 12, the file at 8"),
        (entry((2,), 0, bytes(8)), b"\1" + bytes(7), 1, "the numbers of a have another checksum"),
        (entry((2,), 0, bytes(8), dtype=7), bytes(8), 1, r"of TensorFlow's type 7; expected numbers"),
        (entry((2,), 0, bytes(8)) + field(7, b""), bytes(8), 1, "stored in slices"),
        (entry((2,), 0, bytes(8)), None, 1, r"data-00000-of-00001: no such file"),
        (entry((2,), 0, bytes(8), shard=5), bytes(8), 1, r"data-00005-of-00001: no such file"),
        (entry((2,), 0, bytes(8)), b"", 1, "cut off: a ends at byte 8, the file at 0"),
    ],
)
def test_damaged_data(tmp_path: Path, message: bytes, data: bytes | None, shards: int, error: str) -> None:
    with pytest.raises(BadInput, match=error):
        _tensor(tmp_path, message, data, shards)


def test_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file or folder"):
        read_bundle(tmp_path / "nothing")
    with pytest.raises(BadInput, match=r"no file ending in \.index"):
        read_bundle(tmp_path)
    (tmp_path / "a.pb").write_bytes(b"")
    with pytest.raises(BadInput, match=r"expected a TensorFlow checkpoint's \.index file"):
        read_bundle(tmp_path / "a.pb")
    for name in ("a.index", "b.index"):
        (tmp_path / name).write_bytes(GOOD)
    with pytest.raises(BadInput, match=r"2 files ending in \.index"):
        read_bundle(tmp_path)
    assert read_bundle(tmp_path / "a.index").shards == 1
    assert block([(b"a", b"b")])[-5] == 0
