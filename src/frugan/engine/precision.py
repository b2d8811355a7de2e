"""Precision of the working weights, and the loss scale that fp16 needs."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

PrecisionName = Literal["auto", "fp32", "fp16", "bf16"]


@dataclass(frozen=True)
class Precision:
    """A resolved precision.

    Attributes:
        name: "fp32", "fp16" or "bf16".
        dtype: of the working weights.
        reason: why, for the line that says so.
        warning: what speaks against it, or None.
    """

    name: Literal["fp32", "fp16", "bf16"]
    dtype: torch.dtype
    reason: str
    warning: str | None = None


def cpu_has_bf16_units() -> bool:
    """Whether this CPU multiplies bf16 matrices in hardware (AMX or AVX512-BF16)."""
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def resolve_precision(asked: PrecisionName, device: torch.device) -> Precision:
    """Decide "auto" by what the hardware multiplies fast, and say why.

    CUDA goes by compute capability: 8.0 and newer bf16, 7.x fp16, older fp32. `torch.cuda.is_bf16_supported()` is of no
    use here: it is also true where bf16 is emulated.
    """
    if asked == "auto":
        return _automatic(device)
    if asked == "fp32":
        return Precision("fp32", torch.float32, "asked for")
    if asked == "bf16":
        slow = device.type == "cpu" and not cpu_has_bf16_units()
        warning = "this CPU has no bf16 units: slower than fp32; precision = auto decides by that" if slow else None
        return Precision("bf16", torch.bfloat16, "asked for", warning)
    slow = device.type == "cpu"
    warning = "a CPU computes fp16 far slower than fp32; precision = fp32 or auto is faster here" if slow else None
    return Precision("fp16", torch.float16, "asked for", warning)


def _automatic(device: torch.device) -> Precision:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        capability = f"compute capability {major}.{minor}"
        if major >= 8:
            return Precision("bf16", torch.bfloat16, f"{capability} has bf16 matrix units")
        if major == 7:
            return Precision("fp16", torch.float16, f"{capability} has fp16 matrix units and no bf16")
        return Precision("fp32", torch.float32, f"{capability} has no half-precision matrix units")
    if device.type == "cpu" and cpu_has_bf16_units():
        return Precision("bf16", torch.bfloat16, "this CPU has bf16 matrix instructions")
    return Precision("fp32", torch.float32, f"no known half-precision units on this {device.type}")


def accumulate_in_fp32() -> None:
    """Let half-precision matrix products add up in fp32 on CUDA, in this process; torch's default allows less."""
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


@dataclass
class LossScale:
    """Dynamic loss scale of one optimizer, kept and moved on the device.

    `torch.amp.GradScaler` would do the same, but keeps its verdict (found_inf) to itself, and the verdict must also
    gate observations, EMA and counters without the host looking at it. Growth and backoff are GradScaler's.

    Attributes:
        scale: fp32 scalar; stays 1 unless `dynamic`.
        good: updates without overflow since the scale last moved; fp32 scalar.
        dynamic: True in fp16.
        found: whether an update was accepted at this scale or a higher one. Until then the host waits for each verdict,
            and an update that overflows is repeated at half the scale (see `Step`).
    """

    scale: Tensor
    good: Tensor
    dynamic: bool
    found: bool

    @classmethod
    def create(cls, precision: Precision, device: torch.device) -> "LossScale":
        """Scale 65,536 in fp16, 1 elsewhere."""
        dynamic = precision.name == "fp16"
        start = 65536.0 if dynamic else 1.0
        return cls(torch.full((), start, device=device), torch.zeros((), device=device), dynamic, found=not dynamic)

    @torch.no_grad()
    def move(self, accepted: Tensor, interval: int = 2000) -> None:
        """Halve after an overflow; double after `interval` updates without one."""
        if not self.dynamic:
            return
        good = torch.where(accepted, self.good + 1, 0.0)
        grown = good >= interval
        factor = torch.where(accepted, torch.where(grown, 2.0, 1.0), 0.5)
        self.scale.mul_(factor).clamp_(min=1.0)
        self.good.copy_(torch.where(grown, 0.0, good))
