"""Faults of a recipe's values in words: which key, what was expected, and the nearest key that there is."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from frugan.engine.state.optimizer_settings import KINDS
from frugan.errors import BadFields
from frugan.wording import nearest

THEIR_WORDS = re.compile(r"(?:Input|String|List|Tuple) should (.*?)(?: after validation.*|, unable to.*|, not \d+)?$")
"""How pydantic begins to say what is wrong; what it adds on how it found out is left away."""
KIND_OF_VALUE = re.compile(r"bool|int|float|str|literal\[.*\]")
"""Part of a fault's place that is no key, but one of the kinds of values that pydantic has tried there."""
PLAIN_WORDS = {
    "a valid tuple": "a list",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
}
MEANT: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("training.precision", "tf32"): "training.tf32=true",
        ("training.precision", "float32"): "training.precision=fp32",
        ("training.precision", "float16"): "training.precision=fp16",
        ("training.precision", "half"): "training.precision=fp16",
        ("training.precision", "bfloat16"): "training.precision=bf16",
    }
)
"""Key and value that other programs have -> how it is said here."""


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """Lines that name each faulty key of a model and what is wrong with it."""
    return "\n".join(line for fault in _faults(error, model, prefix) for line in fault.lines)


def reasons(error: ValidationError, model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Return what is wrong with each faulty key of a model; "": with none by itself."""
    found: dict[str, str] = {}
    for details in error.errors():
        if isinstance(inner := details.get("ctx", {}).get("error"), BadFields):  # of a section with a type of its own
            return dict(inner.reasons)
    for fault in _faults(error, model, prefix):
        found[fault.key] = "; ".join(filter(None, (found.get(fault.key), fault.reason)))
    return found


@dataclass(frozen=True)
class _Fault:
    """What is wrong with a value."""

    key: str  # dotted; empty: a fault of the recipe as a whole, or one that is explained already
    reason: str
    given: str = ""  # the value, where it can be shown
    described: tuple[str, ...] = ()  # what its field does

    @property
    def lines(self) -> Iterator[str]:
        given = f" (got {self.given})" if self.given else ""
        yield f"{self.key}: {self.reason}{given}" if self.key else self.reason
        yield from (f"  {line}" for line in self.described)


def _faults(error: ValidationError, model: type[BaseModel], prefix: str) -> Iterator[_Fault]:
    """Yield a fault for each value, be it of one of several kinds and of none."""
    by_place: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    found = error.errors()
    for fault in found:
        if fault["type"] == "too_short" and any(_lies_within(other["loc"], fault["loc"]) for other in found):
            continue  # a list without its faulty items
        place = tuple(part for part in fault["loc"] if not (isinstance(part, str) and KIND_OF_VALUE.fullmatch(part)))
        by_place.setdefault(place, []).append(fault)
    for place, faults in by_place.items():
        yield _fault(place, faults, model, prefix)


def _lies_within(place: tuple[int | str, ...], outer: tuple[int | str, ...]) -> bool:
    return len(place) > len(outer) and place[: len(outer)] == outer


def _fault(at: tuple[int | str, ...], faults: Sequence[ErrorDetails], model: type[BaseModel], prefix: str) -> _Fault:
    """Return the fault of a value, with the nearest valid key of an unknown one, and the description of its field.

    Args:
        at: place of the value.
        faults: several where it may be of several kinds, and is of none.
    """
    fault, place = faults[0], [part for part in (prefix, *map(str, at)) if part]
    key = ".".join(place)
    if not key:
        return _Fault("", in_our_words(fault["msg"]))
    if fault["type"] == "extra_forbidden":
        known = list(dotted_keys(model, prefix))
        if place[:1] == ["optimizers"]:
            known += [f"optimizers.{place[1]}.{field}" for kind in KINDS.values() for field in dotted_keys(kind)]
        return _Fault(key, f"unknown key{nearest(key, [other for other in known if other != key])}")
    if fault["type"] == "missing":
        other = "; an optimizer that the recipe has already goes by its name, such as optimizers.D"
        return _Fault(key, "missing" + (other if key.startswith("optimizers.") else ""))
    shown = isinstance(fault["input"], str | int | float | bool | list | tuple)
    is_word_for_list = fault["type"] in ("tuple_type", "list_type") and isinstance(fault["input"], str)
    spelling = f", such as {key}=[{fault['input'].strip('[]')}]" if is_word_for_list else ""
    first, *others = dict.fromkeys(in_our_words(fault["msg"]) for fault in faults)
    wanted = ", or ".join([first, *(other.removeprefix("must be ") for other in others)])
    meant = MEANT.get((key, str(fault["input"]).lower()))
    hint = "" if meant is None else f"; did you mean {meant}?"
    given = repr(fault["input"]) if shown else ""
    return _Fault(key, wanted + spelling + hint, given, tuple(_described(model, fault["loc"])))


def _described(model: type[BaseModel], place: Iterable[int | str]) -> Iterator[str]:
    """Description of the field at a place, if it has one."""
    for part in place:
        field = model.model_fields.get(str(part))
        if field is None:
            return
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            model = field.annotation
            continue
        if field.description:
            yield field.description
        return


def in_our_words(message: str) -> str:
    """Reword a message of pydantic's; messages of our validators stay."""
    message = message.removeprefix("Value error, ")
    if told := THEIR_WORDS.match(message):
        message = f"must {told[1]}"
        for theirs, ours in PLAIN_WORDS.items():
            message = message.replace(theirs, ours)
    return message


def dotted_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """All dotted keys of a model."""
    for name, field in model.model_fields.items():
        key = f"{prefix}.{name}" if prefix else name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from dotted_keys(field.annotation, key)
        else:
            yield key
