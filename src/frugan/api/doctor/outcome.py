"""What a check of the self-test found."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["passed", "failed", "not checked"]


@dataclass(frozen=True)
class Outcome:
    """What one check found for one family.

    Attributes:
        check: what was tried: "memory saving recompute".
        subject: on what: a family's name, or a recipe's.
        verdict: whether it was as it should be.
        line: what was found, or why it was not looked at.
        figures: for a program, and for people who read the record of a card that they do not have.
    """

    check: str
    subject: str
    verdict: Verdict
    line: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)


def judged(check: str, subject: str, *, passed: bool, line: str, figures: Mapping[str, Any]) -> Outcome:
    """An outcome of a check that was made."""
    return Outcome(check, subject, "passed" if passed else "failed", line, figures)


def left_out(check: str, subject: str, why: str) -> Outcome:
    """An outcome of a check that cannot be made here."""
    return Outcome(check, subject, "not checked", why)
