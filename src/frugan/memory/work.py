"""Work of a training step: arithmetic, traffic and operations, counted while it runs on real or on fake tensors."""

from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from frugan.memory.counting import MacCounter, TrafficCounter, tensors_in


@dataclass(frozen=True)
class Work:
    """An amount of work.

    Attributes:
        macs: multiply-accumulates of convolutions, matrix products and attention.
        bytes_moved: inputs and outputs of every operation.
        operations: that move something; each is about one kernel to be started.
        host_bytes: moved between host and device, apart from pictures.
        fp32_macs: of `macs`, those on fp32 numbers, whatever the working weights are; predictions made before this was
            counted have 0.
    """

    macs: float = 0
    bytes_moved: float = 0
    operations: float = 0
    host_bytes: float = 0
    fp32_macs: float = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Work") -> "Work":
        return Work(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, factor: float) -> "Work":
        return Work(*(factor * each for each in astuple(self)))


class WorkCounter(TorchDispatchMode):
    """Adds up what runs inside.

    Attributes:
        work: so far.
        host_bytes: moved between host and device, as those who move it say.
    """

    def __init__(self) -> None:
        super().__init__()
        self._flops = MacCounter().flop_registry
        self._traffic = TrafficCounter()
        self._operations = 0
        self._macs = 0
        self._fp32_macs = 0
        self.host_bytes = 0

    @property
    def work(self) -> Work:
        """So far."""
        return Work(self._macs, self._traffic.bytes_moved, self._operations, self.host_bytes, self._fp32_macs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it."""
        out = func(*args, **(kwargs or {}))
        self.count(func, args, kwargs or {}, out)
        return out

    def count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Count an operation that has run."""
        self.add(self.cost_of(func, args, kwargs, out))

    def cost_of(self, func: Any, args: Any, kwargs: Any, out: Any) -> tuple[int, int, int]:
        """Bytes that an operation moves, its multiply-accumulates, and those of them on fp32 numbers."""
        moved_bytes = self._traffic.traffic_of(func, (args, kwargs), out)
        if (count := self._flops.get(func._overloadpacket)) is None:
            return moved_bytes, 0, 0
        macs = count(*args, **kwargs, out_val=out) // 2
        return moved_bytes, macs, macs if tensors_in(args)[0].dtype == torch.float32 else 0

    def add(self, cost: tuple[int, int, int]) -> None:
        """Count an operation of known cost."""
        moved_bytes, macs, fp32_macs = cost
        self._traffic.bytes_moved += moved_bytes
        self._operations += moved_bytes > 0
        self._macs += macs
        self._fp32_macs += fp32_macs
