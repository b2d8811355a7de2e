"""Write a pickle that DeepFaceLab reads: NumPy goes by the names it had before version 2, enums by DeepFaceLab's."""

import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from frugan.safe_pickle.reader import DTYPE_STATE, KINDS

MULTIARRAY = "numpy.core.multiarray"  # NumPy 2 calls it numpy._core.multiarray and still answers to this
_BATCH = 1000  # items per APPENDS or SETITEMS, as Python's pickler has it
_FRAME_BYTES = 1 << 16  # a frame ends with them, and longer texts and bytes are in none
_LEAST_FRAME_BYTES = 4
_TUPLES = {0: pickle.EMPTY_TUPLE, 1: pickle.TUPLE1, 2: pickle.TUPLE2, 3: pickle.TUPLE3}


@dataclass(frozen=True, eq=False)
class Global:
    """A value that is written as a call: the enum `FaceType(4)` is Global("facelib.FaceType", "FaceType", (4,))."""

    module: str
    name: str
    args: tuple[Any, ...]


def dump_pickle(value: Any, protocol: int = 4) -> bytes:
    """Return the pickle of a value.

    Arrays are written by rows and little-endian; objects met twice are written once.

    Args:
        value: of None, bool, int, float, str, bytes, list, tuple, dict with text keys, NumPy arrays and scalars of
            plain numbers, and `Global`. No container may hold itself.
        protocol: 3 or 4.

    Raises:
        ValueError: another protocol.
        TypeError: something of another type.
    """
    if protocol not in (3, 4):
        raise ValueError(f"pickle protocol {protocol}: expected 3 or 4")
    writer = _Writer(protocol)
    writer.save(value)
    return b"".join([pickle.PROTO, bytes([protocol]), *writer.ended()])


class _Frames:
    """Pieces of one pickle, in frames from protocol 4 on, as Python's pickler has them (PEP 3154).

    A frame ends before the next value once it has 64 KiB. Texts and bytes of that size lie between frames, and so does
    what is too short for one.
    """

    def __init__(self, framed: bool) -> None:
        self._framed = framed
        self._pieces: list[bytes | memoryview] = []
        self._frame: list[bytes] = []
        self._length = 0  # of what is in the frame, bytes

    def write(self, piece: bytes) -> None:
        self._frame.append(piece)
        self._length += len(piece)

    def write_long(self, header: bytes, content: bytes | memoryview) -> None:
        """Write an opcode whose argument has any length."""
        if len(content) < _FRAME_BYTES:
            self.write(header)
            self.write(bytes(content))
        else:
            self._close()
            self._pieces += (header, content)

    def before_value(self) -> None:
        """End a frame that is long enough: only here may it."""
        if self._length >= _FRAME_BYTES:
            self._close()

    def _close(self) -> None:
        if self._framed and self._length >= _LEAST_FRAME_BYTES:
            self._pieces.append(pickle.FRAME + struct.pack("<Q", self._length))
        self._pieces += self._frame
        self._frame, self._length = [], 0

    def ended(self) -> list[bytes | memoryview]:
        """Return all pieces, STOP included."""
        self.write(pickle.STOP)
        self._close()
        return self._pieces


class _Writer:
    """Turns values into the pieces of one pickle."""

    def __init__(self, protocol: int) -> None:
        self._newer = protocol >= 4
        self._frames = _Frames(self._newer)
        self._write = self._frames.write
        self._memo: dict[int, tuple[int, Any]] = {}  # identity to number and object, which so stays alive
        self._names: dict[tuple[str, str], _Name] = {}
        self._savers: dict[type, Callable[[Any], None]] = {
            type(None): lambda _: self._write(pickle.NONE),
            bool: lambda value: self._write(pickle.NEWTRUE if value else pickle.NEWFALSE),
            int: self._int,
            str: self._str,
            bytes: self._bytes,
            list: self._list,
            tuple: self._tuple,
            dict: self._dict,
            Global: lambda value: self._call(value, self._name(value.module, value.name), value.args),
            _Name: self._write_name,
            np.ndarray: self._array,
            memoryview: self._bytes,
        }

    def ended(self) -> list[bytes | memoryview]:
        return self._frames.ended()

    def save(self, value: Any) -> None:
        self._frames.before_value()
        saver = self._savers.get(type(value))
        if type(value) is float:  # never memoised, and most of what there is
            self._write(pickle.BINFLOAT + struct.pack(">d", value))
        elif (known := self._memo.get(id(value))) is not None:
            self._numbered(known[0], pickle.BINGET, pickle.LONG_BINGET)
        elif saver is not None:
            saver(value)
        elif isinstance(value, np.generic):
            self._scalar(value)
        elif isinstance(value, np.dtype):
            self._dtype(value)
        else:
            raise TypeError(f"a {type(value).__name__} has no place in DeepFaceLab's files")

    def _memoize(self, value: Any) -> None:
        number = len(self._memo)
        self._memo[id(value)] = number, value
        if self._newer:
            self._write(pickle.MEMOIZE)
        else:
            self._numbered(number, pickle.BINPUT, pickle.LONG_BINPUT)

    def _numbered(self, number: int, short: bytes, long: bytes) -> None:
        self._write(short + bytes([number]) if number < 256 else long + struct.pack("<I", number))

    def _int(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self._write(pickle.BININT1 + struct.pack("<B", value))
        elif 0 <= value < 1 << 16:
            self._write(pickle.BININT2 + struct.pack("<H", value))
        elif -1 << 31 <= value < 1 << 31:
            self._write(pickle.BININT + struct.pack("<i", value))
        else:
            raw = pickle.encode_long(value)
            self._write(pickle.LONG1 + struct.pack("<B", len(raw)) + raw)

    def _str(self, value: str) -> None:
        raw = value.encode("utf-8", "surrogatepass")
        if self._newer and len(raw) < 256:
            self._write(pickle.SHORT_BINUNICODE + bytes([len(raw)]) + raw)
        else:
            self._frames.write_long(pickle.BINUNICODE + struct.pack("<I", len(raw)), raw)
        self._memoize(value)

    def _bytes(self, value: bytes | memoryview) -> None:
        if len(value) < 256:
            header = pickle.SHORT_BINBYTES + bytes([len(value)])
        elif len(value) < 1 << 32:
            header = pickle.BINBYTES + struct.pack("<I", len(value))
        elif self._newer:
            header = pickle.BINBYTES8 + struct.pack("<Q", len(value))
        else:
            raise ValueError(f"{len(value):,} bytes in one piece: more than 4 GiB need pickle protocol 4")
        self._frames.write_long(header, value)
        self._memoize(value)

    def _list(self, value: list[Any]) -> None:
        self._write(pickle.EMPTY_LIST)
        self._memoize(value)
        self._batches(value, pickle.APPEND, pickle.APPENDS, self.save)

    def _dict(self, value: dict[Any, Any]) -> None:
        self._write(pickle.EMPTY_DICT)
        self._memoize(value)
        self._batches(list(value.items()), pickle.SETITEM, pickle.SETITEMS, self._item)

    def _item(self, item: tuple[Any, Any]) -> None:
        key, value = item
        if type(key) is not str:
            raise TypeError(f"a dict key {key!r}: DeepFaceLab's files have text keys only")
        self.save(key)
        self.save(value)

    def _batches(self, items: Sequence[Any], single: bytes, several: bytes, save: Callable[[Any], None]) -> None:
        if len(items) == 1:
            save(items[0])
            self._write(single)
            return
        for start in range(0, len(items), _BATCH):
            self._write(pickle.MARK)
            for item in items[start : start + _BATCH]:
                save(item)
            self._write(several)

    def _tuple(self, value: tuple[Any, ...]) -> None:
        if len(value) > 3:
            self._write(pickle.MARK)
        for item in value:
            self.save(item)
        self._write(_TUPLES.get(len(value), pickle.TUPLE))
        if value:
            self._memoize(value)

    def _call(
        self, value: Any, name: "_Name", arguments: tuple[Any, ...], state: tuple[Any, ...] | None = None
    ) -> None:
        """Write that `made` comes of calling `name`, then of BUILD with `state`."""
        self.save(name)
        self.save(arguments)
        self._write(pickle.REDUCE)
        self._memoize(value)
        if state is not None:
            self.save(state)
            self._write(pickle.BUILD)

    def _name(self, module: str, name: str) -> "_Name":
        # interned, and one object per name: what is met twice is known by identity
        return self._names.setdefault((module, name), _Name(sys.intern(module), sys.intern(name)))

    def _write_name(self, value: "_Name") -> None:
        if self._newer:
            self.save(value.module)
            self.save(value.name)
            self._write(pickle.STACK_GLOBAL)
        else:
            self._write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        self._memoize(value)

    def _array(self, value: np.ndarray) -> None:
        dtype = _little_endian(value.dtype)
        raw = np.asarray(value, dtype, order="C").reshape(-1).view(np.uint8).data
        start = self._name("numpy", "ndarray"), np.empty(0).shape, b"b"  # the shape anew each time, as NumPy has it
        self._call(value, self._name(MULTIARRAY, "_reconstruct"), start, (1, value.shape, dtype, False, raw))

    def _scalar(self, value: np.generic) -> None:
        dtype = _little_endian(value.dtype)
        self._call(value, self._name(MULTIARRAY, "scalar"), (dtype, np.asarray(value, dtype).tobytes()))

    def _dtype(self, value: np.dtype) -> None:
        state = (3, "|" if value.itemsize == 1 else "<", *DTYPE_STATE)
        self._call(value, self._name("numpy", "dtype"), (value.str[1:], False, True), state)


@dataclass(frozen=True, eq=False)
class _Name:
    module: str
    name: str


def _little_endian(dtype: np.dtype) -> np.dtype:
    """Return a little-endian dtype of plain numbers.

    It is the array's own object, which is NumPy's one for that dtype unless somebody copied it: only the same object is
    not written again, as Python's pickler has it.

    Raises:
        TypeError: of anything else.
    """
    code = dtype.str[1:]
    if code not in KINDS:
        raise TypeError(f"NumPy {dtype} has no place in DeepFaceLab's files; expected one of {', '.join(KINDS)}")
    return dtype if dtype == np.dtype(f"<{code}") else np.dtype(f"<{code}")
