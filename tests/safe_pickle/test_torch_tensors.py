"""Pickled tensors become arrays, number for number; their inner files are held to what they say of themselves."""

import pickle
import pickletools
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from frugan.errors import BadInput
from frugan.safe_pickle.reader import ObjectReader, read_whole
from frugan.safe_pickle.torch_files import Tensors


def read(data: bytes) -> Any:
    return read_whole(ObjectReader(data, Tensors(len(data)).builders), "the file")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).T,
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.arange(10)[3:7:2],
        torch.tensor(2.5),
        torch.zeros(0, 3),
        torch.ones(2, dtype=torch.float16),
        torch.ones(2, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.tensor([1, 255], dtype=torch.uint8),
        nn.Parameter(torch.randn(5)),
    ],
    ids=range(11),
)
def test_tensors(tensor: torch.Tensor, protocol: int) -> None:
    array = read(pickle.dumps(OrderedDict(a=tensor), protocol))["a"]
    expected = tensor.detach().numpy()
    assert type(array) is np.ndarray
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(array, expected)
    array += array.dtype.type(1)  # a copy of its own


# The parts of a pickled tensor, to be put together wrongly.


class Named:
    """Pickled, it is a call of a name with arguments."""

    def __init__(self, what: Any, *arguments: Any) -> None:
        self.call = what, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.fixture
def inner() -> bytes:
    """The file within a pickled tensor of 6 numbers."""
    pickled = pickle.dumps(torch.arange(6, dtype=torch.float32), 4)
    return next(raw for _, raw, _ in pickletools.genops(pickled) if isinstance(raw, bytes))


def view(raw: bytes, offset: Any, shape: Any, strides: Any) -> bytes:
    from torch._utils import _rebuild_tensor_v2  # noqa: PLC0415

    storage = Named(torch.storage._load_from_bytes, raw)
    return pickle.dumps(Named(_rebuild_tensor_v2, storage, offset, shape, strides, False, OrderedDict()), 4)


def test_parts_put_together_rightly(inner: bytes) -> None:
    assert read(view(inner, 1, (2, 2), (2, 1))).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("offset", "shape", "strides", "message"),
    [
        (3, (4,), (1,), "looks at number 6 of a storage of 6"),
        (0, (2, 2), (5, 2), "looks at number 7 of a storage of 6"),
        (10**30, (1,), (1,), "looks at number 1,000,"),
        (0, (10**12,), (0,), "take more than the whole file"),
        (0, (10**20, 10**20), (0, 0), "take more than the whole file"),
        (-1, (1,), (1,), "damaged"),
        (0, (2,), (-1,), "damaged"),
        (0, [2], (1,), "damaged"),
        (0, (2.0,), (1,), "damaged"),
        (0, (2, 1), (1,), "of 2 dimensions with 1 strides"),
        (0, (1,) * 9, (1,) * 9, "of 9 dimensions"),
    ],
    ids=range(11),
)
def test_views_out_of_their_storage(inner: bytes, offset: Any, shape: Any, strides: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read(view(inner, offset, shape, strides))


def test_the_same_numbers_make_no_end_of_tensors(inner: bytes) -> None:
    from torch._utils import _rebuild_tensor_v2  # noqa: PLC0415

    storage = Named(torch.storage._load_from_bytes, inner)
    made = [Named(_rebuild_tensor_v2, storage, 0, (100,), (0,), False, OrderedDict()) for _ in range(1000)]
    with pytest.raises(BadInput, match="take more than the whole file"):
        read(pickle.dumps(made, 4))


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        (b"FloatStorage", b"BFloat16Storage", r"refers to 'torch\.BFloat16Storage'"),
        (b"torch\nFloatStorage", b"posix\nsystem", r"refers to 'posix\.system'"),
        (b"storage", b"storege", "damaged"),
        (struct.pack("<H", 1001), struct.pack("<H", 1002), "of another version"),
        (b"little_endianq\x02\x88", b"little_endianq\x02\x89", "another order of bytes"),
        (b"\x8a\x0al\xfc", b"\x8a\x0al\xfd", "does not begin as PyTorch's do"),
        (b"K\x06N", b"K\x07N", "24 bytes of numbers, and should have 28"),
        (b"K\x06N", b"J\xff\xff\xff\x7fN", "24 bytes of numbers, and should have 8,589,934,588"),
        (b"K\x06N", b"J\xff\xff\xff\xffN", "damaged"),
        (struct.pack("<q", 6), struct.pack("<q", 2**62), "bytes of numbers"),
    ],
    ids=range(10),
)
def test_storages_that_do_not_hold(inner: bytes, was: bytes, now: bytes, message: str) -> None:
    assert was in inner
    with pytest.raises(BadInput, match=message):
        read(view(inner.replace(was, now, 1), 0, (6,), (1,)))


def test_inner_files_cut_anywhere(inner: bytes) -> None:
    for length in range(len(inner)):
        with pytest.raises(BadInput):
            read(view(inner[:length], 0, (6,), (1,)))


@pytest.mark.parametrize(
    "opcodes",
    [
        b"K\x01Q",  # what is stored elsewhere, where nothing is
        b"\x8f(K\x01\x90",  # a set of numbers
        b"](K\x01\x90",  # items added to a list
        b"cbuiltins\nset\nK\x01\x85R",
        b"ccollections\nOrderedDict\n]\x85R",
        b"ctorch._utils\n_rebuild_tensor_v2\n)R",
        b"ctorch._utils\n_rebuild_parameter\nK\x01\x89N\x87R",
        b"ctorch.storage\n_load_from_bytes\nK\x01\x85R",
    ],
    ids=range(8),
)
def test_hostile_or_damaged(opcodes: bytes) -> None:
    with pytest.raises(BadInput, match="the file is damaged"):
        read(b"\x80\x04" + opcodes + b".")


def test_sets_of_text() -> None:
    for protocol in (2, 3, 4):
        assert read(pickle.dumps({"a": {"x", "y"}}, protocol)) == {"a": {"x", "y"}}


def test_names_are_refused_and_not_called(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(BadInput, match="could run a program; expected numbers, text, arrays and network layers only"):
        read(pickle.dumps({"a": Named(Path.mkdir, made)}, 4))
    assert not made.exists()
