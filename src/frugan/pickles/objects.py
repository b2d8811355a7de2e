"""A pickle of objects, read as plain records: containers and names that plain values do without.

Objects of a program arrive as the arguments that it would be rebuilt from. What stands in for its functions keeps them;
nothing is called that the file names.
"""

import pickle
from collections.abc import Callable, Mapping
from typing import Any

from frugan.errors import BadInput
from frugan.pickles.arrays import CURE
from frugan.pickles.reader import DAMAGED, PickleReader

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
