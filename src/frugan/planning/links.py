"""How fast several cards exchange, and what each holds for it."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import nn

from frugan.engine.run.training import Stage
from frugan.engine.state.optimizer_shards import BUCKET_BYTES
from frugan.errors import BadInput
from frugan.wording import MIB

_BANDWIDTHS = MappingProxyType(
    {"MB": 1e6, "MiB": 2.0**20, "GB": 1e9, "GiB": 2.0**30, "Mbit": 1e6 / 8, "Gbit": 1e9 / 8, "Tbit": 1e12 / 8}
)
"""Unit -> bytes. No Gb: half of the world means bits by it, the other half bytes."""
_TIMES = MappingProxyType({"us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3})
_NUMBER = r"(\d+(?:\.\d+)?)"
_FORM = re.compile(rf"\s*{_NUMBER}\s*({'|'.join(_BANDWIDTHS)})/s\s*(?:,\s*{_NUMBER}\s*({'|'.join(_TIMES)})\s*)?")


@dataclass(frozen=True)
class Link:
    """Connection between any two cards that train together, and the time that adding up gradients over it takes.

    With N cards and V bytes of gradients, a ring (reduce-scatter, then all-gather) sends 2 (N - 1) / N * V bytes
    through each card's link, and a tree passes 2 ceil(log2 N) messages one after the other:

        seconds = 2 (N - 1) / N * V / bandwidth  +  2 ceil(log2 N) * latency
    """

    bytes_per_s: float  # through each card, one way; of the slowest link where they differ
    latency_s: float  # of a message
    guess: bool = False  # whether nobody has said so

    def sent_bytes(self, size_bytes: float, cards: int) -> float:
        """Return the bytes that go through the link of each card when so many are added up over all."""
        return 2 * (cards - 1) / cards * size_bytes

    def gathered_bytes(self, size_bytes: float, cards: int) -> float:
        """Return the bytes that go through the link of each card until all have what each had a part of."""
        return (cards - 1) / cards * size_bytes

    def seconds(self, size_bytes: float, cards: int) -> float:
        """How long adding up so many bytes over all cards takes."""
        if cards == 1:
            return 0.0
        return self.sent_bytes(size_bytes, cards) / self.bytes_per_s + 2 * math.ceil(math.log2(cards)) * self.latency_s


GUESSED = Link(8e9, 20e-6, guess=True)
"""Cards of one machine on PCI Express 3.0 with 16 lanes, which share what the board has."""


def parse_link(text: str) -> Link:
    """The link of "8GB/s", "25Gbit/s" or "8GB/s,50us" (bandwidth through each card, and latency of a message).

    Raises:
        BadInput: not a positive bandwidth with a unit.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise BadInput(
            f"--link {text!r}: expected the bandwidth between cards with its unit, such as 8GB/s or 25Gbit/s, and if "
            f"you know it the latency after a comma: 8GB/s,50us (units: {', '.join(_BANDWIDTHS)})"
        )
    bandwidth = float(match[1]) * _BANDWIDTHS[match[2]]
    if not 0 < bandwidth < math.inf:
        raise BadInput(f"--link {text!r}: nothing would ever arrive; expected more, such as 8GB/s")
    latency = GUESSED.latency_s if match[3] is None else float(match[3]) * _TIMES[match[4]]
    return Link(bandwidth, latency)


COMMUNICATION_BYTES = 300 * MIB
"""Guess for the buffers of NCCL's channels between cards of one machine."""


def bytes_between(cards: int) -> dict[str, int]:
    """Return the bytes that each of several cards holds for sharing a batch, by what they are for."""
    if cards == 1:
        return {}
    buckets = 2 * BUCKET_BYTES  # one is made as the last one goes
    return {"gradient buckets": buckets, "communication": COMMUNICATION_BYTES}


@dataclass(frozen=True)
class Sum:
    """Gradients that cards add up in an update of one phase."""

    phase: str  # its name
    size_bytes: int  # of its gradients, fp32; losses and statistics besides them are small
    updates: float  # in an average step


def sums_of(stage: Stage, networks: Mapping[str, nn.Module]) -> tuple[Sum, ...]:
    """Return the gradients that cards add up in an average step of a stage of training, phase by phase."""
    return tuple(
        Sum(
            phase.name,
            sum(4 * p.numel() for name in phase.trainable for p in networks[name].parameters() if p.requires_grad),
            phase.repeats / phase.every,
        )
        for phase in stage.phases
    )


def seconds_between(link: Link, sums: tuple[Sum, ...], cards: int) -> float:
    """Return the seconds that adding up takes in an average step, while cards compute nothing."""
    return sum(phase.updates * link.seconds(phase.size_bytes, cards) for phase in sums)
