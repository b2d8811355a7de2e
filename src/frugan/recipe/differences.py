"""In what two recipes differ, and what of it may change when a run is resumed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True)
class Difference:
    """A field in which two recipes differ.

    Attributes:
        before, after: its values.
        changeable: whether it may change when a run is resumed.
        restarts: networks that the change gives a fresh start.
    """

    before: Any
    after: Any
    changeable: bool
    restarts: tuple[str, ...] = ()


def differences(before: BaseModel, after: BaseModel) -> dict[str, Difference]:
    """Fields that differ, by dotted key."""
    return dict(_differences(before, after, ""))


def _differences(a: BaseModel, b: BaseModel, prefix: str) -> Iterator[tuple[str, Difference]]:
    for name, field in type(a).model_fields.items():
        key = f"{prefix}{name}"
        mine, other = getattr(a, name), getattr(b, name)
        if mine == other:
            continue
        if isinstance(mine, BaseModel) and type(mine) is type(other):
            yield from _differences(mine, other, f"{key}.")
        elif isinstance(mine, dict) and isinstance(other, dict):
            yield from _optimizer_differences(mine, other, key)
        else:
            extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
            networks = extra.get("restarts", ())
            yield key, Difference(mine, other, bool(extra.get("changeable")), tuple(map(str, networks)))  # type: ignore[arg-type]


def _optimizer_differences(
    mine: Mapping[str, BaseModel], other: Mapping[str, BaseModel], key: str
) -> Iterator[tuple[str, Difference]]:
    """Another kind of optimizer may be taken in mid-run (its state is then fresh), and settings may be added."""
    for name in dict.fromkeys((*mine, *other)):
        a, b = mine.get(name), other.get(name)
        if a is not None and b is not None and type(a) is type(b):
            yield from _differences(a, b, f"{key}.{name}.")
        elif a != b:
            yield f"{key}.{name}", Difference(a, b, changeable=True)
