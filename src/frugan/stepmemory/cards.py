"""Cards as plans know them: memory and speed, what of it a plan may take, and how fast several exchange."""

import platform
import re
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import resources
from types import MappingProxyType
from typing import Literal

import torch
from torch.nn import functional as F

from frugan.accelerator.base import card_has_bf16_units, card_has_tf32
from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.precision import DTYPES, Precision, PrecisionName, card_precision, refuse_tf32
from frugan.errors import BadInput
from frugan.stepmemory.work import Work
from frugan.wording import GIB, MIB, first_names, show_size

REACHED_TRAFFIC = 0.75
"""Share of a published memory bandwidth."""
HOST_BYTES_PER_S = 10e9
"""Guess for pinned memory over PCI Express 3.0 with 16 lanes."""
SECONDS_PER_KERNEL = 6e-6
"""Guess for starting one kernel from Python, and nothing besides."""
TIME_ERROR = 0.3
"""Share by which a time may be off that is predicted from what was measured on the very card."""
LAPTOP_SLOWER = 2.0
"""Guess for how many times as long as with its processor in a desktop a laptop's card may take at most: makers let one
and the same card draw half as much power in one laptop as in another, or less."""
CONTEXT_BYTES = 450 * MIB
"""Guess for a CUDA context with the libraries that torch loads."""
WORKSPACE_BYTES = 320 * MIB
"""Guess for what cuDNN and cuBLAS take from torch's allocator for themselves: published trainings show 250 to 340 MiB
more than what lives where their peak lies in a strided convolution in half precision."""


@dataclass(frozen=True)
class Generation:
    """Speed of training on cards of one generation, from published trainings beside predicted ones.

    The record is benchmarks/results/published-costs.json; docs/memory-measured.md has it as a table.
    """

    name: str  # for people
    since: tuple[int, int]  # compute capability with which it begins
    # fp32, half: share that is reached of the published peaks; fewer products at once are easier to feed
    fp32: float
    half: float
    # one operation of a step on the computers that such cards stand in: what Python and autograd do around a kernel
    # takes several times as long as starting it
    seconds_per_operation: float
    # least and most that a step takes beside what is predicted: every published row lies between, and where there are
    # few rows, or none, there is room besides
    least: float
    most: float
    rows: int  # published times


GENERATIONS = (
    Generation("before Volta", (0, 0), 0.7, 0.5, 48e-6, 0.7, 2.5, rows=0),
    # 42 to 56 µs an operation where a step is too small for its card (benchmarks/results/tracker-on-original.json);
    # with half of the fp32 peak BigGAN was predicted to take a third longer than it did
    Generation("Volta", (7, 0), 0.7, 0.5, 48e-6, 0.5, 2.75, rows=31),
    # fitted to the model of one program: see `benchmarks/published_costs.py faces-512-1`
    Generation("Turing", (7, 5), 0.95, 0.43, 48e-6, 0.8, 1.8, rows=2),
    Generation("Ampere", (8, 0), 0.7, 0.5, 28e-6, 0.6, 1.95, rows=22),  # 27 to 28 µs an operation
    Generation("after Ampere", (8, 9), 0.7, 0.5, 28e-6, 0.7, 2.5, rows=0),
)


def generation_of(capability: tuple[int, int]) -> Generation:
    """The generation of cards of a compute capability."""
    return next(generation for generation in reversed(GENERATIONS) if generation.since <= capability)


@dataclass(frozen=True)
class Card:
    """A device that plans are made for."""

    name: str  # for people
    memory_bytes: int | None  # that it has in all; None: not known
    macs_per_s: Mapping[str, float]  # precision, or "tf32" where it has that -> multiply-accumulates per second
    bytes_per_s: float  # of its memory
    host_bytes_per_s: float = HOST_BYTES_PER_S  # between it and the host
    seconds_per_kernel: float = SECONDS_PER_KERNEL  # that starting one takes
    # that one of a step takes the host, with its parts in Python and in autograd
    seconds_per_operation: float = GENERATIONS[0].seconds_per_operation
    context_bytes: int = CONTEXT_BYTES  # held outside torch's allocator
    workspace_bytes: int = WORKSPACE_BYTES  # that libraries take from torch's allocator
    source: Literal["measured", "guess"] = "guess"  # whether this was measured on the card, or is a guess
    capability: tuple[int, int] | None = None  # compute capability; None: not known
    queued: bool = True  # whether it works while the host goes on, as cards do and processors do not
    figures_of: str | None = None  # the published card whose speeds these are; None: measured, or the card's own
    in_laptop: bool = False  # where its power is the laptop's choice

    def precision(self, requested: PrecisionName, *, tf32: bool = False) -> Precision:
        """The precision that training would have on it.

        Args:
            tf32: fp32 numbers are multiplied by their first three digits.

        Raises:
            BadInput: it cannot do so.
        """
        if tf32 and not (card_has_tf32(self.capability) or (self.capability is None and self.queued)):
            raise refuse_tf32(self.name)
        if self.capability is not None:
            return replace(card_precision(requested, self.name, self.capability), tf32=tf32)
        if requested == "auto":
            reason = "assumed: compute capability 8.0 or newer; fp16 on 7.x takes as much"
            return Precision("bf16", torch.bfloat16, reason, tf32=tf32)
        return Precision(requested, DTYPES[requested], "asked for", tf32=tf32)

    def seconds(self, work: Work, precision: Precision) -> float:
        """How long work takes: as long as the card is busy, or as the host is with keeping it so, whichever is longer.

        A processor is its own host: there both add up.
        """
        busy, host = self._busy_seconds(work, precision), work.operations * self.seconds_per_operation
        return max(busy, host) if self.queued else busy + host

    @property
    def times(self) -> tuple[float, float]:
        """Least and most that a step takes beside what is predicted."""
        if self.source == "measured":
            return 1 - TIME_ERROR, 1 + TIME_ERROR
        if self.capability is None:
            return min(one.least for one in GENERATIONS), max(one.most for one in GENERATIONS)
        generation = generation_of(self.capability)
        return generation.least, generation.most * (LAPTOP_SLOWER if self.in_laptop else 1)

    def busy_share(self, work: Work, precision: Precision) -> float:
        """Share of the time that the card works, and does not wait for its host."""
        return self._busy_seconds(work, precision) / self.seconds(work, precision)

    def compared_seconds(self, work: Work, precision: Precision) -> float:
        """Return the seconds that plans are compared by: all parts added up, so that none is free behind another.

        But for copies that go on beside the rest: they count what they add to it, and the memory traffic that they are.
        """
        return self._busy_seconds(work, precision) + work.operations * self.seconds_per_kernel

    def _busy_seconds(self, work: Work, precision: Precision) -> float:
        """Return the seconds of products, each at the speed of its numbers: fp32 ones are no faster beside half ones.

        What is copied beside them takes longer or hides behind them, as a whole; for the rest of copies it waits.
        """
        fp32_macs = work.macs if precision.name == "fp32" else work.fp32_macs
        computing = (
            (work.macs - fp32_macs) / self.macs_per_s[precision.name]
            + fp32_macs / (self.macs_per_s["fp32"] * (self.tf32_gain if precision.tf32 else 1))
            + work.bytes_moved / self.bytes_per_s
        )
        return max(computing, work.beside_bytes / self.host_bytes_per_s) + work.host_bytes / self.host_bytes_per_s

    @property
    def tf32_gain(self) -> float:
        """Speed of products in TF32 over that in fp32; 1 where it has none, or was measured before TF32 was."""
        return self.macs_per_s.get("tf32", self.macs_per_s["fp32"]) / self.macs_per_s["fp32"]


KEPT_BYTES, LEFT_SHARE, LEFT_SHARE_BEFORE_TURING = 460 * MIB, 0.964, 0.975
"""What drivers keep for themselves under Linux. From Turing on, today's keep 370 MiB of a card with 4 GB and 670 of one
with 32; before Turing it is 1 to 2 %. Nobody has shown less than `left_bytes`, but for cards with error correction in
ordinary memory (T4, L4, A10), of which the table knows what is left."""


def left_bytes(memory_bytes: int, capability: tuple[int, int] = (7, 5)) -> int:
    """Predicted: what a driver leaves of a card's memory under Linux."""
    if capability < (7, 5):
        return int(LEFT_SHARE_BEFORE_TURING * memory_bytes)
    return min(memory_bytes - KEPT_BYTES, int(LEFT_SHARE * memory_bytes))


TF32_OF_HALF = 0.5
"""Peak of products in TF32 as a share of those of halves, on all cards that have both, by their data sheets."""


@dataclass(frozen=True)
class Published:
    """A card's published figures: a row of cards.toml, which says what they are."""

    gib: int
    fp32: float
    half: float
    gb_per_s: float
    capability: tuple[int, int]
    left_mib: int | None = None  # None: nobody has shown it
    like: str | None = None  # None: the speeds are the card's own
    draws: bool = True  # whether a desktop may be drawn by it
    in_laptop: bool = False

    @property
    def left_bytes(self) -> int:
        """Bytes that the driver leaves of its memory under Linux: seen, or else predicted."""
        if self.left_mib is not None:
            return self.left_mib * MIB
        return left_bytes(self.gib * GIB, self.capability)

    def card(self, name: str) -> Card:
        """Return the speeds that are guessed from the published figures."""
        reached = generation_of(self.capability)
        full = reached.fp32 * self.fp32 * 1e12 / 2
        half = max(full, reached.half * self.half * 1e12 / 2)  # without units, products of halves are made in fp32
        speeds = {"fp32": full, "fp16": half, "bf16": half if card_has_bf16_units(self.capability) else full}
        if card_has_tf32(self.capability):
            speeds["tf32"] = max(full, TF32_OF_HALF * half)
        return Card(
            name=name,
            memory_bytes=self.left_bytes,
            macs_per_s=speeds,
            bytes_per_s=REACHED_TRAFFIC * self.gb_per_s * 1e9,
            seconds_per_operation=reached.seconds_per_operation,
            capability=self.capability,
            figures_of=self.like,
            in_laptop=self.in_laptop,
        )


def _published() -> Iterator[tuple[str, Published]]:
    kinds = tomllib.loads((resources.files("frugan.stepmemory") / "cards.toml").read_text("utf-8"))
    rows = {
        name: row | {"draws": kind != "server", "in_laptop": kind == "laptop"}
        for kind, named in kinds.items()
        for name, row in named.items()
    }
    for name, row in rows.items():
        figures = {**rows[row["like"]], "left_mib": None, **row} if "like" in row else row
        yield name, Published(**{**figures, "capability": tuple(figures["capability"])})


PUBLISHED: Mapping[str, Published] = MappingProxyType(dict(_published()))

UNNAMED = "rtx-2060"
"""Stands for a card that is not named: the commonest of those with 6 GB and half-precision units."""


def is_known(name: str) -> bool:
    """Whether there is a card of this name."""
    return _find(name) is not None


_UNTOLD = frozenset(
    {"nvidia", "geforce", "tesla", "gpu", "generation", "with", "design", "workstation", "edition"}
    | {"graphics", "card", "vram", "memory"}
)
"""Words of a name that tell no card from another; those of other alphabets do not either, but for `_LAPTOP`."""
_LAPTOP = re.compile(r"\b(mobile|notebook|max-q)\b|笔记本|筆電|笔电|游戏本|轻薄本|移动|行動|ノート|노트북|ноутбук")
_MADE = re.compile(r"sxm\d?|pcie|hbm\d?e?|pascal|blackwell|nvl")
"""Words that mostly do not."""
_SERIES = frozenset({"gtx", "rtx", "quadro"})
_TELLING = frozenset({"ti", "super", "ada", "laptop", "titan", "quadro"})
"""Words that make another card of a number, wherever they stand; a shop's other words do not."""
_SHORTEST_NUMBER = 3
"""Digits without which a name is found among a shop's words only beside its memory: A10, L4, T4."""
_NOT_BESIDE = r"^(?!.*(?:gtx|rtx|geforce|nvidia|quadro|tesla)).*"
"""Begins what is another maker's card only where its name does not say the processor beside NVIDIA's."""
_OTHERS = (
    (
        re.compile(_NOT_BESIDE + r"(\b(amd|radeon|instinct|vega)\b|\brx-?\d{3,4}|\d{4}-?(xtx?|gre)\b|\bmi\d{2,3}x?\b)"),
        "is AMD's: to a torch for ROCm it looks like NVIDIA's, but frugan is untested there, and has no times for it",
    ),
    (
        re.compile(_NOT_BESIDE + r"\b(intel|arc|iris|uhd|a[357]\d0|b5[78]0)\b"),
        "is Intel's, which frugan does not use: training would run on the CPU",
    ),
    (re.compile(r"^(?!.*[gr]tx).*\b(mx|gt)-?\d{3,4}\b"), "is not in the table of cards, nor one like it"),
)
"""What no key of the table may be taken for, and what is said of it."""


def _written(name: str) -> str:
    """A name in small letters of one alphabet, "-" between its words: "RTX™3060Ti 8G O系列" is rtx-3060-ti-8gb-o-."""
    text = _LAPTOP.sub("-laptop-", unicodedata.normalize("NFKC", re.sub("[™®©]", " ", name)).lower())
    text = re.sub(r"[^\x21-\x7e]+|[\s_/(),+-]+", "-", text)
    text = re.sub(r"(?<=gtx|rtx)(?=a?\d)|(?<=titan)(?=[xvr])|(?<=\d)(?=ti|super|laptop)|(?<=ti)(?=super|\d)", "-", text)
    # 4070S and 4070 Ti S, 3060M, 4090D
    text = re.sub(r"(?<=\d{4})-?s\b|(?<=\d-ti)-?s\b", "-super", text)
    text = re.sub(r"(?<=\d{4})m\b", "-laptop", text)
    text = re.sub(r"(?<=\d{4})(?=d\b)", "-", text)
    # O8G and A12G are boards of one maker with 8 and 12 GB; A10G is a card
    return re.sub(r"-+(?!a10g)[aost]?(\d+)-*g(i?b|o)?\b", r"-\1gb", text)


def _words(name: str) -> list[str]:
    """A name as the table writes it, memory with a unit: "NVIDIA GeForce RTX 4060Ti 16GB" is rtx, 4060, ti, 16gb."""
    return [word for word in _written(name).split("-") if word and word not in _UNTOLD]


def _find(name: str) -> str | None:
    """The key of a card, in the midst of a shop's words too; its memory, where the name says it, chooses the size."""
    sizes, told = _sizes(_words(name)) if _other(name) is None else ({}, [])
    if not told:
        return next(iter(sizes.values()), None)
    return next((sizes[gib] for gib in told if gib in sizes), None)


def _sizes(words: Sequence[str]) -> tuple[dict[int, str], list[int]]:
    """The one card that words name, in each size: its keys by memory in GiB, the commonest first.

    Returns:
        They, or none if the words name no card or several; and the memory that the words say, likeliest first.
    """
    is_laptop = "laptop" in words
    rest = [word for word in words if word != "laptop"]
    found, left, before, after = list[str](), list[str](), list[int](), list[int]()
    at = 0
    while at < len(rest):
        runs = ((rest[at:end], end) for end in range(min(len(rest), at + 4), at, -1))
        key, end = next(((key, end) for run, end in runs if (key := _key_of(run, laptop=is_laptop))), (None, at + 1))
        if key is not None and not _is_another(rest, at, end):
            found.append(key)
            if end < len(rest) and re.fullmatch(r"\d{1,2}", rest[end]):  # as the table writes memory
                after.append(int(rest[end]))
                end += 1
        elif memory := re.fullmatch(r"(\d+)gb", rest[at]):
            (after if found else before).append(int(memory[1]))
        else:
            left += rest[at:end]
        at = end
    told = after + before
    if len(set(found)) != 1 or _TELLING & {*left}:
        return {}, told
    key = found[0]
    keys = [known for known in PUBLISHED if re.fullmatch(rf"{re.escape(key)}(-\d+)?", known)]
    sizes = {PUBLISHED[known].gib: known for known in sorted(keys, key=lambda known: known != key)}
    strange = [word for word in left if not _MADE.fullmatch(word)]
    if strange and len(re.sub(r"\D", "", key)) < _SHORTEST_NUMBER and "titan" not in key and not {*told} & {*sizes}:
        return {}, told
    return sizes, told


def _is_another(words: Sequence[str], start: int, end: int) -> bool:
    """Whether the words around a card's make another one of it: RTX PRO 4000, RTX 4090 D."""
    return "pro" in words[max(0, start - 1) : start] or words[end : end + 1] == ["d"]


def _key_of(words: Sequence[str], *, laptop: bool) -> str | None:
    """The key of a card by the words of its name without its memory, its series said or not."""
    core = [word for word in words if word not in _SERIES]
    guesses = [["gtx"], ["rtx"], *([["quadro", "rtx"]] if len(core) < len(words) else []), []]
    for tried in (words, *([*series, *core] for series in guesses)):
        key = "-".join([*tried, "laptop"] if laptop else tried)
        if key in PUBLISHED and not re.search(r"-\d{1,2}$", key):
            return key
    return None


def _nearest(name: str) -> list[str]:
    """Keys of the cards nearest to a name: those of its number first, whatever else it says."""
    words = [word.removesuffix("gb") for word in _words(name)]
    numbers = {word for word in words if len(re.sub(r"\D", "", word)) > 2}
    same = [key for key in PUBLISHED if numbers & set(key.split("-"))]
    near = get_close_matches("-".join(words), PUBLISHED, n=5, cutoff=0.5)
    return list(dict.fromkeys([*same, *near]))[: max(5, len(same))]


def _why_unknown(name: str) -> str:
    """What to say of a name that is none of the table's."""
    sizes, told = _sizes(_words(name))
    if sizes:
        says = " or ".join(f"{gib} GB" for gib in dict.fromkeys(told))
        return f"says {says}, and {', '.join(f'{key} has {gib} GB' for gib, key in sizes.items())}"
    if near := _nearest(name):
        return f"is not known; the nearest are {', '.join(near)}"
    return f"is not known; known are {first_names(list(PUBLISHED), 8)} (docs/your-card.md names them)"


def _other(name: str) -> str | None:
    """What is said of another maker's card, or of one of a series that the table does not have; None: it is neither."""
    return next((said for pattern, said in _OTHERS if pattern.search(_written(name))), None)


def named_card(name: str) -> Card:
    """A card by its maker's name: "rtx-3060", "RTX 3060", "3060"; with the memory that its driver leaves.

    Raises:
        BadInput: not among those that are known.
    """
    if (other := _other(name)) is not None:
        raise BadInput(
            f'card {name!r} {other}. Give its memory instead, such as --memory 6GiB (memory="6GiB" in Python)'
        )
    key = _find(name)
    if key is None:
        raise BadInput(
            f"card {name!r} {_why_unknown(name)}. For another one, give its memory instead, such as --memory 6GiB "
            '(memory="6GiB" in Python); '
            "on a machine with the card, `frugan plan --calibrate` measures it"
        )
    return PUBLISHED[key].card(key)


def card_here(name: str, memory_bytes: int, capability: tuple[int, int]) -> Card:
    """The card of this machine, by what its driver says of it.

    Its speeds are those of the published card that its name begins with ("NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX
    3080 Laptop GPU"), of the size that is nearest, else those of `UNNAMED`.
    """
    key = "-".join(_words(name))
    begins = [known for known in PUBLISHED if key == known or key.startswith(f"{known}-")]
    if begins:
        longest = max(begins, key=len)
        sizes = [known for known in PUBLISHED if re.fullmatch(rf"{re.escape(longest)}(-\d+)?", known)]
        like = min(sizes, key=lambda known: abs(PUBLISHED[known].gib * GIB - memory_bytes))
        card = PUBLISHED[like].card(name)
    else:
        like, card = UNNAMED, unnamed_card()
    figures_of = card.figures_of or (like if _find(name) is None else None)
    in_laptop = card.in_laptop or "laptop" in _words(name)
    here = replace(card, name=name, memory_bytes=memory_bytes, capability=capability, figures_of=figures_of)
    return replace(here, in_laptop=in_laptop)


def unnamed_card() -> Card:
    """A card of which nothing is known but a budget; bf16 is taken to be as fast as fp16."""
    like = PUBLISHED[UNNAMED].card("a card with half-precision units")
    return Card(
        name=like.name,
        memory_bytes=None,
        macs_per_s={**like.macs_per_s, "bf16": like.macs_per_s["fp16"]},
        bytes_per_s=like.bytes_per_s,
    )


DESKTOP_BYTES = GIB
"""Guess for what a desktop takes on the card that draws it, a browser included: from 0.8 to 1.1 GiB where people have
written it down (benchmarks/published/card-memory.json)."""

MARGIN = 0.05
"""Share of what is free that is left alone: a desktop's windows come and go."""
LEAST_MARGIN_BYTES = 200 * MIB


class TooSmall(BadInput):
    """A budget in which nothing can be trained."""


@dataclass(frozen=True)
class Budget:
    """Memory of a card for one process."""

    total_bytes: int  # for everything
    context_bytes: int  # of it, outside torch's allocator
    workspace_bytes: int  # of it, for libraries within torch's allocator

    @classmethod
    def on(cls, card: Card, total_bytes: int) -> "Budget":
        """A budget on a card."""
        return cls(total_bytes, card.context_bytes, card.workspace_bytes)

    @property
    def step_bytes(self) -> int:
        """Bytes that a step's own tensors may make the allocator reserve."""
        return self.total_bytes - self.context_bytes - self.workspace_bytes

    def check(self, parameter_bytes: int) -> None:
        """Refuse a budget in which nothing can be trained.

        Raises:
            TooSmall: the fp32 parameters alone do not fit.
        """
        if self.step_bytes < parameter_bytes:
            raise TooSmall(
                f"a budget of {show_size(self.total_bytes)}: the parameters alone take {show_size(parameter_bytes)}, "
                f"CUDA and its libraries {show_size(self.context_bytes + self.workspace_bytes)}, and training several "
                "times as much; without a budget you are shown what it takes, down to the smallest plan"
            )

    def enforce(self, device: torch.device) -> None:
        """Cap this process on a card: what would go beyond fails here and leaves other programs alone.

        The cap counts what torch's allocator reserves, not the context, so that is taken off.
        """
        accelerator_of(device).limit(self.total_bytes - self.context_bytes)


def free_bytes(device: torch.device) -> tuple[int, int]:
    """Return the bytes that a process may plan with on a card by default, and what the card has in all.

    What is free now, and what this process's allocator holds without use, less a margin. CUDA's context and the
    libraries of a training step are loaded first: they take their memory when they are first used.
    """
    load_libraries(device)
    card = accelerator_of(device)
    usable = card.free_bytes + card.reserved_bytes - card.live_bytes
    return usable - max(LEAST_MARGIN_BYTES, int(MARGIN * usable)), card.total_bytes


def room_bytes(device: torch.device) -> int:
    """Return the bytes that the allocator of this process may come to reserve on a card: its own, and what is free."""
    card = accelerator_of(device)
    return card.free_bytes + card.reserved_bytes


def outside_bytes(device: torch.device) -> int:
    """Return the bytes taken outside torch's allocator: by CUDA's context with its libraries, and by other programs."""
    card = accelerator_of(device)
    return max(0, card.total_bytes - card.free_bytes - card.reserved_bytes)


def load_libraries(device: torch.device) -> None:
    """Run a convolution and a product, forward and backward, and give back what they took from the allocator."""
    x = torch.zeros(1, 8, 8, 8, device=device, requires_grad=True)
    out = F.conv2d(x, torch.zeros(8, 8, 3, 3, device=device), padding=1).flatten(1) @ torch.zeros(512, 8, device=device)
    out.sum().backward()
    accelerator_of(device).synchronize()
    accelerator_of(device).give_back()


def spills(system: str | None = None, release: str | None = None) -> bool:
    """Whether a driver here moves a full card's memory to the computer's, which is slow: Windows's, also under WSL2.

    There no error comes, so nothing would look for a smaller plan; under WSL2 the driver's setting against it is not
    obeyed.

    Args:
        system, release: of the operating system; None: of this one.
    """
    release = platform.release() if release is None else release
    return (platform.system() if system is None else system) == "Windows" or "microsoft" in release.lower()


def is_spilling(device: torch.device) -> bool:
    """Whether the driver has begun to move a full card's memory to the computer's."""
    card = accelerator_of(device)
    if not card.is_card or not spills():
        return False
    return card.free_bytes < 0.01 * card.total_bytes
