"""A processor, and tensors without data: no memory and no queue of their own."""

import platform
import sys
from dataclasses import dataclass
from typing import ClassVar

import torch

from frugan.engine.accelerator.base import Accelerator


@dataclass(frozen=True)
class Processor(Accelerator):
    """The computer's own."""

    kind: ClassVar[str] = "cpu"
    is_card: ClassVar[bool] = False
    collectives: ClassVar[str] = "gloo"
    fp32_channels_last: ClassVar[bool] = True

    @classmethod
    def count(cls) -> int:
        """See `Accelerator`."""
        return 1

    @property
    def name(self) -> str:
        """See `Accelerator`."""
        return platform.processor() or platform.machine() or "CPU"

    @property
    def has_bf16_units(self) -> bool:
        """Whether it has AMX or AVX512-BF16; tensors without data have nothing."""
        fast = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
        return self.device.type == "cpu" and bool(fast)

    @property
    def peak_bytes(self) -> int | None:
        """Most that this process ever held; None where the system does not say (Windows)."""
        try:
            import resource  # noqa: PLC0415  (not on Windows)
        except ImportError:
            return None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
