"""Which device to use, and why: what torch can do there, which rank takes which, and the computer's memory."""

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
"""Those that people set by hand."""
ALIKE = 0.9
"""Share of characters that two names have in common from which on one is taken for the other. NCCL alone reads dozens
of names, of which some are alike to 0.84."""
MISTAKEN: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("CUDA_DEVICES", "CUDA_DEVICE_VISIBLE", "CUDA_VISIBLE", "CUDA_VISIBLE_GPUS", "VISIBLE_CUDA_DEVICES"), CARDS
    )
)
"""Further off than that, and seen all the same."""


def misspelt(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that are set -> what they were probably meant to be."""
    meant = {}
    for name in sorted(environment):
        if name in READ:
            continue
        if name.upper() in READ:
            meant[name] = name.upper()
        elif name.upper() in MISTAKEN:
            meant[name] = MISTAKEN[name.upper()]
        elif close := difflib.get_close_matches(name.upper(), READ, n=1, cutoff=ALIKE):
            meant[name] = close[0]
    return meant


Capability = tuple[int, int]

BUILDS: tuple[tuple[str, Capability, Capability], ...] = (("cu130", (7, 5), (12, 99)), ("cu126", (5, 0), (9, 99)))
"""Builds that torch 2.11 to 2.13 are published in, and the first and last capability that each has kernels for.

A build holds binaries ("sm_86": for 8.6 and later ones of the same major number) and sometimes code that the driver
compiles when it is first used ("compute_90": for 9.0 and everything later). A card that has neither is there, takes
memory and fails at its first kernel."""


def cpu_build(*, wanted: bool) -> str | None:
    """That this torch is built for CPUs alone; None: it is not.

    Args:
        wanted: a card is asked for, so how to get another build is said as well; where none is, only if its driver is
            there.
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
    """Why this torch cannot run on a card that is there, and which build can; None: it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says the same in twenty lines when it first looks at the card
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
    """The newest published build with kernels for a compute capability; None: there is none any more."""
    return next((name for name, first, last in BUILDS if first <= capability <= last), None)


def has_kernels(capability: Capability, built_for: Sequence[str]) -> bool:
    """Whether a build that was made for "sm_80", "compute_90" … runs on a card of a compute capability.

    Names that are no NVIDIA ones (AMD's "gfx90a") are not judged, nor is a build that names none.
    """
    matches = [re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch) for arch in built_for]
    if not matches or None in matches:
        return True
    return any(_runs(capability, *match.groups()) for match in matches if match is not None)


def _runs(capability: Capability, kind: str, major: str, minor: str, limit: str) -> bool:
    made_for = int(major), int(minor)
    if limit == "a":  # with instructions of this one capability
        return capability == made_for
    if kind == "compute" and not limit:
        return capability >= made_for
    return capability[0] == made_for[0] and capability[1] >= made_for[1]


def _install(build: str) -> str:
    version = str(torch.__version__).partition("+")[0]
    return f"torch {version} in its {build} build, by the command of PyTorch's own install selector (Get started)"


def card_identity(device: torch.device) -> dict[str, Any] | None:
    """A card's name and memory, by which a plan is known to be one for it; None: no card."""
    own = accelerator_of(device)
    return {"name": own.name, "memory_bytes": own.total_bytes} if own.is_card else None


def choose_device(asked: str = "auto") -> tuple[torch.device, str]:
    """The device, and why.

    Raises:
        BadInput: no such device here, or this torch has no kernels for it.
    """
    if asked == "auto":
        return _automatic()
    kind = asked.partition(":")[0]
    try:
        own = accelerator_class(kind)
        device = torch.device(asked)
    except (BadInput, RuntimeError) as error:
        kinds = ", ".join(f"{each} or {each}:N" for each in kinds_of_cards())
        raise BadInput(f"--device {asked}: expected auto, cpu, {kinds}") from error
    if not own.is_card:
        return device, "asked for"
    if kind == Cuda.kind and (reason := cpu_build(wanted=True)):
        raise BadInput(f"--device {asked}: {reason}")
    if (device.index or 0) >= own.count():
        seen = f"--device {asked}: this torch ({torch.__version__}) sees {count(own.count(), f'{kind.upper()} card')}"
        raise BadInput(f"{seen}; {_what_the_driver_sees()}" if kind == Cuda.kind else seen)
    card = own(torch.device(kind, own.current() if device.index is None else device.index))
    if reason := not_served(card):
        raise BadInput(f"--device {asked}: {reason}; or train on the CPU: --device cpu")
    return card.device, "asked for"  # with an index: what torch wants where it sets or caps a device


def _what_the_driver_sees() -> str:
    """How to find out, of cards that torch calls CUDA's: AMD's are among them."""
    if torch.version.hip is not None:
        return "`rocm-smi` says whether the driver sees more"
    return "`nvidia-smi` says whether the driver sees more, and which CUDA version it serves"


def misspelt_cards() -> str | None:
    """What to say of a variable that is nearly CUDA_VISIBLE_DEVICES, and that nothing reads; None: nothing."""
    near = [name for name, meant in misspelt(os.environ).items() if meant == CARDS]
    return f"{near[0]} is set, and nothing reads it: the variable is {CARDS}" if near else None


def use_device(asked: str = "auto") -> tuple[torch.device, str]:
    """As `choose_device`, and a card becomes torch's current one: some of its kernels and libraries look no further,
    and would take memory on the first card as well.

    Raises:
        BadInput: as `choose_device`.
    """
    device, why = choose_device(asked)
    accelerator_of(device).use()
    return device, why


def _automatic() -> tuple[torch.device, str]:
    """The current card, or the first that this torch has kernels for; the CPU where there is none."""
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


def device_of_rank(asked: str, place: Place) -> torch.device:
    """The card or processor of this rank; a card becomes torch's current one before anything is done on it.

    No rank sets CUDA_VISIBLE_DEVICES: where a launcher has, and leaves each rank one card, that is the rank's.

    Raises:
        BadInput: there is no card for this rank, or one is named for all of them.
    """
    if asked not in ("auto", "cpu", *kinds_of_cards()):
        chosen = f"; choose the cards with {CARDS}" if asked.partition(":")[0] == Cuda.kind else ""
        raise BadInput(
            f"--device {asked}: {place.size} ranks take a card each: expected auto, {', '.join(kinds_of_cards())} or "
            f"cpu{chosen}"
        )
    here = automatic_cards() if asked == "auto" else []
    kind = here[0].kind if here else asked
    if kind in ("auto", "cpu"):
        return torch.device("cpu")
    there = accelerator_class(kind).count()
    index = 0 if there == 1 else place.local_rank
    if index >= there:
        cards = count(there, f"{kind.upper()} card")
        raise BadInput(
            f"rank {place.rank}: this machine has {place.local_size} ranks and {cards}; start it with "
            f"--nproc-per-node={there}, or train on processors: --device cpu"
        )
    device, _ = choose_device(f"{kind}:{index}")
    accelerator_of(device).use()
    return device


def ranks_in_words(ranks: "RankGroup") -> str:
    """The line that says who trains together."""
    line = f"ranks: {ranks.size}, {ranks.local_size} of them on this machine; this is {ranks.watch.names[0]}"
    own = accelerator_of(ranks.device)
    if not own.is_card:
        return f"{line} on a processor, over gloo"
    seen = os.environ.get(CARDS) if own.kind == Cuda.kind else None
    which = f", of {CARDS}={seen}" if seen else ""
    return f"{line} on {ranks.device} ({own.name}{which}), over {own.collectives.upper()}"


@contextmanager
def joined_ranks(asked: str, shares: str | None, say: Callable[[str], None]) -> Iterator[tuple[Ranks, str]]:
    """The processes that train together, and what this one trains on.

    Args:
        asked: device, as it is for one process.
        shares: of the batch that are asked for, as `--shares` has them; None: none are.
        say: is told on the first rank who they are.

    Raises:
        BadInput: there is no such device for this rank, or another number of shares than ranks.
    """
    place = Place.here()
    if place.alone:
        yield OneRank(), asked
        return
    from frugan.engine.ranks.joining import joined  # noqa: PLC0415  (one process needs no torch.distributed)

    if shares is not None:
        parse_shares(shares, place.size)
    device = device_of_rank(asked, place)
    with joined(place, device) as ranks:
        if ranks.rank == 0:
            say(ranks_in_words(ranks))
        yield ranks, str(device)


CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def physical_bytes() -> int | None:
    """Return the memory of this computer; None where the system does not say (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def container_limit(file: Path = CGROUP_LIMIT) -> int | None:
    """Return what the container may take; None: there is none, or no limit."""
    try:
        return int(file.read_text("utf-8"))
    except (OSError, ValueError):  # no such file, or "max"
        return None


def host_bytes() -> int | None:
    """Return what a process here may take: the computer's memory or its container's limit, whichever is less."""
    return min((each for each in (physical_bytes(), container_limit()) if each is not None), default=None)


def explain_out_of_memory(device: torch.device, what: str) -> AbstractContextManager[None]:
    """Say in a sentence that memory ran out while `what`.

    Raises:
        TrainingFailed: it did.
    """
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
