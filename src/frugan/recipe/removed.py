"""Fields that only recipes of earlier versions have; their runs and weights contain them, defaults too."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from frugan.errors import BadInput


@dataclass(frozen=True)
class RemovedField:
    """A removed field; none of these ever changed a training beyond rounding."""

    default: object  # value with which a recipe means the same as without the field
    reason: str  # why it was removed, and what to use


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
"""Removed fields by dotted key, of a section and a field."""


def without_removed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop removed fields from a recipe's values, so that weights that were trained with one can still be read."""
    kept = dict(values)
    for section, name in (key.split(".") for key in REMOVED):
        if isinstance(kept.get(section), Mapping):
            kept[section] = {field: value for field, value in kept[section].items() if field != name}
    return kept


def refuse_removed(values: Mapping[str, Any], where: str) -> None:
    """Refuse a recipe in which a removed field is not at its default.

    Raises:
        BadInput: it names `where`, the field and its value, and says why it was removed and what to use.
    """
    for key, removed in REMOVED.items():
        section, name = key.split(".")
        value = values.get(section, {}).get(name, removed.default)
        if value != removed.default:
            raise BadInput(f"{where}:\n{key} = {str(value).lower()}: {removed.reason}")
