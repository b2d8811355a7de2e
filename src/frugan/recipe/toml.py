"""Writes a recipe as the TOML file that `load_recipe` reads."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from frugan.recipe.recipe import Recipe


def dump_recipe(recipe: Recipe) -> str:
    """The recipe with all its fields, defaults too; sections that hold nothing but defaults are left out."""
    every, other = recipe.model_dump(mode="json"), recipe.model_dump(mode="json", exclude_defaults=True)
    values = {key: value for key, value in every.items() if key in other}
    stages = values.pop("stages", [])
    lines = list(_table((), values))
    for stage in stages:
        lines += ["", "[[stages]]", f"at = {_value(stage['at'])}", f"set = {_value(stage['set'])}"]
    return "\n".join(lines) + "\n"


def _table(name: tuple[str, ...], values: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a table, those of the tables in it last."""
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
        # JSON escapes all that TOML wants escaped, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)
