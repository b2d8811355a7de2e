"""Errors for bad input and for failed training, checks of arguments' types, and imports of optional packages."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, wraps
from importlib import import_module
from inspect import signature
from numbers import Integral, Real
from reprlib import repr as short
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints


class BadInput(ValueError):
    """The user's input cannot be used; commands print the message and exit 2.

    The message names the value, what was expected, and the next thing to try.
    """


class BadFields(BadInput):
    """Values of some fields cannot be used; a form shows at each field what is wrong with its value.

    Attributes:
        reasons: field -> what is wrong, without the field and its value; "": of none by itself.
    """

    def __init__(self, message: str, reasons: Mapping[str, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


class OtherWeights(BadInput):
    """A file belongs to other weights of a generator than those that are open."""


class TrainingFailed(RuntimeError):
    """Training cannot go on as it is; commands print the message and exit 1."""


def optional_module(name: str, use: str, extra: str) -> Any:
    """Import a module that comes with one of frugan's extras.

    Args:
        name: name of the module.
        use: beginning of the message, which says what needs it: "an HDF5 file needs h5py".
        extra: extra that has it.

    Raises:
        BadInput: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise BadInput(f"{use}: pip install 'frugan[{extra}]'") from error


Entrance = TypeVar("Entrance", bound=Callable[..., Any])
"""A public function, or a public dataclass, which is called to make one."""


def checked(entrance: Entrance) -> Entrance:
    """Have an entrance refuse arguments whose types are not those of its annotations, with `BadInput`.

    What is inside lists and mappings is looked at too, but the choices of a `Literal` are left to the entrance, whose
    words on them are better. NumPy's numbers are numbers. Pydantic's strict mode would take the place of `_is_of`
    alone, and it refuses NumPy's integers, ranges, and lists that stand for tuples.
    """
    if not isinstance(entrance, type):
        return cast(Entrance, _checked(entrance, entrance))
    entrance.__init__ = _checked(entrance.__init__, entrance)  # type: ignore[misc]
    return entrance


def _checked(function: Any, annotated: Any) -> Callable[..., Any]:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    taken = {*signature(function).parameters}
    hints = cache(lambda: get_type_hints(annotated))  # not yet: one may name the class that is being defined

    @wraps(function)
    def refusing(*args: Any, **kwargs: Any) -> Any:
        for name, value in {**dict(zip(names, args, strict=False)), **kwargs}.items():
            wanted = hints().get(name, Any)
            if name not in taken and (options := _options_with(name, hints())) is not None:
                raise BadInput(f"{name}: belongs to the options; write {options}={short(value)})")
            if not _is_of(value, wanted):
                raise BadInput(f"{name}: expected {_in_words(wanted)}, not {_given(value, wanted)}")
        return function(*args, **kwargs)

    return refusing


_LISTS = (Sequence, Collection, tuple)
_NUMBERS = MappingProxyType({int: Integral, float: Real})


def _is_of(value: Any, wanted: Any) -> bool:
    """Return whether a value is of an annotation's type."""
    kind, inner = _taken_apart(wanted)
    if kind is Any:
        return True
    if kind is Union:
        return any(_is_of(value, each) for each in inner)
    if kind is Literal:
        return isinstance(value, tuple({type(choice) for choice in inner}))
    # lists do for tuples as well; the letters of a text are no list of texts
    allowed: Any = (tuple, list) if kind is tuple else _NUMBERS.get(kind, kind)
    if not isinstance(value, allowed) or (kind in _LISTS and isinstance(value, str | bytes)):
        return False
    parts: Iterable[Any] = value if kind in _LISTS else value.values() if kind is Mapping else ()
    return all(_is_of(part, inner[-1] if kind is Mapping else inner[0]) for part in parts)


def _options_with(name: str, hints: Mapping[str, Any]) -> str | None:
    """The beginning of how to write an option where an entrance takes it in a group; None: in none."""
    for parameter, wanted in hints.items():
        for kind in get_args(wanted):
            options = fields(kind) if is_dataclass(kind) else ()
            needless = all(option.default is not MISSING or option.default_factory is not MISSING for option in options)
            if needless and name in {option.name for option in options}:
                assert isinstance(kind, type)
                return f"{parameter}=frugan.{kind.__name__}({name}"
    return None


def _in_words(wanted: Any) -> str:
    """Say what an annotation allows."""
    kind, inner = _taken_apart(wanted)
    if kind is Union:
        return " or ".join(dict.fromkeys(map(_in_words, inner)))
    if kind is Literal:
        return " or ".join(map(repr, inner))
    if kind in _LISTS:
        return f"a {'tuple' if kind is tuple else 'list'} of {_in_words(inner[0])}"
    if kind is Mapping:
        return f"a dict of {_in_words(inner[1])}"
    return {NoneType: "None", Callable: "a function"}.get(kind, str(kind.__name__))


def _taken_apart(wanted: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return an annotation's kind, and what stands in its brackets."""
    if isinstance(wanted, NewType):
        return _taken_apart(wanted.__supertype__)
    kind = get_origin(wanted) or wanted
    return Union if kind is UnionType else kind, get_args(wanted)


def _given(value: Any, wanted: Any) -> str:
    """Show a value of a wrong type, and how to write a dict in place of options, and a word in place of a list."""
    text = " ".join(short(value).split())
    if isinstance(value, str) and any(_is_of([value], kind) for kind in (wanted, *get_args(wanted))):
        is_tuple = any(_taken_apart(kind)[0] is tuple for kind in (wanted, *get_args(wanted)))
        return f"{text}; write {f'({text},)' if is_tuple else f'[{text}]'}"
    options = next((kind for kind in get_args(wanted) or (wanted,) if is_dataclass(kind)), None)
    if isinstance(value, dict) and options is not None:
        fields = ", ".join(f"{name}={short(field)}" for name, field in value.items())
        return f"{text}; write {cast(type, options).__name__}({fields})"
    return text if value is None else f"{text} ({type(value).__name__})"
