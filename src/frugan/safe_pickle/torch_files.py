"""Files of `torch.save`, as plain values and NumPy arrays; nothing in them is run."""

import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from frugan.errors import BadInput
from frugan.safe_pickle.reader import CURE, DAMAGED, Name, ObjectReader, read_next, read_whole

# Tensors as PyTorch pickles them, as NumPy arrays, without PyTorch's own second unpickler.
#
# A pickled tensor calls `torch.storage._load_from_bytes` with a file inside the file, for which PyTorch runs an
# unrestricted unpickler. Here that inner file is read by the same stack machine as the outer one: three pickles of its
# head, one that names a storage, one with the list of storages, then the length and the numbers.
#
# Source: what `torch.save(..., _use_new_zipfile_serialization=False)` writes.

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
    """Metadata of a pickled storage."""

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
    """Replace `_load_from_bytes`."""
    if type(raw) is not bytes:
        raise TypeError
    at = _head(raw, ObjectReader, "holds a tensor whose storage ", "PyTorch's")
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

# The files themselves, of both formats: the zip of torch 1.6 and later (a pickle beside a member for every storage),
# and what came before it (pickles in a row, then the storages' numbers).
#
# Why not `torch.load(weights_only=True, mmap=True)` with `torch.nn.ReLU` among the safe names? It runs no program
# either, but, as measured with torch 2.13 on the files of tests/safe_pickle/test_torch_files.py:
#
# - files of the older format that hold a layer, as BigGAN-PyTorch's options do, are refused altogether;
# - a storage whose member is 4 bytes short is filled up with the bytes that follow in the file, without an error;
# - numbers of a machine with another order of bytes are read as if they were ours;
# - a file of 1,407 bytes whose tensor looks at ten numbers again and again is taken, and fills 120 MB when copied;
# - refusals name neither what the file refers to nor what to do, but advise to load with `weights_only=False`.
#
# Source: what `torch.save` writes, with and without `_use_new_zipfile_serialization`.

MOST_FILE_BYTES = 16 << 30
"""Twenty times the optimizer state of the largest networks here."""
MOST_MEMBERS = 100_000
DATA = "data.pkl"
BYTE_ORDER = "byteorder"
# What zipfile raises; OSError: of members that should lie before the file's beginning.
_DAMAGED_ZIP = (*DAMAGED, zipfile.BadZipFile, zlib.error, RuntimeError, OSError)


@dataclass(frozen=True, eq=False)
class Layer:
    """Placeholder of a layer without weights that a file holds as an object; its content is skipped."""

    kind: str  # its class's name


LAYERS: Mapping[Name, str] = MappingProxyType({("torch.nn.modules.activation", "ReLU"): "ReLU"})
"""Objects that may be there, in place of which a `Layer` stands."""


def read_torch_file(path: Path) -> Any:
    """Return what `torch.save` was given: containers, numbers, text, arrays in place of tensors.

    Raises:
        BadInput: not there, damaged, cut off, or with anything that would run a program.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file; expected one that torch.save wrote")
    if (size := path.stat().st_size) > MOST_FILE_BYTES:
        raise BadInput(f"{path}: {size:,} bytes; expected at most {MOST_FILE_BYTES:,}")
    with path.open("rb") as file:
        begins = file.read(4)
    return _read_zip(path, size) if begins[:2] == b"PK" else _read_legacy(path)


class StateReader(ObjectReader):
    """The stack machine for state dicts: whole numbers are keys too, and what BUILD adds to a dict is passed over."""

    expected = "numbers, text, tensors and layers without weights"

    def _handlers(self) -> dict[int, Callable[[], None]]:
        return super()._handlers() | {pickle.BUILD[0]: self._build}

    def _build(self) -> None:
        value, state = self._stack[-2:]
        if type(value) is Layer or (type(value) is dict and type(state) is dict and [*state] == ["_metadata"]):
            self._stack.pop()
            return
        value, state = self._last(2, keep=1)
        self._arrays.build(value, state)

    def _set_items(self, values: Sequence[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict:
            raise TypeError
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) is not str and type(key) is not int:  # others need not be hashable
                raise BadInput(f"has a dict whose key is a {type(key).__name__}; expected text or numbers. {CURE}")
            target[key] = value


def _layer(kind: str) -> Callable[..., Layer]:
    def make(*arguments: Any) -> Layer:
        if arguments:
            raise TypeError
        return Layer(kind)

    return make


_LAYERS: Mapping[Name, Callable[..., Any]] = MappingProxyType({name: _layer(kind) for name, kind in LAYERS.items()})


def _read_zip(path: Path, size: int) -> Any:
    where = f"{path}:"
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(archive, where, size)
            if BYTE_ORDER in members and archive.read(members[BYTE_ORDER]).strip() != b"little":
                raise BadInput(f"{where} is of a machine with another order of bytes. {CURE}")
            if DATA not in members:
                raise BadInput(f"{where} a zip, but not of torch.save: it has no {DATA}. {CURE}")
            data = archive.read(members[DATA])
            storages: dict[str, Storage] = {}

            def stored(identity: Any) -> Storage:
                described = described_storage(identity)
                known = storages.get(described.key)
                if known is None:
                    known = storages[described.key] = _member_storage(archive, members, described)
                return known

            builders = {**Tensors(size).builders, **_LAYERS}
            reader = StateReader(data, builders, constants=STORAGE_KINDS, persistent=stored)
            reader.size_bytes = size  # the numbers stand beside the pickle
            return read_whole(reader, where)
    except BadInput:
        raise
    except _DAMAGED_ZIP as error:
        raise BadInput(f"{where} is damaged or cut off ({error}). Copy or make it again.") from error


def _members(archive: zipfile.ZipFile, where: str, size: int) -> dict[str, zipfile.ZipInfo]:
    """Members by their names within the one folder that they lie in.

    Raises:
        BadInput: more of them than such a file has, or compressed ones: torch compresses none.
    """
    listed = archive.infolist()
    if len(listed) > MOST_MEMBERS:
        raise BadInput(f"{where} has {len(listed):,} members; expected at most {MOST_MEMBERS:,}. {CURE}")
    for member in listed:
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise BadInput(f"{where} member {member.filename[:60]!a} is compressed, which torch's never are. {CURE}")
    if sum(member.file_size for member in listed) > size:
        raise BadInput(f"{where} has members that lie on each other. {CURE}")
    return {member.filename.partition("/")[2]: member for member in listed}


def _member_storage(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], described: DescribedStorage
) -> Storage:
    member = members.get(f"data/{described.key}")
    if member is None:
        raise BadInput(f"has no member for storage {described.key[:40]!a}. {CURE}")
    needed = described.count * described.dtype.itemsize
    if member.file_size < needed:  # several dtypes may look at one, whose own count is of another width
        raise BadInput(f"storage {described.key[:40]!a} has {member.file_size:,} bytes, and should have {needed:,}")
    return Storage(np.frombuffer(archive.read(member), described.dtype, described.count))


def _read_legacy(path: Path) -> Any:
    where = f"{path}:"
    raw = path.read_bytes()
    try:
        at = _head(raw, StateReader, "", "files of torch.save")
        described: dict[str, DescribedStorage] = {}

        def note(identity: Any) -> Any:
            if (layer := _layer_in(identity)) is not None:
                return layer
            storage = described_storage(identity)
            described[storage.key] = storage
            return None

        # The numbers come after the pickle that speaks of them, so it is read twice: for their sizes, then with them.
        blank = dict.fromkeys(Tensors(0).builders, _nothing)
        _, end = read_next(
            StateReader(raw, {**blank, **_LAYERS}, constants=STORAGE_KINDS, persistent=note, position=at)
        )
        storages = _legacy_storages(raw, end, described)
    except BadInput as refusal:
        raise BadInput(f"{where} {refusal}") from refusal
    except DAMAGED as error:
        raise BadInput(f"{where} is damaged or cut off, or no file of torch.save. Copy or make it again.") from error
    reader = StateReader(
        raw,
        {**Tensors(len(raw)).builders, **_LAYERS},
        constants=STORAGE_KINDS,
        persistent=lambda identity: _layer_in(identity) or storages[described_storage(identity).key],
        position=at,
    )
    return read_whole(reader, where)


def _layer_in(identity: Any) -> Any:
    """A layer's class out of ("module", class, file, text of its program); None: no such thing."""
    if type(identity) is tuple and len(identity) == 4 and type(identity[0]) is str and identity[0] == "module":
        return identity[1]
    return None


def _head(raw: bytes, reader: type[ObjectReader], what: str, alike: str) -> int:
    """Position of the pickle of the contents, after those of magic number, version and machine.

    Args:
        reader: for these three.
        what: is refused otherwise, to begin a message with.
        alike: what begins in this way.
    """
    magic, at = read_next(reader(raw, {}))
    if type(magic) is not int or magic != MAGIC:
        raise BadInput(f"{what}does not begin as {alike} do. {CURE}")
    protocol, at = read_next(reader(raw, {}, position=at))
    if type(protocol) is not int or protocol != PROTOCOL:
        raise BadInput(f"{what}is of another version than {PROTOCOL}. {CURE}")
    machine, at = read_next(reader(raw, {}, position=at))
    if type(machine) is not dict or machine.get("little_endian") is not True:
        raise BadInput(f"{what}is of a machine with another order of bytes. {CURE}")
    return at


def _legacy_storages(raw: bytes, at: int, described: Mapping[str, DescribedStorage]) -> dict[str, Storage]:
    keys, at = read_next(StateReader(raw, {}, position=at))
    if type(keys) is not list or not all(type(key) is str for key in keys) or sorted(keys) != sorted(described):
        raise BadInput(f"lists other storages than its tensors look at. {CURE}")
    storages: dict[str, Storage] = {}
    for key in keys:
        of = described[key]
        (count,) = _COUNT.unpack_from(raw, at)
        at += _COUNT.size
        needed = of.count * of.dtype.itemsize
        if count != of.count or len(raw) - at < needed:
            raise BadInput(
                f"has {len(raw) - at:,} bytes for the {of.count:,} numbers of storage {key[:40]!a}: it is cut off. "
                "Copy or make it again."
            )
        storages[key] = Storage(np.frombuffer(raw, of.dtype, of.count, at))
        at += needed
    return storages


def _nothing(*arguments: Any) -> None:
    """Stand for a tensor whose numbers are not at hand yet."""
