"""Random numbers of a simulated card: torch makes no generator for a device of Python's."""

import weakref
from functools import cache
from typing import Any

import torch

KIND = "simcard"
CPU = torch.device("cpu")


class Generator(torch._C.Generator):
    """Takes the place of `torch.Generator`, which cannot be made for a device of Python's: a processor's underneath."""

    _of: torch.device

    def __new__(cls, device: torch.device | str = "cpu") -> "Generator":
        """Of a device."""
        of = torch.device(device)
        made: Generator = super().__new__(cls, CPU if of.type == KIND else of)  # type: ignore[call-arg]
        made._of = torch.device(KIND, of.index or 0) if of.type == KIND else of
        _GENERATORS[made._cdata] = made  # type: ignore[attr-defined]
        return made

    def __init__(self, device: torch.device | str = "cpu") -> None:
        """See `__new__`."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it draws."""
        return self._of


_GENERATORS: "weakref.WeakValueDictionary[int, Generator]" = weakref.WeakValueDictionary()
"""By what C++ calls them, which gives operations other objects of Python."""


@cache
def _place(op: Any) -> int | None:
    """Number of the argument by which an operation is given a generator."""
    places = [i for i, argument in enumerate(op._schema.arguments) if "Generator" in str(argument.type)]
    return places[0] if places else None


def with_generator(op: Any, device: torch.device, own: Generator, args: Any, kwargs: Any) -> None:
    """Draw from the card's own generator where none is given.

    Raises:
        RuntimeError: another device's is given.
    """
    if (at := _place(op)) is not None:
        given = args[at] if at < len(args) else kwargs.get("generator")
        if given is None and torch.Tag.nondeterministic_seeded in op.tags:
            kwargs["generator"] = own
        elif given is not None:
            of = _GENERATORS.get(given._cdata, given).device
            if of != device:
                raise RuntimeError(f"{op}: expected a generator of {device}, got {of}'s")
