"""Interface of a kernel: operations under one name, which are tried, and used or left out, together."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from frugan.contract.ops import Ops

Call = Callable[..., Tensor]
"""A function of tensors, with the operations to compute by as keyword `ops`."""


class Kernel(Ops):
    """Base of operations by kernels for CUDA cards; its entry point's name is the kernel's name.

    Attributes:
        timed: shape that `case` is timed with: 32 MiB of halves, a layer of 256 pixels at a micro-batch of 4.
    """

    timed: ClassVar[tuple[int, ...]] = (4, 64, 256, 256)

    @staticmethod
    def case(
        shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
    ) -> tuple[Call, list[Tensor]]:
        """Return a call that the kernel is compared and timed with, and its tensors, which all take gradients.

        Args:
            shape: shape of a map [N, C, H, W], or of what a kernel takes in its place.
            dtype: data type of the maps.
            layout: memory format of the maps.
        """
        raise NotImplementedError("a kernel must define case")

    @staticmethod
    def missing(device: torch.device) -> str | None:
        """Say what this machine lacks to compile and start the kernel on a CUDA card; None: nothing."""
        raise NotImplementedError("a kernel must define missing")
