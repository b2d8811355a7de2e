"""Findings about cards: which there are, by which number, what they compute in and what memory is free."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from frugan.api.doctor.driver import Driver, PhysicalCard
from frugan.api.doctor.finding import Finding
from frugan.api.doctor.no_card import known_trouble, torch_says, why_no_card
from frugan.api.machine.card_support import not_served
from frugan.api.machine.devices import use_device
from frugan.api.machine.environment_variables import CARDS
from frugan.engine.arithmetic import tf32_decision
from frugan.engine.out_of_memory import ran_out_of_memory
from frugan.engine.precision import resolve_precision
from frugan.errors import BadInput
from frugan.memory.budget import free_bytes
from frugan.memory.calibration import calibrate, device_name, load_calibration, save_calibration
from frugan.memory.cards import Card
from frugan.memory.sizes import MIB, show_size

MUCH_TAKEN = 0.15
"""Share of a card that other programs hold from which on it is worth closing them."""


@dataclass(frozen=True)
class LogicalCard:
    """A card as this process numbers it.

    Attributes:
        index: of "cuda:INDEX".
        name: its maker's.
        capability: compute capability.
        total_bytes: of memory.
        physical: the same card as the driver numbers it; None: not found among them.
    """

    index: int
    name: str
    capability: tuple[int, int]
    total_bytes: int
    physical: PhysicalCard | None


def logical_cards(driver: Driver) -> list[LogicalCard]:
    """Every card of this process; CUDA has been set up."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        uuid = str(getattr(properties, "uuid", ""))  # without the "GPU-" in front
        same = [card for card in driver.cards if uuid and card.uuid.lower().endswith(uuid.lower())]
        found.append(
            LogicalCard(
                index,
                properties.name,
                (properties.major, properties.minor),
                properties.total_memory,
                same[0] if same else None,
            )
        )
    return found


def device_finding(asked: str) -> tuple[Finding, torch.device | None]:
    """What training would run on; None: nothing. A card becomes torch's current one, as in training."""
    try:
        device, why = use_device(asked)
    except BadInput as error:
        reason, _, cure = str(error).partition("; ")
        return Finding("device", "impossible", reason, cure or None, {"device": None}), None
    return Finding("device", "fine", f"training runs on {device}: {why}", None, {"device": str(device)}), device


def card_findings(driver: Driver, environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Whether there are cards, which, and which of them this torch serves."""
    said = torch_says()
    if said is not None or torch.cuda.device_count() == 0:
        reason, cure = why_no_card(said, driver, environment)
        values = {"cards": [], "driver": driver.version, "driver_sees": [card.name for card in driver.cards]}
        return [Finding("card", "limited", f"none: {reason}", cure, values)]
    found = [_card_finding(card, driver) for card in logical_cards(driver)]
    return [*found, _order_finding(logical_cards(driver), environment)]


def _card_finding(card: LogicalCard, driver: Driver) -> Finding:
    line = (
        f"cuda:{card.index} is {card.name}, {show_size(card.total_bytes)}, compute capability "
        f"{card.capability[0]}.{card.capability[1]}, driver {driver.version or 'not known'}"
    )
    values = {
        "index": card.index,
        "name": card.name,
        "capability": list(card.capability),
        "total_bytes": card.total_bytes,
        "driver": driver.version,
        "cuda": torch.version.cuda,
        "served": True,
    }
    if (reason := not_served(card.index)) is None:
        return Finding("card", "fine", line, None, values)
    why, _, cure = reason.partition("; ")
    return Finding("card", "limited", f"{line}, cannot be used: {why}", cure, values | {"served": False})


def _order_finding(cards: list[LogicalCard], environment: Mapping[str, str]) -> Finding:
    """Which card of the driver's each one is: CUDA puts the fastest first, the driver goes by slots."""
    pairs = {card.index: None if card.physical is None else card.physical.index for card in cards}
    told = ", ".join(
        f"cuda:{index} is {f'card {there}' if there is not None else 'not found'}" for index, there in pairs.items()
    )
    moved = any(there not in (None, index) for index, there in pairs.items())
    cure = None
    if moved and CARDS not in environment and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        cure = "CUDA_DEVICE_ORDER=PCI_BUS_ID gives them the driver's numbers"
    return Finding(
        "card numbers",
        "limited" if cure else "fine",
        f"{told} in nvidia-smi",
        cure,
        {"logical_to_physical": {str(index): there for index, there in pairs.items()}},
    )


def precision_finding(device: torch.device) -> Finding:
    """What `precision = auto` comes to."""
    found = resolve_precision("auto", device)
    arithmetic = tf32_decision(torch.cuda.get_device_capability(device)) if device.type == "cuda" else None
    forced = arithmetic is not None and ": on," in arithmetic
    half = found.name if found.name != "fp32" else "no half precision"
    return Finding(
        "precision",
        "limited" if forced else "fine",
        f"{half}: {found.reason}" + (f"; {arithmetic}" if arithmetic else ""),
        "unset NVIDIA_TF32_OVERRIDE" if forced else None,
        {"auto": found.name, "tf32_forced": forced},
    )


def memory_finding(device: torch.device, driver: Driver, system: str | None = None) -> Finding:
    """What is free on a card, and who has the rest. Loads CUDA's libraries, which take theirs."""
    system = system or platform.system()
    try:
        usable, whole = free_bytes(device)
        free, _ = torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        reason, cure = _trouble(error)
        return Finding("card memory", "limited", f"{device} does not work: {reason}", cure)
    physical = next((c.physical for c in logical_cards(driver) if c.index == (device.index or 0)), None)
    others = physical.used_bytes if physical is not None else None
    line = f"{show_size(whole)} in all, {show_size(free)} free, {show_size(max(0, usable))} of it to plan with"
    values: dict[str, object] = {
        "total_bytes": whole,
        "free_bytes": free,
        "usable_bytes": usable,
        "others_bytes": others,
    }
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
    return Finding("card memory", "limited" if cures else "fine", line, "; ".join(cures) or None, values)


def calibration_finding(device: torch.device, folder: Path) -> tuple[Finding, Card | None]:
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
            return Finding("planner", "limited", line, f"{cure}; then: frugan plan RECIPE --calibrate"), None
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
    return Finding(
        "planner",
        "limited" if doubtful else "fine",
        line,
        "other programs took memory while it was measured: close them, then frugan plan RECIPE --calibrate"
        if doubtful
        else None,
        {
            "context_bytes": card.context_bytes,
            "workspace_bytes": card.workspace_bytes,
            "macs_per_s": dict(card.macs_per_s),
            "bytes_per_s": card.bytes_per_s,
            "host_bytes_per_s": card.host_bytes_per_s,
            "seconds_per_operation": card.seconds_per_operation,
        },
    ), card


def _trouble(error: RuntimeError) -> tuple[str, str]:
    """What a card answered instead, and what to do."""
    reason = str(error).partition("\n")[0]
    if ran_out_of_memory(error):
        return f"there is no room on it: {reason}", "close other programs on the card; nvidia-smi lists them"
    return known_trouble(reason) or (reason, "restart the computer; if that does not help, update the driver")
