"""The safe reader: what the original writes is read, and nothing else does anything."""

import os
import pickle
import struct
import warnings
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frugan.errors import BadInput
from frugan.safe_pickle.reader import load_pickle
from safe_pickle.equality import same
from safe_pickle.plain_values import PLAIN


class Kind(IntEnum):
    A = 4


KINDS = {("facelib.FaceType", "FaceType"): Kind}


@pytest.mark.parametrize(
    "name", ["optim/rmsprop_state.npy", "optim/adabelief_lrcos10_state.npy", "model_dir/SAEHD_default_options.dat"]
)
def test_the_originals_files_are_read_as_python_reads_them(golden: Path, name: str) -> None:
    data = (golden / name).read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's, about its old name in the file
        expected = pickle.loads(data)
    assert len(expected) >= 3
    assert same(load_pickle(data, name), expected)


@settings(max_examples=25)
@given(value=PLAIN, protocol=st.integers(2, 5))
def test_plain_values(value: Any, protocol: int) -> None:
    assert same(load_pickle(pickle.dumps(value, protocol), "x"), value)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize(
    "value",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(3, dtype=">i4"),
        np.array(5, np.int64),
        np.zeros((0, 3), np.float16),
        np.full(4000, 0xFF, np.uint8),
        np.array([True, False]),
        np.float64(0.1),
        np.int64(-7),
        np.bool_(True),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.dtype.str}",
)
def test_arrays_and_scalars(value: Any, protocol: int) -> None:
    for wrapped in ([value, value], {"a": value, "b": [value]}):
        data = pickle.dumps(wrapped, protocol)
        loaded = load_pickle(data, "x")
        assert same(loaded, pickle.loads(data))
    assert loaded["a"] is loaded["b"][0]


def test_read_arrays_can_be_written_to() -> None:
    array = load_pickle(pickle.dumps(np.zeros(1000), 4), "x")
    array += 1
    assert array.sum() == 1000


# What a hostile file may be made of. Opcodes as in pickletools: "c" global, "R" call, "b" build, "(" mark, "t" tuple.


class Call:
    """Pickled, it makes a reader call something."""

    def __init__(self, what: Any, *arguments: Any) -> None:
        self.call = what, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_calls_are_refused_by_name_and_not_made(tmp_path: Path, protocol: int) -> None:
    made = tmp_path / "made"
    data = pickle.dumps({"iter": 1, "options": Call(os.mkdir, str(made))}, protocol)
    with pytest.raises(BadInput, match=r"data\.dat refers to 'posix.mkdir|nt.mkdir', which could run a program"):
        load_pickle(data, "data.dat")
    assert not made.exists()


@pytest.mark.parametrize("call", [Call(eval, "1/0"), Call(getattr, "", "join"), Call(np.load, "x"), Call(Kind, 4)])
def test_other_names_are_refused_too(call: Call) -> None:
    with pytest.raises(BadInput, match="could run a program"):
        load_pickle(pickle.dumps([call], 4), "x")


def test_names_that_the_caller_gives() -> None:
    data = b"\x80\x04cfacelib.FaceType\nFaceType\nK\x04\x85R."
    assert load_pickle(data, "x", KINDS) is Kind.A
    with pytest.raises(BadInput, match=r"x refers to 'facelib\.FaceType\.FaceType'"):
        load_pickle(data, "x")
    with pytest.raises(BadInput, match="damaged"):
        load_pickle(data.replace(b"K\x04", b"K\x05"), "x", KINDS)


def text(value: str) -> bytes:
    return pickle.SHORT_BINUNICODE + bytes([len(value)]) + value.encode()


KIND = b"cfacelib.FaceType\nFaceType\n"
NESTED = b"\x85" * 100_000  # each puts the last value into a tuple
DTYPE = b"cnumpy\ndtype\n" + text("f4") + b"\x85R"
DTYPE_STATE = b"(K\x03" + text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"


@pytest.mark.parametrize(
    ("opcodes", "message"),
    [
        (b"]" * 100_000 + b"a" * 99_999, "nested more than 16"),
        (b"N" + NESTED, "nested more than 16"),
        (b"]\x94h\x00a", "nested more than 16"),  # holds itself
        (b"]\x94" + b"".join(b"h%ch%c\x86\x94" % (i, i) for i in range(60)), "nested more than 16"),  # 2^60 if printed
        (b"}N" + NESTED + b"Ns", "key is a tuple"),
        (b"}K\x01Ns", "key is a int"),
        (KIND + b"K\x04\x85R}" + text("_value_") + b"K\x09sb", "insides of a Kind"),
        (KIND + b"}" + text("A") + b"K\x09sb", "insides of a _Global"),
        (b"]}" + text("x") + b"Nsb", "insides of a list"),
        (KIND, "damaged"),  # a name is no value
        (b"]" + KIND + b"a", "damaged"),
        (KIND + b"N" + NESTED + b"\x85R", "damaged"),  # to look it up would hash it
        (KIND + b"K\x04\x85\x81", "opcode 0x81"),  # NEWOBJ
        (b"P0\n", "opcode 0x50"),  # PERSID
        (b"NQ", "opcode 0x51"),  # BINPERSID
        (b"\x82\x01", "opcode 0x82"),  # EXT1
        (b"(i__main__\nx\n", "opcode 0x69"),  # INST
        (b"\x97", "opcode 0x97"),  # NEXT_BUFFER
        (b"N0", "opcode 0x30"),  # POP
        (b"\x8a\xff", "cut off"),
        (b"Bxxxx", "cut off"),
        (b"\x8e" + b"\xff" * 8, "cut off"),
        (b"r" + b"\xff" * 4 + b"N", "damaged"),
        (b"\x80\x06N", "protocol 6"),
        (b"e", "damaged"),
        (b"h\x07", "damaged"),
        (b"NN\x85\x86\x87", "damaged"),
        (b"NR", "damaged"),
        (b"K\x01K\x02R", "damaged"),
        (b"", "damaged"),
        (DTYPE.replace(b"f4", b"O8"), "no plain numbers"),
        (DTYPE.replace(b"f4", b"V9"), "no plain numbers"),
        (DTYPE.replace(b"f4", b"M8"), "no plain numbers"),
        (DTYPE + DTYPE_STATE.replace(b"NNN", b"N}N"), "dtype with fields"),
        (DTYPE + DTYPE_STATE.replace(text("<"), text("|")), "no byte order"),
        (b"cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85\x85R", "calls `numpy.ndarray`"),
        (ARRAY.replace(b"K\x00\x85", b"J\xff\xff\xff\x7f\x85"), "does not begin empty"),
        (ARRAY + b"(K\x01J\xff\xff\xff\x7f\x85" + DTYPE + b"\x89C\x00tb", "takes 8,589,934,588 bytes, with 0"),
        (ARRAY + b"(K\x01K\x01\x85" + DTYPE + b"\x89]tb", "other things than numbers"),
        (ARRAY + b"(K\x01J\xff\xff\xff\xff\x85" + DTYPE + b"\x89C\x00tb", "without a proper shape"),
        (ARRAY + b"(K\x01(" + b"K\x01" * 33 + b"t" + DTYPE + b"\x89C\x04abcdtb", "without a proper shape"),
        (ARRAY + (b"(K\x01K\x01\x85" + DTYPE + b"\x89C\x04abcdtb") * 2, "filled twice"),
        (b"cnumpy.core.multiarray\nscalar\n" + DTYPE + b"C\x03abc\x86R", "do not fit its dtype"),
        (b"c_codecs\nencode\n" + text("abc") + text("rot13") + b"\x86R", "something else than bytes"),
        (b"c_codecs\nencode\nX" + struct.pack("<I", 9999) + b"a" * 9999 + b"\x94" + text("latin1") + b"\x94\x86R" +
         b"c_codecs\nencode\nh\x00h\x01\x86R" * 3, "more than the whole file"),
    ],
    ids=range(45),
)  # fmt: skip
def test_hostile_or_damaged(opcodes: bytes, message: str) -> None:
    before, member_before = dict(vars(Kind)), dict(vars(Kind.A))
    with pytest.raises(BadInput, match=message) as refused:
        load_pickle(b"\x80\x04" + opcodes + b".", "the file", KINDS)
    assert str(refused.value).startswith("the file ")
    assert vars(Kind) == before
    assert vars(Kind.A) == member_before


def test_the_same_bytes_make_no_end_of_arrays() -> None:
    raw = b"B" + struct.pack("<I", 100_000) + b"a" * 100_000 + b"\x940"
    raw = raw[:-1]
    one = ARRAY + b"(K\x01J" + struct.pack("<i", 25_000) + b"\x85" + DTYPE + b"\x89h\x00tb"
    assert len(load_pickle(b"\x80\x04(" + raw + one + b"t.", "x")[1]) == 25_000
    with pytest.raises(BadInput, match="same bytes for several arrays"):
        load_pickle(b"\x80\x04(" + raw + one * 1000 + b"t.", "x")


def test_a_large_memo_index_takes_no_memory() -> None:
    assert load_pickle(b"\x80\x04K\x07r\xff\xff\xff\xff.", "x") == 7


def test_cut_anywhere(golden: Path) -> None:
    data = (golden / "optim" / "rmsprop_state.npy").read_bytes()
    for length in range(len(data)):
        with pytest.raises(BadInput, match="cut off"):
            load_pickle(data[:length], "x")


def seeds() -> list[bytes]:
    array, scalar = np.arange(6.0).reshape(2, 3), np.float32(1)
    value = [{"a": array, "b": (1, 2.5, "x", b"y", None, True)}, scalar, [[0.5, 1.5]] * 3, Call(os.mkdir, "made")]
    plain = [pickle.dumps(value[:-1], protocol) for protocol in (2, 3, 4)]
    return [*plain, pickle.dumps(value, 4), b"\x80\x04" + KIND + b"K\x04\x85R."]


@pytest.mark.parametrize("data", seeds(), ids=range(5))
def test_nothing_but_bad_input_comes_of_damage(data: bytes) -> None:
    random = Random(0)
    read = 0
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(random.randint(1, 4)):
            at, other = random.randrange(len(damaged)), random.randrange(len(data))
            if random.random() < 0.7:
                damaged[at] = random.choice((random.randrange(256), data[other]))
            else:
                damaged[at : at + random.randrange(5)] = data[other : other + random.randrange(5)]
        with suppress(BadInput):
            load_pickle(bytes(damaged), "x", KINDS)
            read += 1
    assert not Path("made").exists()
    assert 0 < read < 1500


@pytest.mark.parametrize("shared", [[[0] * 30], [np.zeros(2000)]])
def test_what_is_small_only_because_it_is_shared_is_refused(shared: list[object]) -> None:
    """A few hundred bytes that any reader that walks through them would never be done with."""
    value = shared
    for _ in range(6):
        value = [value] * 30
    with pytest.raises(BadInput, match="so often that they would fill the memory"):
        load_pickle(pickle.dumps(value, protocol=4), "x")
    load_pickle(pickle.dumps([shared] * 30, protocol=4), "x")
