"""The loss scale that fp16 needs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from frugan.accelerator.precision import Precision

LEAST_SCALE = 1.0
"""Smallest loss scale in fp16: a smaller one would only lose small gradients."""


@dataclass
class LossScale:
    """Dynamic loss scale of one optimizer, kept and moved on the device.

    `torch.amp.GradScaler` would do the same, but keeps its verdict (found_inf) to itself, and the verdict must also
    gate observations, EMA and counters without the host looking at it. Growth and backoff are GradScaler's.
    """

    scale: Tensor  # fp32 scalar; stays 1 unless `dynamic`
    good: Tensor  # updates without overflow since the scale last moved; fp32 scalar
    dynamic: bool  # True in fp16
    # whether an update was accepted at this scale or a higher one. Until then the host waits for each verdict, and an
    # update that overflows is repeated at half the scale (see `retry_until_finite`).
    found: bool

    @classmethod
    def create(cls, precision: Precision, device: torch.device) -> "LossScale":
        """Start at 65,536 in fp16, and stay at 1 otherwise."""
        dynamic = precision.name == "fp16"
        start = 65536.0 if dynamic else 1.0
        return cls(torch.full((), start, device=device), torch.zeros((), device=device), dynamic, found=not dynamic)

    @torch.no_grad()
    def move(self, accepted: Tensor, interval: int = 2000) -> None:
        """Halve after an overflow; double after `interval` updates without one."""
        if not self.dynamic:
            return
        self.good.add_(1).mul_(accepted)
        stays = self.good < interval
        self.good.mul_(stays)
        # doubled if accepted, halved unless it grows: factors of 2, so nothing is rounded
        self.scale.addcmul_(self.scale, accepted).addcmul_(self.scale, stays, value=-0.5).clamp_(min=LEAST_SCALE)
