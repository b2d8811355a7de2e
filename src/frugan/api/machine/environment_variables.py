"""Variables of the environment that torch, NVIDIA's libraries or frugan read, and how people misspell them."""

import difflib
from collections.abc import Mapping
from types import MappingProxyType

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
