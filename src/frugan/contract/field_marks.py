"""Marks that recipe fields may bear: whether a run may go on with another value, and what that starts anew."""

from __future__ import annotations

from typing import Any

CHANGEABLE: dict[str, Any] = {"changeable": True}
"""Goes into `json_schema_extra` of a recipe field that may differ when a run is resumed; all others are fixed."""


def restarts(*networks: str) -> dict[str, Any]:
    """As CHANGEABLE, for a field whose change gives these networks and their optimizer state a fresh start."""
    return {"changeable": True, "restarts": list(networks)}


ADDED: dict[str, Any] = {"added": True}
"""Goes into `json_schema_extra` of a recipe field that earlier versions did not have: while it has its default, what
was predicted before it still holds."""
