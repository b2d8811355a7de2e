"""Every field of a recipe, for people: what it is, what it may be, what it is here."""

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from frugan.engine.progress import Duration
from frugan.recipe.recipe import Recipe

SECTIONS = ("about", "networks", "objective", "data", "training", "optimizers", "ema", "saving", "evaluation")
WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", Duration: "duration"}


@dataclass(frozen=True)
class RecipeField:
    """One field."""

    key: str  # dotted, as a word of the command line has it
    values: str  # what it may be, in words
    value: str  # in this recipe, as text
    default: str | None  # where a recipe does not give it; None: every recipe has to
    changeable: bool  # whether a run may go on with another value
    description: str  # what it does


def recipe_fields(recipe: Recipe, sections: Sequence[str] = SECTIONS) -> list[RecipeField]:
    """All fields of a recipe's sections; those of each of its optimizers too."""
    fields: list[RecipeField] = []
    for section in sections:
        settings = getattr(recipe, section)
        if isinstance(settings, dict):
            for name, each in settings.items():
                fields += fields_of(each, f"{section}.{name}")
        else:
            fields += fields_of(settings, section)
    return fields


def fields_of(settings: BaseModel, prefix: str) -> Iterator[RecipeField]:
    """Fields of some settings, those of settings inside them too; their keys begin with the prefix."""
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from fields_of(value, f"{prefix}.{name}")
            continue
        extra = field.json_schema_extra
        yield RecipeField(
            key=f"{prefix}.{name}",
            values=_values(field.annotation),
            value=_shown(value),
            default=_default(field),
            changeable=isinstance(extra, dict) and bool(extra.get("changeable")),
            description=field.description or "",
        )


def _default(field: FieldInfo) -> str | None:
    if field.default_factory is not None or field.default is PydanticUndefined:
        return None
    return _shown(field.default)


def _shown(value: Any) -> str:
    """As it is typed on the command line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list | frozenset):
        return "[" + ", ".join(_shown(each) for each in value) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _values(annotation: Any) -> str:
    """What a type allows, in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return "none"
    if origin is Literal:
        return " | ".join(_shown(part) for part in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(_values(part) for part in parts)
    if origin in (tuple, list):
        return f"list of {_values(parts[0])}"
    if hasattr(annotation, "__metadata__"):
        return _values(annotation.__origin__)
    return WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))
