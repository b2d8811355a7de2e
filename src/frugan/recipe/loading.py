"""Loading of recipes that ship, of a user's files and of runs, writing them, and listing their fields."""

import difflib
import json
import math
import re
import shlex
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from frugan.engine.durations import Duration
from frugan.errors import BadFields, BadInput, checked
from frugan.families import family
from frugan.files import RUN_RECIPE, read_untrusted
from frugan.recipe.faults import explain, reasons
from frugan.recipe.overrides import apply_overrides, followed, in_our_words, put
from frugan.recipe.recipe import Recipe, known_keys
from frugan.recipe.removed import refuse_removed
from frugan.recipes import built_in, shipped_recipes, toml_of
from frugan.wording import MIB, nearest

MOST_RECIPE_BYTES = MIB
"""Largest size of a user's recipe file."""
MOST_NAMED = 4
"""Recipes that a message names when a word fits several."""
MISSPELT = 0.75
"""Likeness from which on a word is taken for the misspelt beginning of recipes' names."""
TOY_PARAMETERS = 5_000_000
"""A recipe with fewer tries something out, in minutes on a processor."""


def _load_values(name: str) -> dict[str, Any]:
    path = Path(name)
    if name not in built_in() and (path / RUN_RECIPE).is_file():
        path /= RUN_RECIPE
    if path.name == RUN_RECIPE and path.is_file():
        return read_run_recipe(path)
    if name in built_in():
        text = toml_of(name)
    elif path.suffix == ".toml":
        text = _text(path)
    else:
        folder = f" (a folder of pictures is given as --data {shlex.quote(name)})" if path.is_dir() else ""
        raise BadInput(
            f"recipe {name!r} is unknown{_meant(name)}{folder}; "
            "`frugan recipes` lists the built-in ones; for a recipe of your own give the path of a .toml file, or a "
            "run folder"
        )
    try:
        return dict(_nothing_where_none(tomllib.loads(text)))
    except (ValueError, RecursionError) as error:  # also of numbers of thousands of digits
        raise BadInput(f"recipe {name}: not valid TOML: {error}") from error


def _meant(word: str) -> str:
    """Hint at the recipes whose names hold all parts of a word, or at the one nearest to it; empty: none is near.

    Those that show the fewest pictures come first, as most people have one card and pictures of their own; toys last.
    """
    rows = {str(row["name"]): row for row in shipped_recipes()}

    def named(parts: Sequence[str]) -> list[str]:
        return sorted(
            (name for name in rows if all(part in name for part in parts)), key=lambda name: _likely(rows[name])
        )

    parts = [part for part in re.split(r"[-_\s]+", word.lower()) if len(part) > 1]
    families = {name.partition("-")[0] for name in rows}
    names = named(parts) if parts else []
    if not names:
        if near := nearest(word, list(rows)):
            return near
        misspelt = difflib.get_close_matches(word.lower(), families, n=1, cutoff=MISSPELT)
        names = named(misspelt) if misspelt else []
    *others, last = names[:MOST_NAMED] or [""]
    return f" (did you mean {' or '.join(filter(None, (', '.join(others), last)))}?)" if last else ""


def _likely(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Order of built-in recipes whose names a word fits: from what most people want to toys."""
    duration, batch, smallest = Duration.parse(row["duration"]), int(row["batch"]), row["smallest_card_gib"]
    steps = duration.known_steps(batch)
    images = math.inf if steps is None else steps * batch
    return row["parameters"] < TOY_PARAMETERS, images, smallest or math.inf, len(row["name"]), row["name"]


def read_run_recipe(path: Path) -> dict[str, Any]:
    """Read the values of a run's recipe.json, without validating them.

    Raises:
        BadInput: it is damaged.
    """
    try:
        values = json.loads(read_untrusted(path).decode("utf-8"))
    except BadInput:
        raise
    except (ValueError, RecursionError) as error:
        raise BadInput(f"recipe {path}: damaged ({error}); restore it from a copy") from error
    if not isinstance(values, dict):
        raise BadInput(f"recipe {path}: damaged (it holds no recipe); restore it from a copy")
    return values


def _text(path: Path) -> str:
    """Read the text of a user's recipe file."""
    if path.is_dir():
        raise BadInput(f"recipe {path}: a folder; expected a TOML file")
    if not path.exists():
        raise BadInput(f"recipe {path}: no such file")
    if not path.is_file() or path.stat().st_size > MOST_RECIPE_BYTES:
        raise BadInput(f"recipe {path}: no TOML file of at most {MOST_RECIPE_BYTES >> 20} MiB")
    try:
        return path.read_bytes().decode("utf-8-sig")  # some editors begin a file with a byte-order mark
    except UnicodeDecodeError as error:
        raise BadInput(
            f"recipe {path}: not UTF-8 text, which TOML is ({error.reason} at byte {error.start:,}); save it as UTF-8"
        ) from error


def _nothing_where_none(value: Any) -> Any:
    """Replace the string "none", which stands for null in recipes as TOML has none, by None."""
    if isinstance(value, dict):
        return {key: _nothing_where_none(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_nothing_where_none(inner) for inner in value]
    return None if value == "none" else value


def parse_recipe(values: Mapping[str, Any], where: str) -> Recipe:
    """Validate a recipe's values.

    Raises:
        BadFields: it names `where`, and for each fault the key and what is wrong.
        BadInput: it is of a family that does not exist, or that has no such networks.
    """
    try:
        return Recipe.model_validate(dict(values))
    except ValidationError as error:
        raise BadFields(f"{where}:\n{explain(error, Recipe)}", reasons(error, Recipe)) from error
    except BadInput as error:
        raise BadInput(f"{where}:\n{error}") from error


@checked
def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Load a built-in recipe by name, a TOML file by path, or a run's recipe, with `key.sub=value` overrides.

    Raises:
        BadInput: a recipe, key or value is unknown; the message has the nearest valid name.
    """
    return recipe_with(_load_values(name), overrides, f"recipe {name}")


def shipped_recipe(name: str) -> Recipe | None:
    """Load a recipe that ships with frugan; None: there is none of that name."""
    return load_recipe(name) if name in built_in() else None


def recipe_with(values: dict[str, Any], overrides: Sequence[str], where: str) -> Recipe:
    """Apply `key.sub=value` overrides to a recipe's values in place, and validate them.

    Raises:
        BadInput: a key or value is unknown; the message has the nearest valid name.
    """
    _refuse_odd_shapes(values, where)
    for word in overrides:
        key, _, name = word.partition("=")
        if key == "family" and "family" in values:
            values["family"] = name  # comes first, as the other words may be fields of the new family alone
    ours = in_our_words(values, overrides)
    typed = [f", {word} ({' '.join(meant)} here)" for word, meant in ours.items() if meant and [word] != list(meant)]
    overrides = list(chain.from_iterable(ours.values()))
    known = known_keys(values["family"], list(values.get("optimizers", {}))) if "family" in values else []
    foreign = family(values["family"]).foreign_names if "family" in values else {}
    apply_overrides(values, overrides, known, foreign)
    for key, value in followed(values, overrides).items():
        put(values, key, value)
    refuse_removed(values, where)
    return parse_recipe(values, where + "".join(typed))


_SHAPES: Mapping[str, tuple[type, str]] = MappingProxyType(
    {"family": (str, "a name in quotes"), "rule": (str, "a name in quotes"), "stages": (list, "tables [[stages]]")}
)
"""Fields of a recipe that are not tables -> their type, and its description."""


def _refuse_odd_shapes(values: Mapping[str, Any], where: str) -> None:
    """Refuse values whose outline is not that of a recipe, so that overrides find the tables that they change."""
    for key in Recipe.model_fields.keys() & values.keys():
        value, shape = values[key], _SHAPES.get(key, (Mapping, f"a table [{key}]"))
        if not isinstance(value, shape[0]):
            raise BadInput(f"{where}:\n{key}: expected {shape[1]}, not {str(value)[:40]!r}")
    for name, value in values.get("optimizers", {}).items():
        if not isinstance(value, Mapping):
            raise BadInput(f"{where}:\noptimizers.{name}: expected a table, not {str(value)[:40]!r}")


def as_given(name: str, overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides in frugan's words, and a line for each that was given in those of the family's original program."""
    values = _load_values(name)
    ours = in_our_words(values, overrides)
    lines = [
        f"{word} is {' '.join(meant)} here" if meant else f"{word} is left out: {_why_left_out(values, word)}"
        for word, meant in ours.items()
        if [word] != list(meant)
    ]
    return list(chain.from_iterable(ours.values())), lines


def overrides_in_words(name: str, overrides: Sequence[str]) -> list[str]:
    """Lines on what overrides of a recipe are called here, leave out, hold against, and change besides."""
    overrides, lines = as_given(name, overrides)
    return [*lines, *stages_overridden(name, overrides), *rule_followed(name, overrides)]


def _why_left_out(values: Mapping[str, Any], word: str) -> str:
    return family(values["family"]).left_out[word.partition("=")[0]]


def stages_overridden(name: str, overrides: Sequence[str]) -> list[str]:
    """A line for every field that is overridden, and that a stage of the recipe would set.

    A field that a preliminary training overrules is not among them: the override does not hold yet.
    """
    overridden = dict(word.partition("=")[::2] for word in overrides)
    preliminary = load_recipe(name, overrides).preliminary
    for key in preliminary.overrules if preliminary is not None else ():
        overridden.pop(key, None)
    return [
        f"{key}={overridden[key]} holds throughout: the recipe's stage at {stage.at} does not set it"
        for stage in parse_recipe(_load_values(name), f"recipe {name}").stages
        for key in stage.set
        if key in overridden
    ]


def rule_followed(name: str, overrides: Sequence[str]) -> list[str]:
    """A line on the fields that the recipe's rule sets, if there are any."""
    values = _load_values(name)
    apply_overrides(values, overrides, ())
    by_rule = followed(values, overrides)
    if not by_rule:
        return []
    words = ", ".join(f"{key}={value}" for key, value in by_rule.items())
    return [f"by the recipe's rule {values['rule']}, where nothing else is said: {words}"]


def dump_recipe(recipe: Recipe) -> str:
    """Write a recipe as TOML, defaults too, but without sections that hold nothing but defaults."""
    every, other = recipe.model_dump(mode="json"), recipe.model_dump(mode="json", exclude_defaults=True)
    values = {key: value for key, value in every.items() if key in other}
    stages = values.pop("stages", [])
    lines = list(_table((), values))
    for stage in stages:
        lines += ["", "[[stages]]", f"at = {_value(stage['at'])}", f"set = {_value(stage['set'])}"]
    return "\n".join(lines) + "\n"


def _table(name: tuple[str, ...], values: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a table; inner tables come last."""
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    if name and plain:
        yield ""
        yield f"[{'.'.join(map(_key, name))}]"
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _table((*name, key), value)


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _value(key)


def _value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        # JSON escapes all that TOML must have escaped, except DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


SECTIONS = ("about", "networks", "objective", "data", "training", "optimizers", "ema", "saving", "evaluation")
"""Sections of a recipe that have fields, in the order in which they are listed."""
WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", Duration: "duration"}


@dataclass(frozen=True)
class RecipeField:
    """A field of a recipe, described for people."""

    key: str  # dotted, as on the command line
    values: str  # possible values, in words
    value: str  # value in this recipe, as text
    default: str | None  # value where a recipe does not give it; None: every recipe must
    changeable: bool  # whether a run may go on with another value
    description: str  # what it does
    limits: str = ""  # limits of a number, in words; empty: none


def recipe_fields(recipe: Recipe, sections: Sequence[str] = SECTIONS) -> list[RecipeField]:
    """All fields of some sections of a recipe."""
    fields: list[RecipeField] = []
    for section in sections:
        settings = getattr(recipe, section)
        if isinstance(settings, dict):
            for name, optimizer in settings.items():
                fields += fields_of(optimizer, f"{section}.{name}")
        else:
            fields += fields_of(settings, section)
    return fields


def fields_of(settings: BaseModel, prefix: str) -> Iterator[RecipeField]:
    """Fields of settings and of the settings within them, with keys that begin with a prefix."""
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
            limits=_limits(field),
        )


LIMITS = {"gt": "above {}", "ge": "at least {}", "lt": "below {}", "le": "at most {}"}


def _limits(field: FieldInfo) -> str:
    found = ((words, getattr(mark, name, None)) for mark in field.metadata for name, words in LIMITS.items())
    return ", ".join(words.format(_shown(limit)) for words, limit in found if limit is not None)


def _default(field: FieldInfo) -> str | None:
    if field.default_factory is not None or field.default is PydanticUndefined:
        return None
    return _shown(field.default)


def _shown(value: Any) -> str:
    """Format a value as it is typed on the command line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list | frozenset):
        return "[" + ", ".join(map(_shown, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _values(annotation: Any) -> str:
    """Possible values of a type, in words."""
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
