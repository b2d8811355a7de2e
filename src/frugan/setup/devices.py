"""Choice of the device, for one process or for ranks: what torch can run on, and how much memory a computer has."""

import difflib
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from frugan.accelerator.base import Accelerator
from frugan.accelerator.choice import accelerator_class, accelerator_of, automatic_cards, kinds_of_cards
from frugan.accelerator.cuda import Cuda
from frugan.accelerator.device import raise_out_of_memory_as
from frugan.engine.ranks.place import Place, parse_shares
from frugan.engine.ranks.ranks import OneRank, Ranks
from frugan.errors import BadInput
from frugan.stepmemory.cards import room_bytes
from frugan.wording import count, first_line, show_size

if TYPE_CHECKING:
    from frugan.engine.ranks.group import RankGroup

CARDS = "CUDA_VISIBLE_DEVICES"
READ = (
    CARDS,
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "NVIDIA_TF32_OVERRIDE",
    "NVIDIA_VISIBLE_DEVICES",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "HIP_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NCCL_DEBUG",
    "NCCL_P2P_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "FRUGAN_BASE",
    "FRUGAN_PREPARED",
    "FRUGAN_RUNS",
    "FRUGAN_MOMENTS",
    "FRUGAN_CACHE",
    "FRUGAN_INCEPTION",
    "FRUGAN_INCEPTION_TORCHVISION",
    "FRUGAN_DINOV2",
    "FRUGAN_CLIP",
    "FRUGAN_MIRROR",
)
"""Variables that people set by hand."""
ALIKE = 0.9
"""Share of common characters from which on a name counts as a misspelling of another. NCCL alone reads dozens of names,
of which some have 0.84 in common."""
MISTAKEN: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("CUDA_DEVICES", "CUDA_DEVICE_VISIBLE", "CUDA_VISIBLE", "CUDA_VISIBLE_GPUS", "VISIBLE_CUDA_DEVICES"), CARDS
    )
)
"""Misspellings with fewer common characters, which people make all the same -> the variable's name."""


def misspelt(environment: Mapping[str, str]) -> dict[str, str]:
    """Misspelt variables that are set -> the names that were probably meant."""
    intended = {}
    for name in sorted(environment):
        if name in READ:
            continue
        if name.upper() in READ:
            intended[name] = name.upper()
        elif name.upper() in MISTAKEN:
            intended[name] = MISTAKEN[name.upper()]
        elif close := difflib.get_close_matches(name.upper(), READ, n=1, cutoff=ALIKE):
            intended[name] = close[0]
    return intended


Capability = tuple[int, int]

BUILDS: tuple[tuple[str, Capability, Capability], ...] = (("cu130", (7, 5), (12, 99)), ("cu126", (5, 0), (9, 99)))
"""Published builds of torch 2.11 to 2.13, each with the first and last capability that it has kernels for.

A build holds binaries ("sm_86", for 8.6 and later ones of the same major number) and sometimes code that the driver
compiles when it is first used ("compute_90", for 9.0 and everything later). A card without either seems to work: it can
be seen and takes memory, but fails at the first kernel."""


def cpu_build(*, wanted: bool) -> str | None:
    """A line if this torch is built for CPUs alone; None: it is not.

    Args:
        wanted: whether a card is wanted. If so, or if there is a card's driver, the line tells how to get another
            build.
    """
    if torch.version.cuda is not None or torch.version.hip is not None:
        return None
    line = f"this torch ({torch.__version__}) is a CPU build"
    if not wanted and shutil.which("nvidia-smi") is None:
        return line
    newest, oldest = (name for name, *_ in BUILDS)
    return (
        f"{line}; for an NVIDIA card: {_install(newest)} "
        f"({oldest} instead of {newest} for cards before the GTX 16 and RTX 20 series)"
    )


def not_served(card: Accelerator) -> str | None:
    """Why this torch cannot run on an existing card, and which build can; None: it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says as much in twenty lines when it first looks at the card
        capability, name = card.capability, card.name
    built_for = card.built_for()
    if capability is None or has_kernels(capability, built_for):
        return None
    served = ", ".join(dict.fromkeys(f"{arch.partition('_')[2][:-1]}.{arch[-1]}" for arch in built_for))
    build = serving_build(capability)
    cure = f"one that serves it: {_install(build)}" if build else "no build of this version serves it"
    return (
        f"{name} has compute capability {capability[0]}.{capability[1]}, and this torch ({torch.__version__}) has no "
        f"kernels for it, only for {served}; {cure}"
    )


def serving_build(capability: Capability) -> str | None:
    """Newest published build with kernels for a compute capability; None: there is none any more."""
    return next((name for name, first, last in BUILDS if first <= capability <= last), None)


def has_kernels(capability: Capability, built_for: Sequence[str]) -> bool:
    """Whether a build for "sm_80", "compute_90" … runs on a card of a compute capability.

    True as well for a build that names other architectures than NVIDIA's (AMD's "gfx90a"), or none.
    """
    matches = [re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch) for arch in built_for]
    if not matches or None in matches:
        return True
    return any(_runs(capability, *match.groups()) for match in matches if match is not None)


def _runs(capability: Capability, kind: str, major: str, minor: str, limit: str) -> bool:
    target = int(major), int(minor)
    if limit == "a":  # it has instructions of this capability alone
        return capability == target
    if kind == "compute" and not limit:
        return capability >= target
    return capability[0] == target[0] and capability[1] >= target[1]


def _install(build: str) -> str:
    version = str(torch.__version__).partition("+")[0]
    return f"torch {version} in its {build} build, by the command of PyTorch's own install selector (Get started)"


def card_identity(device: torch.device) -> dict[str, Any] | None:
    """Name and memory of a card, by which a plan for it is recognised; None: the device is no card."""
    accelerator = accelerator_of(device)
    return {"name": accelerator.name, "memory_bytes": accelerator.total_bytes} if accelerator.is_card else None


def choose_device(name: str = "auto") -> tuple[torch.device, str]:
    """Choose a device, and say why it is this one.

    Args:
        name: as for `--device`.

    Raises:
        BadInput: there is no such device, or this torch has no kernels for it.
    """
    if name == "auto":
        return _automatic()
    kind = name.partition(":")[0]
    try:
        accelerator = accelerator_class(kind)
        device = torch.device(name)
    except (BadInput, RuntimeError) as error:
        kinds = ", ".join(f"{known} or {known}:N" for known in kinds_of_cards())
        raise BadInput(f"--device {name}: expected auto, cpu, {kinds}") from error
    if not accelerator.is_card:
        return device, "asked for"
    if kind == Cuda.kind and (reason := cpu_build(wanted=True)):
        raise BadInput(f"--device {name}: {reason}")
    if (device.index or 0) >= accelerator.count():
        cards = count(accelerator.count(), f"{kind.upper()} card")
        seen = f"--device {name}: this torch ({torch.__version__}) sees {cards}"
        raise BadInput(f"{seen}; {_how_to_see_cards()}" if kind == Cuda.kind else seen)
    card = accelerator(torch.device(kind, accelerator.current() if device.index is None else device.index))
    if reason := not_served(card):
        raise BadInput(f"--device {name}: {reason}; or train on the CPU: --device cpu")
    return card.device, "asked for"  # with an index, which torch needs to set or cap a device


def _how_to_see_cards() -> str:
    """Hint at the driver's tool for cards that torch calls CUDA's, among which are AMD's."""
    if torch.version.hip is not None:
        return "`rocm-smi` says whether the driver sees more"
    return "`nvidia-smi` says whether the driver sees more, and which CUDA version it serves"


def misspelt_cards() -> str | None:
    """A line on a misspelling of CUDA_VISIBLE_DEVICES that is set; None: there is none."""
    near = [name for name, intended in misspelt(os.environ).items() if intended == CARDS]
    return f"{near[0]} is set, and nothing reads it: the variable is {CARDS}" if near else None


def use_device(name: str = "auto") -> tuple[torch.device, str]:
    """Choose a device like `choose_device`, and make a card torch's current one.

    Some kernels and libraries look at the current card alone, and would take memory on the first one as well.

    Raises:
        BadInput: see `choose_device`.
    """
    device, why = choose_device(name)
    accelerator_of(device).use()
    return device, why


def _automatic() -> tuple[torch.device, str]:
    """Choose the current card, or the first that this torch has kernels for, or else the CPU."""
    cards = automatic_cards()
    if not cards:
        kinds = " or ".join(kind.upper() for kind in kinds_of_cards())
        return torch.device("cpu"), f"{cpu_build(wanted=False) or f'no {kinds} card is there'}; override with --device"
    reasons: list[str] = []
    for card in cards:
        if (reason := not_served(card)) is None:
            there = f"a {card.kind.upper()} card is there; override with --device"
            return card.device, "; ".join((*reasons, there))
        reasons.append(reason)
    return torch.device("cpu"), "; ".join(reasons)


def device_of_rank(name: str, place: Place) -> torch.device:
    """Choose the card or processor of this rank, and make a card torch's current one.

    No rank sets CUDA_VISIBLE_DEVICES: where a launcher has set it and leaves each rank one card, the rank takes that.

    Args:
        name: as for `--device`, without a number.
        place: this rank.

    Raises:
        BadInput: there is no card for this rank, or a single one is named for all ranks.
    """
    if name not in ("auto", "cpu", *kinds_of_cards()):
        chosen = f"; choose the cards with {CARDS}" if name.partition(":")[0] == Cuda.kind else ""
        raise BadInput(
            f"--device {name}: {place.size} ranks take a card each: expected auto, {', '.join(kinds_of_cards())} or "
            f"cpu{chosen}"
        )
    cards_here = automatic_cards() if name == "auto" else []
    kind = cards_here[0].kind if cards_here else name
    if kind in ("auto", "cpu"):
        return torch.device("cpu")
    total = accelerator_class(kind).count()
    index = 0 if total == 1 else place.local_rank
    if index >= total:
        cards = count(total, f"{kind.upper()} card")
        raise BadInput(
            f"rank {place.rank}: this machine has {place.local_size} ranks and {cards}; start it with "
            f"--nproc-per-node={total}, or train on processors: --device cpu"
        )
    device, _ = choose_device(f"{kind}:{index}")
    accelerator_of(device).use()
    return device


def ranks_in_words(ranks: "RankGroup") -> str:
    """A line on the processes that train together."""
    line = f"ranks: {ranks.size}, {ranks.local_size} of them on this machine; this is {ranks.watch.names[0]}"
    accelerator = accelerator_of(ranks.device)
    if not accelerator.is_card:
        return f"{line} on a processor, over gloo"
    seen = os.environ.get(CARDS) if accelerator.kind == Cuda.kind else None
    which = f", of {CARDS}={seen}" if seen else ""
    return f"{line} on {ranks.device} ({accelerator.name}{which}), over {accelerator.collectives.upper()}"


@contextmanager
def joined_ranks(device_name: str, shares: str | None, say: Callable[[str], None]) -> Iterator[tuple[Ranks, str]]:
    """Join the processes that train together; give them, and the name of this one's device.

    Args:
        device_name: as for `--device`.
        shares: each rank's share of the batch, as for `--shares`; None: not given.
        say: is told on the first rank who trains together.

    Raises:
        BadInput: there is no such device for this rank, or there are not as many shares as ranks.
    """
    place = Place.here()
    if place.alone:
        yield OneRank(), device_name
        return
    from frugan.engine.ranks.joining import joined  # noqa: PLC0415  (one process needs no torch.distributed)

    if shares is not None:
        parse_shares(shares, place.size)
    device = device_of_rank(device_name, place)
    with joined(place, device) as ranks:
        if ranks.rank == 0:
            say(ranks_in_words(ranks))
        yield ranks, str(device)


CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def physical_bytes() -> int | None:
    """Memory of this computer; None: the system does not say (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def container_limit(file: Path = CGROUP_LIMIT) -> int | None:
    """Memory limit of the container; None: there is no container, or no limit."""
    try:
        return int(file.read_text("utf-8"))
    except (OSError, ValueError):  # no such file, or "max"
        return None


def host_bytes() -> int | None:
    """Memory that a process here may take: the computer's memory or its container's limit, whichever is less."""
    return min((limit for limit in (physical_bytes(), container_limit()) if limit is not None), default=None)


def explain_out_of_memory(device: torch.device, what: str) -> AbstractContextManager[None]:
    """Raise TrainingFailed with a sentence where memory runs out, "while" `what`."""
    return raise_out_of_memory_as(
        lambda reason: (
            f"memory ran out while {what} ({first_line(reason)}){_room_left(device)}. Nothing is lost: "
            "close other programs that use the card and run the same command again, or choose a smaller recipe: "
            "`frugan plan` says which would fit"
        )
    )


def _room_left(device: torch.device) -> str:
    if not accelerator_of(device).is_card:
        return ""
    try:
        return f"; there is room for {show_size(room_bytes(device))} on the card"
    except RuntimeError:  # too full to be asked
        return ""
