"""Monitoring of the card that a run trains on: sensors, idle time and its cause, processes that hold other cards."""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.sensors import CardWatch, Holder, NoSensors
from frugan.engine.run.events import Event
from frugan.reporting.signs import IdleCardSigns
from frugan.training.run import TrainRun
from frugan.wording import show_size


@dataclass(frozen=True)
class RankProcess:
    """A training process and the card that it uses."""

    rank: int  # among those that train together
    host: str  # name of its machine
    number: int  # of the process there
    card: str | None  # UUID of the card that it trains on; None: none, or one that has no UUID

    @classmethod
    def here(cls, rank: int, device: torch.device) -> "RankProcess":
        """Describe the calling process."""
        accelerator = accelerator_of(device)
        uuid = accelerator.uuid if accelerator.is_card else None
        return cls(rank, socket.gethostname(), os.getpid(), uuid)


def watched_card(run: TrainRun, device: torch.device) -> CardWatch:
    """Return a watch that polls this card (first rank only) while steps run, and warns where it idles."""
    accelerator = accelerator_of(device)
    if not run.is_first or not accelerator.is_card:
        return CardWatch()
    try:
        sensors = accelerator.sensors()
    except NoSensors as reason:
        run.choose(f"card: how busy and how warm it is stays unknown: {reason}")
        return CardWatch()
    signs = IdleCardSigns()

    def look(event: Event) -> None:
        for line in signs.look(event):
            run.warn(int(event["step"]), line)

    run.log.subscribe(look)
    return CardWatch(sensors)


def look_for_second_cards(run: TrainRun, device: torch.device, watch: CardWatch) -> None:
    """After the first step, warn where a process of this training holds memory of a card that it does not train on.

    Every rank calls it; the first one looks, on its own machine, where NCCL adds up. (What is set up once for all
    cards, or before a process has chosen its own, lands on the first: memory that is missing there.)
    """
    ranks = run.ranks
    if ranks.size == 1 or accelerator_of(device).collectives != "nccl":
        return
    processes = ranks.gather(RankProcess.here(ranks.rank, device))
    if watch.sensors is None:
        return
    sensors, looked = watch.sensors, False

    def look(event: Event) -> None:
        nonlocal looked
        if event["event"] == "step" and not looked:
            looked = True
            for line in second_cards(sensors.holders(), processes, socket.gethostname()):
                run.warn(int(event["step"]), line)

    run.log.subscribe(look)


def second_cards(holders: Sequence[Holder], processes: Sequence[RankProcess], host: str) -> Iterator[str]:
    """Describe training processes that hold memory of a card that they do not train on.

    Args:
        holders: on all cards of a machine.
        processes: of the training.
        host: name of the machine.
    """
    here = {process.number: process for process in processes if process.host == host and process.card is not None}
    for holder in holders:
        process = here.get(holder.process)
        if process is None or _is_same_card(holder.card, str(process.card)):
            continue
        held = "memory" if holder.size_bytes is None else show_size(holder.size_bytes)
        yield (
            f"rank {process.rank} (process {process.number}) holds {held} on card {holder.number} beside its own: "
            "something in it called CUDA before the process had chosen its card, and this memory is missing there. "
            "Look for what uses CUDA when it is imported: a family or feature network of your own, or a library"
        )


def _is_same_card(card: str, other: str) -> bool:
    """Return whether two UUIDs name the same card; torch's lack the "GPU-" prefix."""
    return card.removeprefix("GPU-") == other.removeprefix("GPU-")


def judge_card(events: Iterable[Mapping[str, Any]]) -> tuple[float, str | None] | None:
    """Return the share of time in which a card ran a training's kernels, by its events, and a warning if it is low.

    None: they do not say enough.
    """
    signs, told = IdleCardSigns(), None
    for event in events:
        with suppress(LookupError, TypeError, ValueError, AttributeError):  # an event of another version
            for line in signs.look(event):
                told = line
    return None if signs.busy is None else (signs.busy, told)
