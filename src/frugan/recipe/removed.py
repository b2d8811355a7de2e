"""Fields that recipes of earlier versions have and this one has not: runs and weights hold them, defaults too."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from frugan.errors import BadInput


@dataclass(frozen=True)
class RemovedField:
    """A field that is gone; none of these ever changed what was trained, beyond rounding."""

    default: object  # the value with which a recipe means what it does without the field
    reason: str  # why it is gone, and what to use


REMOVED: Mapping[str, RemovedField] = MappingProxyType(
    {
        "training.compile": RemovedField(
            False,
            "torch.compile was removed, because frugan's own kernels spare more on every recipe that was counted "
            "(docs/performance.md). Leave it out, and go on with a run that has it by training.compile=false: "
            "training.kernels=auto, the default, uses those kernels where they are faster",
        )
    }
)
"""Dotted key, of a section and a field -> what is to be known of it."""


def without_removed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's values without them, whatever they were: weights that were trained with one can still be read."""
    kept = dict(values)
    for section, name in (key.split(".") for key in REMOVED):
        if isinstance(kept.get(section), Mapping):
            kept[section] = {field: value for field, value in kept[section].items() if field != name}
    return kept


def refuse_removed(values: Mapping[str, Any], where: str) -> None:
    """Refuse a recipe to train by that asks for one.

    Raises:
        BadInput: naming `where`, the field, its value, why it is gone and what to use.
    """
    for key, removed in REMOVED.items():
        section, name = key.split(".")
        value = values.get(section, {}).get(name, removed.default)
        if value != removed.default:
            raise BadInput(f"{where}:\n{key} = {str(value).lower()}: {removed.reason}")
