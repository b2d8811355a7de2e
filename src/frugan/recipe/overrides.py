"""Overrides of a recipe's values by `key.sub=value` words, fields that follow a rule, and differences of recipes."""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from frugan.engine.state.optimizer_settings import KINDS
from frugan.errors import BadInput
from frugan.families import family
from frugan.recipe.removed import REMOVED
from frugan.wording import nearest

DEFAULT_OPTIMIZER = "default"
"""Name of the settings for every optimizer of the family that has none of its own."""

_LIST_OF_WORDS = re.compile(r"\[(\s*[\w.:*-]+\s*(?:,\s*[\w.:*-]+\s*)*)\]")
"""A list whose words lack the quotes that TOML has: shells take them away, and recipes are shown without."""


def in_our_words(values: Mapping[str, Any], words: Sequence[str]) -> dict[str, Sequence[str]]:
    """Override -> the words that it stands for: itself, or those for an option of the family's original program.

    Args:
        values: the recipe's, not validated.

    Raises:
        BadInput: an option has no such value there.
    """
    kind = family(values["family"]) if isinstance(values.get("family"), str) else None
    ours: dict[str, Sequence[str]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        foreign = None
        if kind is not None and equals and "." not in name:
            try:
                foreign = kind.foreign_option(name, value)
            except BadInput as error:
                raise BadInput(f"{name}={error}") from error
        ours[word] = [word] if foreign is None else foreign
    return ours


def apply_overrides(
    values: dict[str, Any], words: Sequence[str], known: Sequence[str], foreign: Mapping[str, str] | None = None
) -> None:
    """Change a recipe's values in place.

    Args:
        values: the recipe's values.
        words: `key.sub=value`; a value is TOML if it reads as TOML, such as `[fid, pr]` a list of words, else text.
        known: keys that may be overridden; empty: any.
        foreign: words for options of the family's original program -> what is to be typed; None: it has none.

    Raises:
        BadInput: there is no such key; the message has the nearest one.
    """
    for word in sorted(words, key=lambda word: not word.partition("=")[0].endswith(".kind")):
        _override(values, word, known, foreign or {})  # kinds come first, as other words belong to the new kind
    _leave_to_overrides(values, {word.partition("=")[0] for word in words})


def _value(text: str) -> Any:
    """Parse the value of an override: TOML if it reads as TOML, a list of words without quotes, else a plain string."""
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        words = _LIST_OF_WORDS.fullmatch(text.strip())
        return [_value(word.strip()) for word in words[1].split(",")] if words else text


def _override(values: dict[str, Any], word: str, known: Sequence[str], foreign: Mapping[str, str]) -> None:
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise BadInput(f"override {word!r}: expected key.sub=value, such as training.batch=64")
    *sections, last = key.split(".")
    if known and key not in known and key not in REMOVED:
        meant = {name: name for name in known} | (dict(foreign) if not sections else {})
        hint = nearest(key, meant)
        if foreign and not sections and not hint:
            hint = "; which field an option of DeepFaceLab's is here: the table of options in docs/faces.md"
        raise BadInput(f"{key}: unknown key{hint}")
    if sections[:1] == ["optimizers"] and last == "kind":
        _change_kind(values.setdefault("optimizers", {}), sections[-1], _value(text))
        return
    put(values, key, _value(text))


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key, and create missing sections."""
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[last] = value


def _change_kind(optimizers: dict[str, Any], name: str, kind: Any) -> None:
    """Change the kind of an optimizer, and keep the fields that the new kind has too."""
    before = optimizers.get(name, optimizers.get(DEFAULT_OPTIMIZER, {}))
    known = KINDS[kind].model_fields if isinstance(kind, str) and kind in KINDS else before
    optimizers[name] = {field: value for field, value in before.items() if field in known} | {"kind": kind}


def _leave_to_overrides(values: dict[str, Any], keys: Collection[str]) -> None:
    """Remove overridden fields from all stages, so that overrides hold throughout."""
    stages = values.get("stages", [])
    if not isinstance(stages, list):
        return  # all stages were overridden by something else; validation says what is wrong
    for stage in stages:
        if isinstance(stage, dict) and isinstance(stage.get("set"), dict):
            stage["set"] = {key: value for key, value in stage["set"].items() if key not in keys}
    if stages:
        values["stages"] = [stage for stage in stages if not isinstance(stage, dict) or stage.get("set") != {}]


RESOLUTION = "networks.resolution"
BATCH = "training.batch"


def followed(values: Mapping[str, Any], overrides: Sequence[str]) -> Mapping[str, Any]:
    """Fields that the recipe's rule sets, as overrides change the resolution or the batch: dotted key -> value.

    Fields that are overridden themselves are not among them.

    Args:
        values: the recipe's values with overrides, not validated.
        overrides: `key.sub=value` words.

    Raises:
        BadInput: the family has no such rule.
    """
    overridden = {word.partition("=")[0] for word in overrides}
    rule, known = values.get("rule"), isinstance(values.get("family"), str)
    if not rule or not known or not overridden & {RESOLUTION, BATCH}:
        return {}
    kind = family(values["family"])
    if not kind.rules:
        raise BadInput(f"rule {rule!r}: {kind.name} has none; leave it out")
    resolution, batch = (values.get(key.split(".")[0], {}).get(key.split(".")[1]) for key in (RESOLUTION, BATCH))
    chosen = batch if BATCH in overridden else None
    if not _is_count(resolution) or not (chosen is None or _is_count(chosen)):
        return {}  # validation says what is wrong with them
    return {key: value for key, value in kind.follow(rule, resolution, chosen).items() if key not in overridden}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 20


@dataclass(frozen=True)
class Difference:
    """A field in which two recipes differ."""

    before: Any  # value in the first recipe
    after: Any  # value in the second recipe
    changeable: bool  # whether it may change when a run is resumed
    restarts: tuple[str, ...] = ()  # networks that the change gives a fresh start


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
    """Differences of optimizers. Their kind may change during a run (with a fresh state), and settings be added."""
    for name in dict.fromkeys((*mine, *other)):
        a, b = mine.get(name), other.get(name)
        if a is not None and b is not None and type(a) is type(b):
            yield from _differences(a, b, f"{key}.{name}.")
        elif a != b:
            yield f"{key}.{name}", Difference(a, b, changeable=True)
