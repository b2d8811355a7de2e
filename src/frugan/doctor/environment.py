"""What the environment's variables say to torch, and which of them nothing reads."""

import os
import re
from collections.abc import Mapping

from frugan.api.machine.environment_variables import READ, misspelt
from frugan.doctor.finding import Finding, finding

CHANGES_TRAINING = ("CUDA_LAUNCH_BLOCKING",)
"""Debugging aids that are left on by mistake: each kernel is waited for."""


def environment_findings(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """What is set, and what is misspelt."""
    given = {name: environment[name] for name in READ if name in environment and not name.startswith("FRUGAN_")}
    line = ", ".join(f"{name}={value}" for name, value in given.items()) or "nothing set that concerns training"
    slow = [name for name in CHANGES_TRAINING if environment.get(name) not in (None, "", "0")]
    return [
        finding(
            "environment",
            line,
            f"unset {slow[0]}: with it the host waits for every kernel" if slow else None,
            set={name: _without_identity(value) for name, value in given.items()},
        ),
        *(
            finding(
                "environment",
                f"{name} is set, which nothing reads",
                f"did you mean {meant}? Set that one, and unset {name}",
                misspelt=name,
                meant=meant,
            )
            for name, meant in misspelt(environment).items()
        ),
    ]


def _without_identity(value: str) -> str:
    """A value without the numbers by which one card in the world is known."""
    return re.sub(r"\b(GPU|MIG)-[0-9A-Fa-f-]+", r"\1-…", value)
