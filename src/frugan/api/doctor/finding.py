"""One thing that was looked at, and its cure."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["fine", "limited", "impossible"]
"""Nothing to do; training works and could work better; training cannot work."""


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        name: of what was looked at, a word or two.
        state: whether training is possible, and as it should be.
        line: what was found.
        cure: what to do about it; None: nothing.
        values: figures for a program. Nothing in them says who or where someone is: they are attached to reports.
    """

    name: str
    state: State
    line: str
    cure: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return asdict(self)


def training_is_possible(findings: Iterable[Finding]) -> bool:
    """Whether nothing that was found stands in the way."""
    return all(finding.state != "impossible" for finding in findings)
