"""Findings about cards: which there are, by which number, what they compute in and what memory is free."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import torch

from frugan.api.machine.card_support import not_served
from frugan.api.machine.devices import use_device
from frugan.api.machine.environment_variables import CARDS
from frugan.doctor.driver import Driver, PhysicalCard
from frugan.doctor.finding import Finding, finding
from frugan.doctor.no_card import known_trouble, torch_says, why_no_card
from frugan.engine.arithmetic import tf32_decision
from frugan.engine.out_of_memory import ran_out_of_memory
from frugan.engine.precision import resolve_precision
from frugan.errors import BadInput
from frugan.memory.budget import free_bytes
from frugan.memory.calibration import calibrate, device_name, load_calibration, save_calibration
from frugan.memory.sizes import MIB, show_size

MUCH_TAKEN = 0.15
"""Share of a card that other programs hold from which on it is worth closing them."""


def in_our_order(driver: Driver) -> list[PhysicalCard | None]:
    """Of every card of this process, in its order, what the driver says; None: not found. CUDA has been set up."""
    by_uuid = {card.uuid.lower().removeprefix("gpu-"): card for card in driver.cards}
    properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [by_uuid.get(str(getattr(each, "uuid", "")).lower().removeprefix("gpu-")) for each in properties]


def device_finding(asked: str) -> tuple[Finding, torch.device | None]:
    """What training would run on; None: nothing. A card becomes torch's current one, as in training."""
    try:
        device, why = use_device(asked)
    except BadInput as error:
        reason, _, cure = str(error).partition("; ")
        return Finding("device", "impossible", reason, cure or None, {"device": None}), None
    return finding("device", f"training runs on {device}: {why}", device=str(device)), device


def card_findings(driver: Driver, environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Whether there are cards, which, and which of them this torch serves."""
    said = torch_says()
    if said is not None or torch.cuda.device_count() == 0:
        reason, cure = why_no_card(said, driver, environment)
        seen = [card.name for card in driver.cards]
        return [finding("card", f"none: {reason}", cure, cards=[], driver=driver.version, driver_sees=seen)]
    cards = [_card_finding(index, driver) for index in range(torch.cuda.device_count())]
    return [*cards, _order_finding(driver, environment)]


def _card_finding(index: int, driver: Driver) -> Finding:
    card = torch.cuda.get_device_properties(index)
    line = (
        f"cuda:{index} is {card.name}, {show_size(card.total_memory)}, compute capability "
        f"{card.major}.{card.minor}, driver {driver.version or 'not known'}"
    )
    cure, reason = None, not_served(index)
    if reason is not None:
        why, _, cure = reason.partition("; ")
        line += f", cannot be used: {why}"
    return finding(
        "card",
        line,
        cure,
        index=index,
        name=card.name,
        capability=[card.major, card.minor],
        total_bytes=card.total_memory,
        driver=driver.version,
        cuda=torch.version.cuda,
        served=reason is None,
    )


def _order_finding(driver: Driver, environment: Mapping[str, str]) -> Finding:
    """Which card of the driver's each one is: CUDA puts the fastest first, the driver goes by slots."""
    pairs = {index: card.index if card else None for index, card in enumerate(in_our_order(driver))}
    told = ", ".join(
        f"cuda:{index} is {f'card {there}' if there is not None else 'not found'}" for index, there in pairs.items()
    )
    moved = any(there not in (None, index) for index, there in pairs.items())
    cure = None
    if moved and CARDS not in environment and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        cure = "CUDA_DEVICE_ORDER=PCI_BUS_ID gives them the driver's numbers"
    numbers = {str(index): there for index, there in pairs.items()}
    return finding("card numbers", f"{told} in nvidia-smi", cure, logical_to_physical=numbers)


def precision_finding(device: torch.device) -> Finding:
    """What `precision = auto` comes to."""
    precision = resolve_precision("auto", device)
    arithmetic = tf32_decision(torch.cuda.get_device_capability(device)) if device.type == "cuda" else None
    forced = arithmetic is not None and ": on," in arithmetic
    half = precision.name if precision.name != "fp32" else "no half precision"
    return finding(
        "precision",
        f"{half}: {precision.reason}" + (f"; {arithmetic}" if arithmetic else ""),
        "unset NVIDIA_TF32_OVERRIDE" if forced else None,
        auto=precision.name,
        tf32_forced=forced,
    )


def memory_finding(device: torch.device, driver: Driver, system: str | None = None) -> Finding:
    """What is free on a card, and who has the rest. Loads CUDA's libraries, which take theirs."""
    system = system or platform.system()
    try:
        usable, whole = free_bytes(device)
        free, _ = torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        reason, cure = _trouble(error)
        return finding("card memory", f"{device} does not work: {reason}", cure)
    physical = in_our_order(driver)[device.index or 0]
    others = physical.used_bytes if physical is not None else None
    line = f"{show_size(whole)} in all, {show_size(free)} free, {show_size(max(0, usable))} of it to plan with"
    cures = []
    if others is not None:
        who = "the desktop and other programs" if physical is not None and physical.shows else "other programs"
        line += f"; {who} held {show_size(others)} before"
        if others > MUCH_TAKEN * whole:
            cures.append("close other programs on the card; nvidia-smi lists them")
    if system == "Windows":
        line += "; a full card spills into system memory here, which is very slow: frugan stays below that"
        cures.append(
            'to make other programs fail instead: NVIDIA Control Panel, "CUDA - Sysmem Fallback Policy", '
            '"Prefer No Sysmem Fallback"'
        )
    return finding(
        "card memory",
        line,
        "; ".join(cures) or None,
        total_bytes=whole,
        free_bytes=free,
        usable_bytes=usable,
        others_bytes=others,
    )


def calibration_finding(device: torch.device, folder: Path) -> Finding:
    """What the planner counts for CUDA itself and its libraries; measured now if it never was.

    Args:
        folder: where measurements are kept.
    """
    card = load_calibration(device_name(device), folder)
    when = "measured before"
    if card is None:
        try:
            card = calibrate(device)
        except RuntimeError as error:
            reason, cure = _trouble(error)
            line = f"not measured ({reason}): the planner guesses"
            return finding("planner", line, f"{cure}; then: frugan plan RECIPE --calibrate")
        when = "measured now"
        try:
            save_calibration(card, folder)
        except OSError as error:
            when = f"measured now, and cannot be kept ({error.strerror})"
    line = (
        f"CUDA's context takes {show_size(card.context_bytes)}, workspaces {show_size(card.workspace_bytes)}; "
        f"{card.seconds_per_operation * 1e6:.0f} µs an operation ({when})"
    )
    doubtful = card.context_bytes > 1500 * MIB
    return finding(
        "planner",
        line,
        "other programs took memory while it was measured: close them, then frugan plan RECIPE --calibrate"
        if doubtful
        else None,
        context_bytes=card.context_bytes,
        workspace_bytes=card.workspace_bytes,
        macs_per_s=dict(card.macs_per_s),
        bytes_per_s=card.bytes_per_s,
        host_bytes_per_s=card.host_bytes_per_s,
        seconds_per_operation=card.seconds_per_operation,
    )


def _trouble(error: RuntimeError) -> tuple[str, str]:
    """What a card answered instead, and what to do."""
    reason = str(error).partition("\n")[0]
    if ran_out_of_memory(error):
        return f"there is no room on it: {reason}", "close other programs on the card; nvidia-smi lists them"
    return known_trouble(reason) or (reason, "restart the computer; if that does not help, update the driver")
