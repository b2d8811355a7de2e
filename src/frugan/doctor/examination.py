"""Everything that is looked at, in order."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from frugan.api.progress import Say, quiet
from frugan.doctor.cards import (
    calibration_finding,
    card_findings,
    device_finding,
    memory_finding,
    precision_finding,
)
from frugan.doctor.driver import Driver, ask_driver
from frugan.doctor.environment import environment_findings
from frugan.doctor.finding import Finding
from frugan.doctor.host import host_memory_finding, limits_findings, processor_finding, run_folder_finding
from frugan.doctor.packages import extras_findings, ranks_finding, torch_finding
from frugan.folders import Folders


def examine(
    device: str = "auto",
    runs: Path | None = None,
    *,
    driver: Driver | None = None,
    environment: Mapping[str, str] = os.environ,
    say: Say = quiet,
) -> list[Finding]:
    """Look at this machine.

    Args:
        device: what training shall run on: auto, cpu, cuda or cuda:N.
        runs: folder that runs will be written to; None: the usual one.
        driver: what the driver says; None: it is asked.
        environment: variables.
        say: is told what takes long.

    Returns:
        A finding for each thing that was looked at; `training_is_possible` judges them together.
    """
    folders = Folders.from_environment()
    asked = driver or ask_driver()  # before CUDA is set up, and takes memory itself
    findings = [torch_finding(), *environment_findings(environment), *card_findings(asked, environment)]
    chosen_finding, chosen = device_finding(device)
    findings.append(chosen_finding)
    if chosen is not None:
        findings.append(precision_finding(chosen))
    if chosen is not None and chosen.type == "cuda":
        memory = memory_finding(chosen, asked)
        findings.append(memory)
        if memory.values:  # else it does not work, or has no room
            say("measuring what CUDA and its libraries take, in about ten seconds the first time")
            findings.append(calibration_finding(chosen, folders.cache))
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [
        *findings,
        processor_finding(),
        host_memory_finding(),
        run_folder_finding(runs or folders.runs),
        *limits_findings(),
        ranks_finding(cards),
        *extras_findings(),
    ]
