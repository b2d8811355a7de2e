"""`key.sub=value` words over a recipe's values."""

import difflib
import tomllib
from collections.abc import Collection, Sequence
from typing import Any

from frugan.engine.optimizers import KINDS
from frugan.errors import BadInput

DEFAULT_OPTIMIZER = "default"
"""Settings under this name hold for every optimizer of the family that has none of its own."""


def apply_overrides(values: dict[str, Any], words: Sequence[str], known: Sequence[str]) -> None:
    """Change a recipe's values in place.

    Args:
        words: `key.sub=value`; a value is TOML if it reads as TOML, else text.
        known: keys that may be given; none: any.

    Raises:
        BadInput: no such key; the nearest is named.
    """
    for word in sorted(words, key=lambda word: not word.partition("=")[0].endswith(".kind")):
        _override(values, word, known)  # kinds first: what else is given belongs to them
    _leave_to_overrides(values, {word.partition("=")[0] for word in words})


def nearest(word: str, known: Sequence[str]) -> str:
    """The closest known word, as a hint to put behind a message; empty if none is close."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else ""


def _value(text: str) -> Any:
    """The value of an override: TOML if it reads as TOML, else a plain string."""
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text


def _override(values: dict[str, Any], word: str, known: Sequence[str]) -> None:
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise BadInput(f"override {word!r}: expected key.sub=value, such as training.batch=64")
    *sections, last = key.split(".")
    if known and key not in known:
        raise BadInput(f"{key}: unknown key{nearest(key, known)}")
    if sections[:1] == ["optimizers"] and last == "kind":
        _change_kind(values.setdefault("optimizers", {}), sections[-1], _value(text))
        return
    for section in sections:
        values = values.setdefault(section, {})
    values[last] = _value(text)


def _change_kind(optimizers: dict[str, Any], name: str, kind: Any) -> None:
    """Another kind of optimizer keeps of the recipe's fields those that it knows."""
    own = optimizers.get(name, optimizers.get(DEFAULT_OPTIMIZER, {}))
    known = KINDS[kind].model_fields if isinstance(kind, str) and kind in KINDS else own
    optimizers[name] = {field: value for field, value in own.items() if field in known} | {"kind": kind}


def _leave_to_overrides(values: dict[str, Any], keys: Collection[str]) -> None:
    """What is given on the command line holds throughout: no stage sets it any more."""
    stages = values.get("stages", [])
    if not isinstance(stages, list):
        return  # an override of all of them: validation says what is wrong
    for stage in stages:
        if isinstance(stage, dict) and isinstance(stage.get("set"), dict):
            stage["set"] = {key: value for key, value in stage["set"].items() if key not in keys}
    if stages:
        values["stages"] = [stage for stage in stages if not isinstance(stage, dict) or stage.get("set") != {}]
