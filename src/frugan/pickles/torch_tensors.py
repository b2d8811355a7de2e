"""Tensors as PyTorch pickles them, as NumPy arrays, without PyTorch's own second unpickler.

A pickled tensor calls `torch.storage._load_from_bytes` with a file inside the file, for which PyTorch runs an
unrestricted unpickler. Here that inner file is read by the same stack machine as the outer one: three pickles of its
head, one that names a storage, one with the list of storages, then the length and the numbers.

Source: what `torch.save(..., _use_new_zipfile_serialization=False)` writes.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from frugan.errors import BadInput
from frugan.pickles.arrays import CURE
from frugan.pickles.objects import Name, ObjectReader, read_next

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
MOST_DIMENSIONS = 8
STORAGES: Mapping[str, str] = MappingProxyType(
    {
        "DoubleStorage": "f8",
        "FloatStorage": "f4",
        "HalfStorage": "f2",
        "LongStorage": "i8",
        "IntStorage": "i4",
        "ShortStorage": "i2",
        "CharStorage": "i1",
        "ByteStorage": "u1",
        "BoolStorage": "b1",
    }
)
_COUNT = struct.Struct("<q")


@dataclass(frozen=True, eq=False)
class Storage:
    """The numbers that tensors look at [n]."""

    numbers: np.ndarray


@dataclass(frozen=True, eq=False)
class StorageKind:
    """A type of storage."""

    dtype: np.dtype


@dataclass(frozen=True, eq=False)
class DescribedStorage:
    """What a pickled storage says of itself."""

    key: str
    dtype: np.dtype
    count: int


class Tensors:
    """Makes the tensors of one pickle.

    Args:
        size_bytes: of the pickle. Every tensor's numbers stand in it once; what wants more uses them again and again.

    Attributes:
        builders: (module, name) -> what is called in its place; for `ObjectReader`.
    """

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes = 2 * size_bytes
        self.builders: Mapping[Name, Callable[..., Any]] = {
            ("torch.storage", "_load_from_bytes"): _storage,
            ("torch._utils", "_rebuild_tensor"): self._tensor,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_parameter"): _parameter,
        }

    def _tensor(
        self,
        storage: Any,
        offset: Any,
        shape: Any,
        strides: Any,
        gradient: Any = False,
        hooks: Any = None,
        more: Any = None,
    ) -> np.ndarray:
        """Stand for `_rebuild_tensor_v2`: a copy of what the tensor looks at, which must lie within its storage."""
        if type(storage) is not Storage:
            raise TypeError
        numbers = storage.numbers
        _check_view(len(numbers), offset, shape, strides)
        count = prod(shape)
        self._left_bytes -= count * numbers.itemsize
        if self._left_bytes < 0:
            raise BadInput(f"uses the same numbers for several tensors, which take more than the whole file. {CURE}")
        if not count:
            return np.zeros(shape, numbers.dtype)
        steps = [stride * numbers.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(numbers[offset:], shape, steps, writeable=False).copy()


def _check_view(stored: int, offset: Any, shape: Any, strides: Any) -> None:
    """Refuse a tensor that looks beyond its storage's numbers, of which there are `stored`.

    Raises:
        BadInput: it does, or has too many dimensions.
        TypeError: its shape is none.
    """
    if type(shape) is not tuple or type(strides) is not tuple:
        raise TypeError
    if not all(type(n) is int and n >= 0 for n in (offset, *shape, *strides)):
        raise TypeError
    if len(shape) != len(strides) or len(shape) > MOST_DIMENSIONS:
        raise BadInput(f"holds a tensor of {len(shape)} dimensions with {len(strides)} strides. {CURE}")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if prod(shape) and last >= stored:
        raise BadInput(f"holds a tensor {list(shape)} that looks at number {last:,} of a storage of {stored:,}. {CURE}")


def _parameter(data: Any, gradient: Any = False, hooks: Any = None) -> np.ndarray:
    """Stand for `_rebuild_parameter`: its tensor."""
    if type(data) is not np.ndarray:
        raise TypeError
    return data


def _storage(raw: Any) -> Storage:
    """Stand for `_load_from_bytes`."""
    if type(raw) is not bytes:
        raise TypeError
    magic, at = read_next(ObjectReader(raw, {}))
    if type(magic) is not int or magic != MAGIC:
        _refuse("does not begin as PyTorch's do")
    protocol, at = read_next(ObjectReader(raw, {}, position=at))
    if type(protocol) is not int or protocol != PROTOCOL:
        _refuse(f"is of another version than {PROTOCOL}")
    machine, at = read_next(ObjectReader(raw, {}, position=at))
    if type(machine) is not dict or machine.get("little_endian") is not True:
        _refuse("is of a machine with another order of bytes")
    described, at = read_next(ObjectReader(raw, {}, constants=STORAGE_KINDS, persistent=described_storage, position=at))
    keys, at = read_next(ObjectReader(raw, {}, position=at))
    if type(described) is not DescribedStorage or type(keys) is not list or len(keys) != 1:
        _refuse("is no single storage")
    (count,) = _COUNT.unpack_from(raw, at)
    at += _COUNT.size
    needed = described.count * described.dtype.itemsize
    if count != described.count or len(raw) - at != needed:
        _refuse(f"has {len(raw) - at:,} bytes of numbers, and should have {needed:,}")
    return Storage(np.frombuffer(raw, described.dtype, described.count, at))


def described_storage(where: Any) -> DescribedStorage:
    """Stand for what looks a storage up by ("storage", type, key, device, numbers[, part of another])."""
    if type(where) is not tuple or len(where) not in (5, 6) or (len(where) == 6 and where[5] is not None):
        raise TypeError
    word, kind, key, _, count = where[:5]
    if type(word) is not str or word != "storage" or type(kind) is not StorageKind or type(key) is not str:
        raise TypeError
    if type(count) is not int or count < 0:
        raise TypeError
    return DescribedStorage(key, kind.dtype, count)


def _refuse(why: str) -> NoReturn:
    raise BadInput(f"holds a tensor whose storage {why}. {CURE}")


STORAGE_KINDS: Mapping[Name, Any] = {("torch", name): StorageKind(np.dtype(code)) for name, code in STORAGES.items()}
