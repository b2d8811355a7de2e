"""Why CUDA finds no card, in words with a cure: from what torch and the driver say."""

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from frugan.api.machine.card_support import cpu_build
from frugan.api.machine.environment_variables import CARDS
from frugan.doctor.driver import LEAST_DRIVER, Driver

_BY_WORDS = (
    (
        r"driver/library version mismatch",
        "the driver was updated and its old half still runs",
        "restart the computer",
    ),
    (
        r"error 802|not yet initialized",
        "the cards of this node wait for their fabric manager",
        "start the service nvidia-fabricmanager, of the driver's version",
    ),
    (
        r"error 803|error 804|forward compatib",
        "a CUDA library in front of the driver's own does not go with it",
        "take folders named compat out of LD_LIBRARY_PATH, or update the driver",
    ),
    (
        r"unknown error|error 999",
        "the driver does not answer CUDA, as happens after the computer has slept",
        "restart the computer (or, on Linux: sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm)",
    ),
    (
        r"couldn't communicate|no devices were found|driver/library|failed to initialize nvml",
        "the driver's program is there, the driver does not run",
        "reinstall the driver, or restart the computer if it was just installed",
    ),
    (
        r"error 46|busy or unavailable",
        "another program has the card for itself",
        "end it, or allow sharing: nvidia-smi --compute-mode=DEFAULT",
    ),
)
"""What is said -> what it means, what to do."""


def torch_says() -> str | None:
    """What torch says when CUDA is set up; None: it is.

    Its own question whether a card is there keeps the reason to itself, or warns of it once in a process.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
            return " ".join(str(error).split())
    return None


def why_no_card(said: str | None, driver: Driver, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Why there is no card, and the cure.

    Args:
        said: by torch.
        driver: what the driver said.
    """
    if (build := cpu_build(wanted=bool(driver.cards))) is not None:
        reason, _, cure = build.partition("; for an NVIDIA card: ")
        return reason, f"for an NVIDIA card: {cure}" if cure else "if there is a card, install its driver first"
    text = f"{said or ''} {driver.trouble or ''}"
    return (
        _hidden(text, driver, environment)
        or _too_old(text, driver)
        or known_trouble(text, driver.trouble)
        or _no_driver(driver)
        or (
            f"torch says {said or 'nothing'!r}; driver {driver.version or 'of no version'} has "
            f"{_list(driver) or 'no card'}",
            "update the driver, restart the computer, and run frugan doctor again",
        )
    )


def _hidden(text: str, driver: Driver, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """That the environment leaves no card."""
    hidden = environment.get(CARDS)
    if hidden is None or not driver.cards or re.search(r"too old|unknown error|error \d+", text, re.IGNORECASE):
        return None
    there = f"{CARDS}={hidden!r} leaves no card, and the driver has {_list(driver)}"
    return there, f"unset {CARDS}, or set it to the number of a card"


def known_trouble(text: str, said: str | None = None) -> tuple[str, str] | None:
    """What is meant by what is said, and the cure; None: nothing that is known here.

    Args:
        text: of torch and the driver.
        said: what to quote; None: the words that were known.
    """
    for pattern, reason, cure in _BY_WORDS:
        if (match := re.search(pattern, text, re.IGNORECASE)) is not None:
            return f"{reason} ({said or match[0]})", cure
    return None


def _no_driver(driver: Driver) -> tuple[str, str] | None:
    if driver.found:
        return None
    if Path("/.dockerenv").exists():
        return (
            "no driver is to be seen in this container",
            "start it with --gpus all, with NVIDIA's container toolkit installed on the host",
        )
    return "no NVIDIA driver is here", "install the newest driver for the card; without a card, train on the CPU"


def _too_old(said: str, driver: Driver) -> tuple[str, str] | None:
    """That the driver is older than this build of torch needs; with the older build where that would do."""
    needed = least_driver()
    is_old = "too old" in said or (needed is not None and driver.branch is not None and driver.branch < needed)
    if not is_old:
        return None
    branch = driver.branch
    serves = [major for major, least in LEAST_DRIVER.items() if branch is not None and branch >= least]
    other = " (or the cu126 build of torch, which it serves)" if 12 in serves else ""
    named = f"driver {driver.version}" if driver.version else "the driver"
    build = f"this torch ({torch.__version__}), built with CUDA {torch.version.cuda},"
    return f"{named} is too old for {build} which needs {needed or 'a newer one'}", f"update the driver{other}"


def least_driver() -> int | None:
    """The oldest driver branch that serves this build of torch; None: a CPU or AMD build, or a CUDA not known here."""
    major = (torch.version.cuda or "").partition(".")[0]
    return LEAST_DRIVER.get(int(major)) if major.isdigit() else None


def _list(driver: Driver) -> str:
    return ", ".join(f"{card.index}: {card.name}" for card in driver.cards)
