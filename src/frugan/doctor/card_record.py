"""The record of a self-test: a JSON file that people attach to a report."""

import platform
import time
from collections.abc import Iterable, Sequence
from typing import Any

from frugan.doctor.finding import Finding

FORMAT = 1
KEPT = ("versions", "environment", "card", "precision", "card memory", "planner", "processor", "host memory", "ranks")
"""Findings whose figures belong to a record: nothing in them says who or where someone is."""


def record(device: str, findings: Iterable[Finding], outcomes: Sequence[Finding], seconds: float) -> dict[str, Any]:
    """What is written.

    Args:
        device: the card's or processor's name.
        seconds: that the self-test took.
    """
    machine = [{"finding": each.name, "values": dict(each.values)} for each in findings if each.name in KEPT]
    return {
        "format": FORMAT,
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "device": device,
        "system": platform.system(),
        "machine": machine,
        "seconds": round(seconds, 1),
        "passed": all(each.state != "failed" for each in outcomes),
        "outcomes": [each.as_json() for each in outcomes],
    }
