"""Findings about this machine, with their cures, and outcomes of the self-test's checks."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["fine", "limited", "impossible", "passed", "failed", "not checked"]
"""State of the machine (all is well; training works and could work better; training cannot work), or of a check."""


@dataclass(frozen=True)
class Finding:
    """A finding about the machine, or the outcome of a check."""

    name: str  # subject in a word or two; name of a check: "memory saving recompute"
    state: State  # whether training is possible, and as it should be; whether a check went as it should
    line: str  # result in a sentence, or the reason why there is none
    cure: str | None = None  # advice; None: nothing needs to be done
    # figures for a program, and for people who read the record of a card that they do not have. Nothing in them says
    # who or where someone is: they are attached to reports.
    values: Mapping[str, Any] = field(default_factory=dict)
    subject: str | None = None  # family or recipe of a check; None: this is no check

    def as_json(self) -> dict[str, Any]:
        """Return the finding for programs and for the record, in which checks have other keys."""
        values = asdict(self)
        subject = values.pop("subject")
        if subject is None:
            return values
        return {
            "check": self.name,
            "subject": subject,
            "verdict": self.state,
            "line": self.line,
            "figures": values["values"],
        }


def finding(name: str, line: str, cure: str | None = None, /, **values: object) -> Finding:
    """Return a finding about the machine: "fine" unless it has a cure."""
    return Finding(name, "limited" if cure else "fine", line, cure, values)


def judged(check: str, subject: str, line: str, /, *, passed: bool, **figures: object) -> Finding:
    """Return the outcome of a check that ran."""
    return Finding(check, "passed" if passed else "failed", line, None, figures, subject)


def left_out(check: str, subject: str, why: str) -> Finding:
    """Return the outcome of a check that cannot run here."""
    return Finding(check, "not checked", why, subject=subject)


def out_of_time(check: str, subject: str, needed_seconds: float | None, left_seconds: float) -> Finding:
    """Return the outcome of a check that there is no time for; another call runs it.

    Args:
        needed_seconds: None: the time is over.
    """
    line, values = "the time was over before it", {"left_seconds": round(left_seconds, 1)}
    if needed_seconds is not None:
        line = f"takes about {needed_seconds:.0f} s, and {max(0.0, left_seconds):.0f} s are left"
        values["needed_seconds"] = round(needed_seconds, 1)
    return Finding(check, "not checked", line, None, values, subject)


Check = Callable[[], Finding | list[Finding]]
"""A check of the self-test, to be made."""

A_CARD_ALONE = "only a card can show it"


def training_is_possible(findings: Iterable[Finding]) -> bool:
    """Return whether no finding makes training impossible."""
    return all(finding.state != "impossible" for finding in findings)
