"""Rules by which some fields of a recipe follow from others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Ruled(Protocol):
    """A family whose authors give settings by a rule, and not number by number."""

    def follow(self, rule: str, resolution: int, batch: int | None) -> Mapping[str, Any]:
        """Dotted field -> value, for pictures of that side and a batch; None: the rule chooses the batch too.

        Raises:
            BadInput: no such rule.
        """
