"""Base of all kernels in Triton, and tensors that they are tried with."""

import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from frugan.accelerator.choice import accelerator_of
from frugan.contract.kernel import Kernel

CLAMP = 0.7
"""Clamp of activations that are tried."""


class TritonKernel(Kernel):
    """Operations whose kernels Triton makes."""

    @staticmethod
    def missing(device: torch.device) -> str | None:
        return missing_triton(device)


def missing_triton(device: torch.device) -> str | None:
    """Say what Triton lacks here to compile and start kernels on a CUDA card; None: nothing."""
    if find_spec("triton") is None:
        package = "triton-windows" if os.name == "nt" else "'frugan[kernels]'"
        return f"a card's kernels are made with Triton, which is not installed: pip install {package}"
    capability = accelerator_of(device).capability
    if torch.version.cuda is not None and capability is not None and capability < (7, 0):
        return "Triton needs a card of compute capability 7.0 or newer, not {}.{}".format(*capability)
    return None if os.name == "nt" else _missing_for_launchers()  # Triton brings a compiler for Windows


def _missing_for_launchers() -> str | None:
    """Say what Triton lacks to build its launchers in C; None: nothing."""
    compiler = os.environ.get("CC")
    if not any(shutil.which(name) for name in ([compiler] if compiler else ["cc", "gcc", "clang"])):
        return f"Triton starts its kernels by programs in C, and found no compiler ({compiler or 'cc, gcc or clang'})"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "Triton starts its kernels by programs in C, and Python.h is missing: install this Python's headers"
    return None


# Tensors that kernels are tried with, the same numbers every time.


def some_map(shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device) -> Tensor:
    """Numbers from -3 to 3, neighbours far from each other."""
    count = torch.Size(shape).numel()
    x = torch.linspace(-3, 3, count, device=device)[torch.arange(count, device=device) * 7919 % count].view(shape)
    return x.to(dtype).contiguous(memory_format=layout)


def some_bias(channels: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[channels] from -1 to 1."""
    return torch.linspace(-1, 1, channels, device=device, dtype=dtype)


def some_factors(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Factors of a map's channels [N, C], from 0.5 to 2."""
    return torch.linspace(0.5, 2, shape[0] * shape[1], device=device, dtype=dtype).view(shape[:2])
