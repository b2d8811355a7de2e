"""What a card reaches and what it takes for itself: measured, or guessed from its published peaks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from frugan.engine.precision import Precision, card_has_bf16_units
from frugan.errors import BadInput
from frugan.memory.sizes import GIB, MIB
from frugan.memory.work import Work

REACHED = 0.5
"""Share of the published peak of half-precision units that training is guessed to reach."""
REACHED_FP32 = 0.7
"""Share of the published fp32 peak: fewer products at once are easier to feed. With half of it BigGAN on V100s was
predicted to take a third longer than it did."""
REACHED_TRAFFIC = 0.75
"""Share of a published memory bandwidth."""
HOST_BYTES_PER_S = 10e9
"""Guess for pinned memory over PCI Express 3.0 with 16 lanes."""
SECONDS_PER_KERNEL = 6e-6
"""Guess for starting one kernel from Python, and nothing besides."""
SECONDS_PER_OPERATION = {"of Ampere's time": 28e-6, "older": 48e-6}
"""Guess for one operation of a step, on the computers that cards stand in: what Python and autograd do around a kernel
takes several times as long as starting it. Fitted to published steps that are too small for their cards: 27 to 28 µs on
hosts of A100s, 42 to 56 on hosts of V100s (benchmarks/results/tracker-on-original.json)."""
AMPERE = (8, 0)
TIME_ERROR = 0.3
"""Share by which a predicted time may be off, from published figures beside predicted ones (docs/memory.md, "Published
figures")."""
CONTEXT_BYTES = 450 * MIB
"""Guess for a CUDA context with the libraries that torch loads."""
WORKSPACE_BYTES = 320 * MIB
"""Guess for what cuDNN and cuBLAS take from torch's allocator for themselves: published trainings show 250 to 340 MiB
more than what lives where their peak lies in a strided convolution in half precision."""


@dataclass(frozen=True)
class Card:
    """A device that plans are made for.

    Attributes:
        name: for people.
        memory_bytes: it has in all; None: not known.
        macs_per_s: precision -> multiply-accumulates per second.
        bytes_per_s: of its memory.
        host_bytes_per_s: between it and the host.
        seconds_per_kernel: that starting one takes.
        seconds_per_operation: that one of a step takes the host, with its parts in Python and in autograd.
        context_bytes: held outside torch's allocator.
        workspace_bytes: that libraries take from torch's allocator.
        source: whether this was measured on the card, or is a guess.
        capability: compute capability; None: not known.
        queued: whether it works while the host goes on, as cards do and processors do not.
        figures_of: the published card whose speeds these are; None: measured, or the card's own.
    """

    name: str
    memory_bytes: int | None
    macs_per_s: Mapping[str, float]
    bytes_per_s: float
    host_bytes_per_s: float = HOST_BYTES_PER_S
    seconds_per_kernel: float = SECONDS_PER_KERNEL
    seconds_per_operation: float = SECONDS_PER_OPERATION["older"]
    context_bytes: int = CONTEXT_BYTES
    workspace_bytes: int = WORKSPACE_BYTES
    source: Literal["measured", "guess"] = "guess"
    capability: tuple[int, int] | None = None
    queued: bool = True
    figures_of: str | None = None

    def seconds(self, work: Work, precision: Precision) -> float:
        """How long work takes: as long as the card is busy, or as the host is with keeping it so, whichever is longer.

        A processor is its own host: there both add up.
        """
        busy, host = self._busy_seconds(work, precision), work.operations * self.seconds_per_operation
        return max(busy, host) if self.queued else busy + host

    def compared_seconds(self, work: Work, precision: Precision) -> float:
        """What plans are compared by: all parts added up, so that none is free because it hides behind another."""
        return self._busy_seconds(work, precision) + work.operations * self.seconds_per_kernel

    def waits_for_launches(self, work: Work, precision: Precision) -> bool:
        """Whether starting kernels takes the host longer than the card works at them; then CUDA graphs pay."""
        return self.queued and work.operations * self.seconds_per_kernel > self._busy_seconds(work, precision)

    def _busy_seconds(self, work: Work, precision: Precision) -> float:
        """Of the card: products each at the speed of their own numbers, as fp32 ones are no faster beside half ones."""
        fp32_macs = work.macs if precision.name == "fp32" else work.fp32_macs
        return (
            (work.macs - fp32_macs) / self.macs_per_s[precision.name]
            + fp32_macs / self.macs_per_s["fp32"]
            + work.bytes_moved / self.bytes_per_s
            + work.host_bytes / self.host_bytes_per_s
        )


@dataclass(frozen=True)
class Published:
    """A card's published figures.

    Attributes:
        gib: of memory.
        fp32, half: TFLOPS, without sparsity; half with sums in fp32.
        gb_per_s: of its memory.
        capability: compute capability.
    """

    gib: int
    fp32: float
    half: float
    gb_per_s: float
    capability: tuple[int, int]

    def card(self, name: str) -> Card:
        """What is guessed from them."""
        full = REACHED_FP32 * self.fp32 * 1e12 / 2
        half = max(full, REACHED * self.half * 1e12 / 2)  # without units for it, products of halves are made in fp32
        return Card(
            name=name,
            memory_bytes=self.gib * GIB,
            macs_per_s={"fp32": full, "fp16": half, "bf16": half if card_has_bf16_units(self.capability) else full},
            bytes_per_s=REACHED_TRAFFIC * self.gb_per_s * 1e9,
            seconds_per_operation=SECONDS_PER_OPERATION["of Ampere's time" if self.capability >= AMPERE else "older"],
            capability=self.capability,
        )


PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {
        "gtx-1060": Published(6, 4.4, 4.4, 192, (6, 1)),
        "gtx-1070": Published(8, 6.5, 6.5, 256, (6, 1)),
        "gtx-1080": Published(8, 8.9, 8.9, 320, (6, 1)),
        "gtx-1080-ti": Published(11, 11.3, 11.3, 484, (6, 1)),
        "gtx-titan-x": Published(12, 6.6, 6.6, 336, (5, 2)),
        "titan-x": Published(12, 11.0, 11.0, 480, (6, 1)),  # of 2016, Pascal
        "gtx-1660": Published(6, 5.0, 10.0, 192, (7, 5)),
        "gtx-1660-super": Published(6, 5.0, 10.0, 336, (7, 5)),
        "gtx-1660-ti": Published(6, 5.4, 10.9, 288, (7, 5)),
        "rtx-2060": Published(6, 6.5, 25.8, 336, (7, 5)),
        "rtx-2070": Published(8, 7.5, 29.9, 448, (7, 5)),
        "rtx-2080-ti": Published(11, 13.4, 53.8, 616, (7, 5)),
        "rtx-3050": Published(8, 9.1, 18.2, 224, (8, 6)),
        "rtx-3060": Published(12, 12.7, 25.5, 360, (8, 6)),
        "rtx-3060-ti": Published(8, 16.2, 32.4, 448, (8, 6)),
        "rtx-3070": Published(8, 20.3, 40.6, 448, (8, 6)),
        "rtx-3080": Published(10, 29.8, 59.5, 760, (8, 6)),
        "rtx-3090": Published(24, 35.6, 71.0, 936, (8, 6)),
        "rtx-4060": Published(8, 15.1, 30.2, 272, (8, 9)),
        "rtx-4060-ti": Published(8, 22.1, 44.1, 288, (8, 9)),
        "rtx-4070": Published(12, 29.1, 58.3, 504, (8, 9)),
        "rtx-4080": Published(16, 48.7, 97.5, 717, (8, 9)),
        "rtx-4090": Published(24, 82.6, 165.2, 1008, (8, 9)),
        "rtx-5050": Published(8, 13.2, 26.3, 320, (12, 0)),
        "rtx-5060": Published(8, 19.2, 38.4, 448, (12, 0)),
        "rtx-5060-ti": Published(8, 23.7, 47.4, 448, (12, 0)),
        "rtx-5060-ti-16": Published(16, 23.7, 47.4, 448, (12, 0)),
        "rtx-5070": Published(12, 30.9, 61.7, 672, (12, 0)),
        "rtx-5070-ti": Published(16, 43.9, 87.9, 896, (12, 0)),
        "rtx-5080": Published(16, 56.3, 112.6, 960, (12, 0)),
        "rtx-5090": Published(32, 104.8, 209.5, 1792, (12, 0)),
        "k80": Published(12, 4.4, 4.4, 240, (3, 7)),  # one of the two processors on its board
        "p100": Published(16, 9.3, 9.3, 732, (6, 0)),
        "t4": Published(16, 8.1, 65.0, 320, (7, 5)),
        "v100": Published(16, 15.7, 125.0, 900, (7, 0)),
        "v100-32": Published(32, 15.7, 125.0, 900, (7, 0)),
        "a100": Published(40, 19.5, 312.0, 1555, (8, 0)),
        "h100": Published(80, 66.9, 989.0, 3350, (9, 0)),
        "h200": Published(141, 66.9, 989.0, 4800, (9, 0)),
    }
)
"""Peaks as their maker published them (data sheets and architecture white papers)."""

UNNAMED = "rtx-2060"
"""Stands for a card that is not named: the commonest of those with 6 GB and half-precision units."""


def is_known(name: str) -> bool:
    """Whether there is a card of this name."""
    return _key(name) in PUBLISHED


def _key(name: str) -> str:
    key = name.strip().lower().replace(" ", "-").removeprefix("nvidia-")
    return key.removeprefix("geforce-").removeprefix("tesla-")


def named_card(name: str) -> Card:
    """A card by its maker's name: "rtx-3060", "RTX 3060".

    Raises:
        BadInput: not among those that are known.
    """
    key = _key(name)
    if key not in PUBLISHED:
        raise BadInput(
            f"--card {name!r} is not known; known are {', '.join(PUBLISHED)}. For another one, give its "
            "memory: --memory 6GiB; on a machine with the card, `frugan plan --calibrate` measures it"
        )
    return PUBLISHED[key].card(key)


def card_here(name: str, memory_bytes: int, capability: tuple[int, int]) -> Card:
    """The card of this machine, by what its driver says of it.

    Its speeds are those of the published card that its name begins with ("NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX
    3060 Laptop GPU"), else those of `UNNAMED`.
    """
    key = _key(name)
    begins = [known for known in PUBLISHED if key == known or key.startswith(f"{known}-")]
    if begins:
        longest = max(begins, key=len)
        sizes = [known for known in PUBLISHED if re.fullmatch(rf"{re.escape(longest)}(-\d+)?", known)]
        like = min(sizes, key=lambda known: abs(PUBLISHED[known].gib * GIB - memory_bytes))
        card = PUBLISHED[like].card(name)
    else:
        like, card = UNNAMED, unnamed_card()
    figures_of = None if key in begins else like
    return replace(card, name=name, memory_bytes=memory_bytes, capability=capability, figures_of=figures_of)


def unnamed_card() -> Card:
    """A card of which nothing is known but a budget; bf16 is taken to be as fast as fp16."""
    like = PUBLISHED[UNNAMED].card("a card with half-precision units")
    return Card(
        name=like.name,
        memory_bytes=None,
        macs_per_s={**like.macs_per_s, "bf16": like.macs_per_s["fp16"]},
        bytes_per_s=like.bytes_per_s,
    )
