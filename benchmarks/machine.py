"""What machine a figure was measured on."""

import os
import platform
from pathlib import Path

import torch

from frugan.accelerator.base import Processor


def describe_machine() -> dict[str, object]:
    """Processor or card, torch, and threads."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "bf16_units": Processor(torch.device("cpu")).has_bf16_units,
        "amx": bool(torch.cpu._is_amx_tile_supported()),
        "card": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": str(torch.__version__),
        "system": platform.platform(),
    }
