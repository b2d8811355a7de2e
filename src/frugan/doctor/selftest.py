"""The self-test: what this program promises, tried on one device, and the record that people attach to a report."""

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.device import disable_reduced_precision, release_memory
from frugan.contract.family import Family
from frugan.doctor.cards import CardTools, tools_of
from frugan.doctor.checks import family_checks
from frugan.doctor.finding import Check, Finding, judged
from frugan.doctor.machine import examine
from frugan.doctor.real_size import real_size_checks
from frugan.engine.run.threads import machine_name
from frugan.families import families as every_family
from frugan.progress import Say, quiet
from frugan.setup.devices import use_device
from frugan.stepmemory.calibration import choose_card
from frugan.stepmemory.cards import Card
from frugan.wording import first_line

FORMAT = 1
KEPT = ("versions", "environment", "card", "precision", "card memory", "planner", "processor", "host memory", "ranks")
"""Findings whose figures belong to a record: nothing in them says who or where someone is."""


def record(device: str, findings: Iterable[Finding], outcomes: Sequence[Finding], seconds: float) -> dict[str, Any]:
    """Return the record of a self-test for JSON.

    Args:
        device: the card's or processor's name.
        seconds: that the self-test took.
    """
    machine = [
        {"finding": finding.name, "values": dict(finding.values)} for finding in findings if finding.name in KEPT
    ]
    return {
        "format": FORMAT,
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "device": device,
        "system": platform.system(),
        "machine": machine,
        "seconds": round(seconds, 1),
        "passed": all(finding.state != "failed" for finding in outcomes),
        "outcomes": [finding.as_json() for finding in outcomes],
    }


Tell = Callable[[Finding], None]

BROKEN = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, OSError)
"""Errors with which a check counts as failed while the others go on."""


@dataclass(frozen=True)
class SelfTest:
    """Result of a self-test."""

    device: str  # name of the card or the processor
    findings: list[Finding]  # about the machine
    outcomes: list[Finding]  # outcomes of all checks
    record: dict[str, Any]  # for a file that is attached to a report

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return bool(self.record["passed"])


def run_self_test(device: str = "auto", runs: Path | None = None, *, say: Say = quiet, tell: Tell = quiet) -> SelfTest:
    """Try on this machine what this program promises.

    Args:
        device: auto, cpu, cuda or cuda:N.
        runs: folder that runs will be written to; None: the usual one.
        say: is told what takes long.
        tell: is given each outcome as it is found.

    Raises:
        BadInput: no such device.
    """
    findings = examine(device, runs, say=say)  # measures the card too, which the predictions of time go by
    chosen, _ = use_device(device)
    card = tools_of(chosen)
    began = time.perf_counter()
    outcomes = self_test(every_family(), chosen, card, choose_card(None, chosen) if card is not None else None, tell)
    name = accelerator_of(chosen).name if card is not None else machine_name()
    return SelfTest(name, findings, outcomes, record(name, findings, outcomes, time.perf_counter() - began))


def self_test(
    families: Mapping[str, Family],
    device: torch.device,
    card: CardTools | None = None,
    figures: Card | None = None,
    tell: Tell = quiet,
) -> list[Finding]:
    """Try every family.

    Args:
        families: by name.
        device: where.
        card: its tools; None: it is no card.
        figures: what was measured on the card, or is guessed; goes with `card`.
        tell: is given each outcome as it is found.
    """
    disable_reduced_precision()
    outcomes: list[Finding] = []
    for name, family in families.items():
        for label, check in family_checks(family, device, card):
            outcomes += run_check(label, name, check, device, tell)
    for name in families:
        for label, recipe, check in real_size_checks(name, card, figures):
            outcomes += run_check(label, recipe, check, device, tell)
    return outcomes


def run_check(label: str, subject: str, check: Check, device: torch.device, tell: Tell = quiet) -> list[Finding]:
    """Make a check; one that breaks has failed."""
    began = time.perf_counter()
    try:
        judgement = check()
        outcomes = judgement if isinstance(judgement, list) else [judgement]
    except BROKEN as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        outcomes = [judged(label, subject, reason, passed=False, seconds=time.perf_counter() - began)]
    if accelerator_of(device).is_card:
        try:
            release_memory(device)  # outside the handler above: its frames hold what has to go
        except RuntimeError as error:  # some faults stay, and every later call to the card tells of them
            reason = f"after it the card answers no more: {first_line(error)}"
            outcomes = [*outcomes, judged(label, subject, reason, passed=False)]
    for outcome in outcomes:
        tell(outcome)
    return outcomes
