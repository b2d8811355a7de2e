"""Whether this build of torch has kernels for a card, and which build has.

A build holds binaries ("sm_86": for 8.6 and later ones of the same major number) and sometimes code that the driver
compiles when it is first used ("compute_90": for 9.0 and everything later). A card that has neither is there, takes
memory and fails at its first kernel.
"""

import re
import shutil
import warnings
from collections.abc import Sequence
from typing import Any

import torch

Capability = tuple[int, int]

BUILDS: tuple[tuple[str, Capability, Capability], ...] = (("cu130", (7, 5), (12, 99)), ("cu126", (5, 0), (9, 99)))
"""Builds that torch 2.11 to 2.13 are published in, and the first and last capability that each has kernels for."""


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


def not_served(index: int) -> str | None:
    """Why this torch cannot run on a card that is there, and which build can; None: it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says the same in twenty lines when it first looks at the card
        capability = torch.cuda.get_device_capability(index)
        name = torch.cuda.get_device_name(index)
    built_for = torch.cuda.get_arch_list()
    if has_kernels(capability, built_for):
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
    found = [re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch) for arch in built_for]
    if not found or None in found:
        return True
    return any(_runs(capability, *match.groups()) for match in found if match is not None)


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
    if device.type != "cuda":
        return None
    whole = torch.cuda.get_device_properties(device).total_memory
    return {"name": torch.cuda.get_device_name(device), "memory_bytes": whole}
