"""Variables of the environment that nobody reads because they are misspelt."""

import difflib
import os
import re
from collections.abc import Mapping
from types import MappingProxyType

from frugan.api.doctor.finding import Finding

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
    "FRUGAN_SHARDS",
    "FRUGAN_SHARDS_MOST",
    "FRUGAN_INCEPTION",
)
"""Variables that torch, NVIDIA's libraries or frugan read, and that people set by hand."""
ALIKE = 0.9
"""Share of characters that two names have in common from which on one is taken for the other. NCCL alone reads dozens
of names, of which some are alike to 0.84."""
MISTAKEN: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("CUDA_DEVICES", "CUDA_DEVICE_VISIBLE", "CUDA_VISIBLE", "CUDA_VISIBLE_GPUS", "VISIBLE_CUDA_DEVICES"), CARDS
    )
)
"""Further off than that, and seen all the same."""
CHANGES_TRAINING = ("CUDA_LAUNCH_BLOCKING",)
"""Debugging aids that are left on by mistake: each kernel is waited for."""


def misspelt(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that are set -> what they were probably meant to be."""
    found = {}
    for name in sorted(environment):
        if name in READ:
            continue
        if name.upper() in READ:
            found[name] = name.upper()
        elif name.upper() in MISTAKEN:
            found[name] = MISTAKEN[name.upper()]
        elif close := difflib.get_close_matches(name.upper(), READ, n=1, cutoff=ALIKE):
            found[name] = close[0]
    return found


def environment_findings(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """What is set, and what is misspelt."""
    given = {name: environment[name] for name in READ if name in environment and not name.startswith("FRUGAN_")}
    line = ", ".join(f"{name}={value}" for name, value in given.items()) or "nothing set that concerns training"
    slow = [name for name in CHANGES_TRAINING if environment.get(name) not in (None, "", "0")]
    found = [
        Finding(
            "environment",
            "limited" if slow else "fine",
            line,
            f"unset {slow[0]}: with it the host waits for every kernel" if slow else None,
            {"set": {name: _without_identity(value) for name, value in given.items()}},
        )
    ]
    for name, meant in misspelt(environment).items():
        found.append(
            Finding(
                "environment",
                "limited",
                f"{name} is set, which nothing reads",
                f"did you mean {meant}? Set that one, and unset {name}",
                {"misspelt": name, "meant": meant},
            )
        )
    return found


def _without_identity(value: str) -> str:
    """A value without the numbers by which one card in the world is known."""
    return re.sub(r"\b(GPU|MIG)-[0-9A-Fa-f-]+", r"\1-…", value)
