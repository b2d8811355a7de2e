"""Interface of kernels: operations under one name, which are tried, and used or left out, as a whole."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from frugan.contract.ops import Ops

Call = Callable[..., Tensor]
"""Takes tensors, and operations to compute by as `ops`."""


class Kernel(Ops):
    """Operations by kernels for CUDA cards; the entry point that leads to a subclass gives the name that it goes by.

    Attributes:
        timed: the shape that `case` is timed with: 32 MiB of halves, a layer of 256 pixels at a micro-batch of 4.
    """

    timed: ClassVar[tuple[int, ...]] = (4, 64, 256, 256)

    @staticmethod
    def case(
        shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, device: torch.device
    ) -> tuple[Call, list[Tensor]]:
        """Return a call that the kernel is compared and timed with, and tensors for it, which all take gradients.

        Args:
            shape: of a map [N, C, H, W], or what stands for one.
            dtype, layout: of such maps.
        """
        raise NotImplementedError("a kernel must define case")

    @staticmethod
    def missing(device: torch.device) -> str | None:
        """Say what is missing here to compile and start the kernel on a CUDA card; None: nothing."""
        raise NotImplementedError("a kernel must define missing")
