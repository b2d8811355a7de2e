"""Findings about what a card does: now, by its driver; and while the last training ran, by that training's events."""

import time
from pathlib import Path

import torch

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.sensors import CardReading, NoSensors, Sensors, mean_reading
from frugan.doctor.finding import Finding, finding
from frugan.engine.run.events import EventTail
from frugan.engine.run.run_folder import RunFolder
from frugan.training.card_watch import judge_card
from frugan.wording import MIB, count, show_size

READINGS = 5
APART_SECONDS = 0.2
SETTLE_SECONDS = 1.0
"""Drivers average over as much."""
NOTABLE_SHARE = 0.1
"""Share of the time from which other programs' kernels on a card are reported."""
LAST_BYTES = 4 * MIB
"""Bytes read from the end of an event file: some thousand steps."""


def activity_finding(device: torch.device) -> Finding:
    """Report a card's activity while this process leaves it idle."""
    try:
        sensors = accelerator_of(device).sensors()
    except NoSensors as reason:
        return finding("card activity", f"not known: {reason}")
    try:
        readings = _readings(sensors)
    finally:
        sensors.close()
    mean = mean_reading(readings)
    shown = {
        "busy": lambda share: f"busy {100 * share:.0f} % of the time",
        "others": lambda number: f"{count(round(number), 'other program')} computing or ready to",
        "used_bytes": lambda size: f"{show_size(int(size), 1)} used",
        "temperature_c": lambda value: f"{value:.0f} °C",
        "power_w": lambda value: f"{value:.0f} W",
        "clock_mhz": lambda value: f"{value:.0f} MHz",
    }
    line = ", ".join(show(mean[name]) for name, show in shown.items() if name in mean) or "its driver says nothing"
    cure = None
    if mean.get("busy", 0.0) >= NOTABLE_SHARE:
        cure = "another program computes on it now: end it (nvidia-smi names it), or choose another card"
    return finding("card activity", line, cure, **mean)


def _readings(sensors: Sensors) -> list[CardReading]:
    """A few, over a second, once the driver has forgotten what this process did to the card before."""
    time.sleep(SETTLE_SECONDS)
    sensors.read()
    readings = []
    for _ in range(READINGS):
        time.sleep(APART_SECONDS)
        readings.append(sensors.read())
    return readings


def last_training_finding(runs: Path) -> Finding | None:
    """Report whether the last training in a folder kept its card busy, and what delayed it; None: it does not tell."""
    files = [file for file in runs.glob(f"*/{RunFolder(runs).events.name}") if file.is_file()]
    if not files:
        return None
    newest = max(files, key=lambda file: file.stat().st_mtime)
    start = max(0, newest.stat().st_size - LAST_BYTES)
    judged = judge_card(EventTail(newest, _position=start).added(to_the_end=True))
    if judged is None:
        return None
    share, line = judged
    told = f"{newest.parent}: busy with it {100 * share:.0f} % of the time"
    cure = None
    if line is not None:
        _, _, why = line.partition(": ")
        reason, _, cure = why.partition(" What helps: ")
        told += f"; {reason.rstrip('.')}"
    return finding("card in the last training", told, cure, busy=round(share, 3))
