"""Fills in the fields of a recipe that follow from its resolution and batch, where a rule says so."""

from collections.abc import Mapping, Sequence
from typing import Any

from frugan.errors import BadInput
from frugan.families import family

RESOLUTION, BATCH = "networks.resolution", "training.batch"


def followed(values: Mapping[str, Any], overrides: Sequence[str]) -> Mapping[str, Any]:
    """Dotted field -> value by the recipe's rule, where overrides change what it goes by; fields that they give are not
    among them.

    Args:
        values: the recipe's, overrides applied, not validated.
        overrides: `key.sub=value` words.

    Raises:
        BadInput: a rule that the family does not have.
    """
    given = {word.partition("=")[0] for word in overrides}
    rule, known = values.get("rule"), isinstance(values.get("family"), str)
    if not rule or not known or not given & {RESOLUTION, BATCH}:
        return {}
    kind = family(values["family"])
    if not kind.rules:
        raise BadInput(f"rule {rule!r}: {kind.name} has none; leave it out")
    resolution, batch = (values.get(key.split(".")[0], {}).get(key.split(".")[1]) for key in (RESOLUTION, BATCH))
    chosen = batch if BATCH in given else None
    if not _counts(resolution) or not (chosen is None or _counts(chosen)):
        return {}  # validation says what is wrong with them
    return {key: value for key, value in kind.follow(rule, resolution, chosen).items() if key not in given}


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 20
