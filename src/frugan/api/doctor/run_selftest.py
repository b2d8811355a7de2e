"""`frugan doctor --selftest`, from the device asked for to a record."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frugan.api.doctor.card_record import record
from frugan.api.doctor.card_tools import tools_of
from frugan.api.doctor.examination import examine
from frugan.api.doctor.finding import Finding
from frugan.api.doctor.outcome import Outcome
from frugan.api.doctor.selftest import Tell, self_test
from frugan.api.machine.devices import use_device
from frugan.api.plan.planner import choose_card
from frugan.api.progress import Say, quiet
from frugan.engine.threads import machine_name
from frugan.families import families
from frugan.memory.calibration import device_name


@dataclass(frozen=True)
class SelfTest:
    """What a self-test came to.

    Attributes:
        device: name of the card or the processor.
        findings: about the machine.
        outcomes: of every check.
        record: for a file that is attached to a report.
    """

    device: str
    findings: list[Finding]
    outcomes: list[Outcome]
    record: dict[str, Any]

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
    outcomes = self_test(families(), chosen, card, choose_card(None, chosen) if card is not None else None, tell)
    name = device_name(chosen) if card is not None else machine_name()
    return SelfTest(name, findings, outcomes, record(name, findings, outcomes, time.perf_counter() - began))
