"""Read a pickle of plain values, NumPy arrays or plain records without ever running what it says."""

import pickle
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from frugan.errors import BadInput

KINDS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
DTYPE_STATE = (None, None, None, -1, -1, 0)  # no fields, no sub-array, no flags
MOST_DIMENSIONS = 32  # NumPy's own limit before version 2
CURE = "No such file holds anything like it, so it is damaged or made by something else: copy or make it again."


class Arrays:
    """Makes the arrays, scalars and dtypes of one pickle.

    Args:
        size_bytes: of the pickle. Every value stands in it once, and takes at most twice its room there (protocol 2:
            text becomes bytes, then an array); what wants more uses the same bytes again and again.

    Attributes:
        stand_ins: (module, name) to what is called in its place.
    """

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes = 2 * size_bytes
        self.stand_ins: Mapping[tuple[str, str], Callable[..., Any]] = {
            ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
            ("numpy.core.multiarray", "scalar"): _scalar,
            ("numpy._core.multiarray", "scalar"): _scalar,
            ("numpy", "dtype"): _dtype,
            ("numpy", "ndarray"): _ndarray,
            ("_codecs", "encode"): self._encode,
            ("__builtin__", "bytes"): _no_bytes,
        }

    def build(self, value: Any, state: Any) -> None:
        """Give an array or a dtype its content, as BUILD asks.

        Raises:
            BadInput: another object, or a content that does not fit.
        """
        if isinstance(value, np.dtype):
            _build_dtype(value, state)
        elif type(value) is np.ndarray:
            self._build_array(value, state)
        else:
            raise BadInput(f"changes the insides of a {type(value).__name__}; expected NumPy arrays only. {CURE}")

    def _build_array(self, array: np.ndarray, state: Any) -> None:
        if array.size or type(state) is not tuple or len(state) != 5:
            raise BadInput(f"holds a NumPy array filled twice or in an unknown way. {CURE}")
        _, shape, dtype, by_columns, raw = state
        if not isinstance(dtype, np.dtype) or type(raw) is not bytes:
            raise BadInput(f"holds a NumPy array of other things than numbers ({type(raw).__name__}). {CURE}")
        if (
            type(shape) is not tuple
            or len(shape) > MOST_DIMENSIONS
            or not all(type(n) is int and n >= 0 for n in shape)
        ):
            raise BadInput(f"holds a NumPy array without a proper shape. {CURE}")
        needed = prod(shape) * dtype.itemsize
        if needed != len(raw):
            raise BadInput(
                f"holds a NumPy array {list(shape)} of {dtype}, which takes {needed:,} bytes, with {len(raw):,}. {CURE}"
            )
        self._spend(needed)
        array.__setstate__((1, shape, dtype, by_columns is True, raw))  # type: ignore[arg-type]  # takes a bool

    def _encode(self, text: Any, encoding: Any) -> bytes:
        """Stand for `_codecs.encode`, with which protocol 2 spells bytes."""
        if type(text) is not str or type(encoding) is not str or encoding != "latin1":
            raise BadInput(f"calls `_codecs.encode` for something else than bytes. {CURE}")
        self._spend(len(text))
        return text.encode("latin1")

    def _spend(self, count_bytes: int) -> None:
        self._left_bytes -= count_bytes
        if self._left_bytes < 0:
            raise BadInput(f"uses the same bytes for several arrays, which take more than the whole file. {CURE}")


def _reconstruct(kind: Any, shape: Any, code: Any) -> np.ndarray:
    """Stand for NumPy's `_reconstruct`: its pickles ask for an empty array, which BUILD then fills."""
    if type(shape) is not tuple or shape != (0,):
        raise BadInput(f"holds a NumPy array that does not begin empty. {CURE}")
    return np.empty(0, np.int8)


def _scalar(dtype: Any, raw: Any) -> Any:
    """Stand for NumPy's `scalar`."""
    if not isinstance(dtype, np.dtype) or type(raw) is not bytes or len(raw) != dtype.itemsize:
        raise BadInput(f"holds a NumPy scalar whose bytes do not fit its dtype. {CURE}")
    return np.frombuffer(raw, dtype)[0]


def _dtype(code: Any, align: Any = False, copy: Any = True) -> np.dtype:
    """Replace `numpy.dtype`."""
    if type(code) is not str or code not in KINDS:
        raise BadInput(f"holds NumPy values that are no plain numbers; expected dtypes {', '.join(KINDS)}. {CURE}")
    # a copy, because BUILD changes its byte order
    return np.dtype(code, align=False, copy=True)


def _build_dtype(dtype: np.dtype, state: Any) -> None:
    order = state[1] if type(state) is tuple and len(state) == 8 and state[2:] == DTYPE_STATE else None
    if type(order) is not str or order not in ("<", ">", "|") or (order == "|") != (dtype.itemsize == 1):
        raise BadInput(f"holds a NumPy dtype with fields, flags or no byte order. {CURE}")
    dtype.__setstate__((3, order, *DTYPE_STATE))  # type: ignore[attr-defined]


def _no_bytes() -> bytes:
    """Stand for `bytes()`, with which protocol 2 spells b""."""
    return b""


def _ndarray(*arguments: Any) -> Any:
    raise BadInput(f"calls `numpy.ndarray`, expected as an argument only. {CURE}")


# Read a pickle of plain values and NumPy arrays without ever running what it says.
#
# `pickle.Unpickler` with a narrow `find_class` is not enough: it still sets attributes on whatever a file likes
# (BUILD), makes room for a memo of any size, and hashes keys nested so deeply that the process dies. So this is a stack
# machine of its own for the opcodes that such files consist of, with every size checked against the bytes that are
# there.
#
# Source: the opcodes as Python's `pickletools` documents them; which names are needed: DeepFaceLab's files.

MOST_LEVELS = 16  # of containers within containers; DeepFaceLab's files have up to 5
MOST_VALUES_PER_BYTE = 4  # written out, without sharing; a value takes a byte, and shared ones less
NEWEST_PROTOCOL = 5
CONTAINERS = frozenset({list, tuple, dict})
LEAVES = frozenset({type(None), bool, int, float, str, bytes})
STOP, MARK, MEMOIZE, EMPTY_LIST, APPENDS, BINFLOAT = b"".join(
    (pickle.STOP, pickle.MARK, pickle.MEMOIZE, pickle.EMPTY_LIST, pickle.APPENDS, pickle.BINFLOAT)
)

# What the handlers and NumPy raise on bytes that are no pickle.
DAMAGED = (LookupError, struct.error, ValueError, TypeError, EOFError, OverflowError)

_UINT8, _UINT16, _UINT32, _UINT64 = (struct.Struct(form) for form in ("<B", "<H", "<I", "<Q"))
_INT32, _FLOAT64 = struct.Struct("<i"), struct.Struct(">d")


def load_pickle(data: bytes, where: str, globals: Mapping[tuple[str, str], Callable[..., Any]] | None = None) -> Any:
    """Return the value of a pickle.

    It consists of None, bool, int, float, str, bytes, list, tuple, dict with text keys, NumPy arrays, scalars and
    dtypes of plain numbers, and what `globals` return.

    Args:
        data: the pickle, in protocol 2 to 5.
        where: its file, for messages.
        globals: (module, name) as the file has it, to what is called in its place, with values out of the file: it must
            do no harm whatever they are, and refuse wrong ones with ValueError, TypeError or BadInput.

    Raises:
        BadInput: it holds anything else, is nested more than 16 levels deep, shares so much that it would be far larger
            than the file when written out, or is damaged or cut off.
    """
    return read_whole(PickleReader(data, {name: _for_leaves(call) for name, call in (globals or {}).items()}), where)


def read_whole(reader: "PickleReader", where: str) -> Any:
    """Return the value of a reader's pickle, which must be plain all through; see `load_pickle`.

    Raises:
        BadInput: it is not, or is damaged or cut off.
    """
    try:
        value = reader.run()
        _check_contents(value)
        if _written_out(value, {}) > MOST_VALUES_PER_BYTE * reader.size_bytes + 1000:
            raise BadInput(f"holds the same values so often that they would fill the memory. {CURE}")
    except BadInput as refusal:
        raise BadInput(f"{where} {refusal}") from refusal
    except DAMAGED as error:
        raise BadInput(
            f"{where} is damaged or cut off, or no pickle (byte {reader.position:,} of {reader.size_bytes:,}). "
            "Copy or make it again."
        ) from error
    return value


class _Global:
    """A name that the file may call; it is no value of its own."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call


class PickleReader:
    """The stack machine.

    Args:
        data: the pickle.
        stand_ins: what is called in place of a name.
        position: where the pickle begins.

    Attributes:
        position: of the next byte.
        size_bytes: of the data.
    """

    expected = "numbers, text, lists and NumPy arrays"
    """Allowed content, for messages."""

    def __init__(self, data: bytes, stand_ins: Mapping[tuple[str, str], Callable[..., Any]], position: int = 0) -> None:
        self.position = position
        self.size_bytes = len(data)
        self._data = data
        self._arrays = Arrays(len(data))
        self._stand_ins = {**self._arrays.stand_ins, **stand_ins}
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks that lie under each MARK
        self._memo: dict[int, Any] = {}  # as a list it would make room up to any index that the file names

    def run(self) -> Any:
        """Return what lies on the stack at STOP."""
        handlers, data, memo = self._handlers(), self._data, self._memo
        stack, position = self._stack, self.position
        while (opcode := data[position]) != STOP:
            position += 1
            # what coordinates consist of is done here, for speed: the index of 10,000 faces has 4 million opcodes
            if opcode == BINFLOAT:
                stack.append(_FLOAT64.unpack_from(data, position)[0])
                position += 8
            elif opcode == MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif opcode == MARK:
                self._below.append(stack)
                stack = self._stack = []
            elif opcode == EMPTY_LIST:
                stack.append([])
            elif opcode == APPENDS:
                values, stack = stack, self._below.pop()
                self._stack = stack
                self._append(values)
            elif opcode in handlers:
                self.position = position
                handlers[opcode]()
                stack, position = self._stack, self.position
            else:
                raise BadInput(f"has the pickle opcode {opcode:#04x}, which plain values do without. {CURE}")
        self.position = position + 1
        return self._stack.pop()

    def _pushing(self, read: Callable[[], Any]) -> Callable[[], None]:
        def push() -> None:
            what = read()  # before the stack is looked up: reading may leave a MARK's stack
            self._stack.append(what)

        return push

    def _handlers(self) -> dict[int, Callable[[], None]]:
        value = self._pushing

        def sized(length: struct.Struct) -> Callable[[], bytes]:
            return lambda: self._take(self._number(length))

        def text(length: struct.Struct) -> Callable[[], str]:
            return lambda: str(self._take(self._number(length)), "utf-8", "surrogatepass")

        by_name: dict[bytes, Callable[[], None]] = {
            pickle.PROTO: self._protocol,
            pickle.FRAME: lambda: self._skip(_UINT64.size),  # all of the data is at hand
            pickle.NONE: value(lambda: None),
            pickle.NEWTRUE: value(lambda: True),
            pickle.NEWFALSE: value(lambda: False),
            pickle.BININT: value(lambda: self._number(_INT32)),
            pickle.BININT1: value(lambda: self._number(_UINT8)),
            pickle.BININT2: value(lambda: self._number(_UINT16)),
            pickle.LONG1: value(lambda: int.from_bytes(self._take(self._number(_UINT8)), "little", signed=True)),
            pickle.SHORT_BINUNICODE: value(text(_UINT8)),
            pickle.BINUNICODE: value(text(_UINT32)),
            pickle.BINUNICODE8: value(text(_UINT64)),
            pickle.SHORT_BINBYTES: value(sized(_UINT8)),
            pickle.BINBYTES: value(sized(_UINT32)),
            pickle.BINBYTES8: value(sized(_UINT64)),
            pickle.EMPTY_TUPLE: value(tuple),
            pickle.EMPTY_DICT: value(dict),
            pickle.TUPLE: value(lambda: tuple(self._since_mark())),
            pickle.TUPLE1: value(lambda: self._last(1)),
            pickle.TUPLE2: value(lambda: self._last(2)),
            pickle.TUPLE3: value(lambda: self._last(3)),
            pickle.APPEND: lambda: self._append(self._last(1)),
            pickle.SETITEM: lambda: self._set_items(self._last(2)),
            pickle.SETITEMS: lambda: self._set_items(self._since_mark()),
            pickle.BINPUT: lambda: self._put(_UINT8),
            pickle.LONG_BINPUT: lambda: self._put(_UINT32),
            pickle.BINGET: value(lambda: self._memo[self._number(_UINT8)]),
            pickle.LONG_BINGET: value(lambda: self._memo[self._number(_UINT32)]),
            pickle.GLOBAL: value(lambda: self._global(self._line(), self._line())),
            pickle.STACK_GLOBAL: value(lambda: self._global(*self._last(2))),
            pickle.REDUCE: value(lambda: self._call(*self._last(2))),
            pickle.BUILD: lambda: self._arrays.build(*self._last(2, keep=1)),
        }
        return {opcode[0]: handler for opcode, handler in by_name.items()}

    def _number(self, form: struct.Struct) -> int:
        number: int = form.unpack_from(self._data, self.position)[0]
        self.position += form.size
        return number

    def _take(self, count: int) -> bytes:
        piece = self._data[self.position : self.position + count]
        if len(piece) < count:
            raise EOFError
        self.position += count
        return piece

    def _skip(self, count: int) -> None:
        self.position += count

    def _line(self) -> str:
        end = self._data.index(b"\n", self.position)
        line = str(self._data[self.position : end], "utf-8")
        self.position = end + 1
        return line

    def _protocol(self) -> None:
        if (protocol := self._number(_UINT8)) > NEWEST_PROTOCOL:
            raise BadInput(f"is a pickle of protocol {protocol}; expected at most {NEWEST_PROTOCOL}. {CURE}")

    def _last(self, count: int, keep: int = 0) -> tuple[Any, ...]:
        """Take `count` values off the stack, but for the first `keep` of them."""
        start = len(self._stack) - count
        if start < 0:
            raise IndexError
        values = tuple(self._stack[start:])
        del self._stack[start + keep :]
        return values

    def _since_mark(self) -> list[Any]:
        """Take all values since the last MARK."""
        values = self._stack
        self._stack = self._below.pop()
        return values

    def _append(self, values: Iterable[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise TypeError
        target.extend(values)

    def _set_items(self, values: Sequence[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict:
            raise TypeError
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) is not str:  # others need not be hashable, or not in finite time
                raise BadInput(f"has a dict whose key is a {type(key).__name__}; expected text. {CURE}")
            target[key] = value

    def _put(self, index: struct.Struct) -> None:
        self._memo[self._number(index)] = self._stack[-1]

    def _global(self, module: Any, name: Any) -> Any:
        if type(module) is not str or type(name) is not str:
            raise TypeError
        call = self._stand_ins.get((module, name))
        if call is None:
            raise BadInput(
                f"refers to {f'{module}.{name}'[:100]!a}, which could run a program; expected {self.expected} "
                f"only. It was not run. {CURE}"
            )
        return _Global(call)

    def _call(self, what: Any, arguments: Any) -> Any:
        if type(what) is not _Global or type(arguments) is not tuple:
            raise TypeError
        return what.call(*arguments)


def _for_leaves(call: Callable[..., Any]) -> Callable[..., Any]:
    """Keep containers from `call`: even to hash or to print one can take forever."""

    def checked(*arguments: Any) -> Any:
        if not all(type(argument) in LEAVES for argument in arguments):
            raise TypeError
        return call(*arguments)

    return checked


def _check_contents(value: Any) -> None:
    """Refuse what is nested too deeply, endlessly, or no value."""
    level: dict[int, Any] = {id(value): value}  # by identity: what is shared is looked at once
    for _ in range(MOST_LEVELS + 1):
        if any(type(part) is _Global for part in level.values()):
            raise TypeError
        containers = [part for part in level.values() if type(part) in CONTAINERS]
        if not containers:
            return
        level = {
            id(part): part
            for container in containers
            for part in (container.values() if type(container) is dict else container)
            if type(part) not in LEAVES
        }
    raise BadInput(f"is nested more than {MOST_LEVELS} levels deep. {CURE}")


def _written_out(value: Any, known: dict[int, int]) -> int:
    """Number of values if shared ones are counted each time, in at most `MOST_LEVELS` levels.

    Args:
        value: a container or a leaf.
        known: id of a container -> its count; filled here, so that each is walked through once.
    """
    if isinstance(value, np.ndarray):
        return 1 + value.size
    if type(value) not in CONTAINERS:
        return 1
    if id(value) not in known:
        parts = value.values() if type(value) is dict else value
        inner = [part for part in parts if type(part) not in LEAVES]
        known[id(value)] = 1 + len(value) - len(inner) + sum(_written_out(part, known) for part in inner)
    return known[id(value)]


# A pickle of objects, read as plain records: containers and names that plain values do without.
#
# Objects of a program arrive as the arguments that it would be rebuilt from. What stands in for its functions keeps
# them; nothing is called that the file names.

Name = tuple[str, str]
"""(module, name) as the file has it."""


class ObjectReader(PickleReader):
    """The stack machine with sets of text, names that stand for values, and objects made from arguments.

    Args:
        data: the pickle.
        builders: name -> what is called in its place, with containers too: it must not hash, print, compare or walk
            through them, and must refuse wrong ones with ValueError, TypeError or BadInput.
        constants: name -> what it stands for where it is a value.
        persistent: what is called with the id of a value that is stored elsewhere; None: there are none.
        position: where the pickle begins.
    """

    expected = "numbers, text, arrays and network layers"

    def __init__(
        self,
        data: bytes,
        builders: Mapping[Name, Callable[..., Any]],
        *,
        constants: Mapping[Name, Any] | None = None,
        persistent: Callable[[Any], Any] | None = None,
        position: int = 0,
    ) -> None:
        super().__init__(data, {("collections", "OrderedDict"): _empty_dict, **_SETS, **builders}, position)
        self._constants = constants or {}
        self._persistent = persistent

    def _handlers(self) -> dict[int, Callable[[], None]]:
        more: dict[bytes, Callable[[], None]] = {
            pickle.NEWOBJ: self._pushing(lambda: self._call(*self._last(2))),
            pickle.EMPTY_SET: self._pushing(set),
            pickle.ADDITEMS: self._add_items,
            pickle.BINPERSID: self._pushing(self._stored_elsewhere),
        }
        return super()._handlers() | {opcode[0]: handler for opcode, handler in more.items()}

    def _add_items(self) -> None:
        values = self._since_mark()
        target = self._stack[-1]
        if type(target) is not set:
            raise TypeError
        target |= _texts(values)

    def _global(self, module: Any, name: Any) -> Any:
        if type(module) is str and type(name) is str and (module, name) in self._constants:
            return self._constants[module, name]
        return super()._global(module, name)

    def _stored_elsewhere(self) -> Any:
        if self._persistent is None:
            raise TypeError
        (where,) = self._last(1)
        return self._persistent(where)


def read_next(reader: ObjectReader) -> tuple[Any, int]:
    """One of several pickles in a row: its value, and where the next begins.

    Raises:
        BadInput: it is damaged, or holds what may not be.
    """
    try:
        return reader.run(), reader.position
    except BadInput:
        raise
    except DAMAGED as error:
        raise BadInput(f"holds a pickle within it that is damaged or cut off. {CURE}") from error


def _empty_dict(*arguments: Any) -> dict[str, Any]:
    """Stand for an ordered dict, which is filled later as any other."""
    if arguments:
        raise TypeError
    return {}


def _set_of(*arguments: Any) -> set[str]:
    """Stand for `set`, with which protocols before 4 spell one."""
    if len(arguments) > 1 or (arguments and type(arguments[0]) is not list):
        raise TypeError
    return _texts(arguments[0]) if arguments else set()


def _texts(values: list[Any]) -> set[str]:
    if not all(type(value) is str for value in values):  # others need not be hashable, or not in finite time
        raise TypeError
    return set(values)


_SETS: Mapping[Name, Callable[..., Any]] = {("builtins", "set"): _set_of, ("__builtin__", "set"): _set_of}
