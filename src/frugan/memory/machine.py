"""What this machine can do: its peak arithmetic and memory traffic, and how long something takes on it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_MATRIX = {"cuda": 8192, "cpu": 2048}
"""Side of the product: 2048 takes about 0.1 s on two cores, 8192 about 20 ms in fp32 on a large card."""

_COPY_BYTES = {"cuda": 2**30, "cpu": 2**28}
"""Far beyond the caches, and little beside the memory of such a device."""


@dataclass(frozen=True)
class Peaks:
    """What a device reaches.

    Attributes:
        macs_per_s: multiply-accumulates per second, in a big matrix product.
        bytes_per_s: bytes read plus bytes written per second, in a big copy.
    """

    macs_per_s: float
    bytes_per_s: float


def measure_peaks(device: torch.device | str, dtype: torch.dtype = torch.float32) -> Peaks:
    """Measure a device's peaks, in a second or two.

    Args:
        device: "cpu" or "cuda"; any other kind is measured like "cpu".
        dtype: of the matrices; cards and newer processors multiply half precision several times faster than fp32.
    """
    device = torch.device(device)
    side = _MATRIX.get(device.type, _MATRIX["cpu"])
    a, b = (torch.full((side, side), 0.5, dtype=dtype, device=device) for _ in range(2))
    product = torch.empty_like(a)
    product_seconds = measure_latency(lambda: torch.mm(a, b, out=product), device)
    copied_bytes = _COPY_BYTES.get(device.type, _COPY_BYTES["cpu"])
    source = torch.ones(copied_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copy_seconds = measure_latency(lambda: target.copy_(source), device)
    return Peaks(side**3 / product_seconds, 2 * copied_bytes / copy_seconds)


def measure_latency(
    call: Callable[[], object], device: torch.device | str, *, repeats: int = 10, budget_seconds: float = 1.0
) -> float:
    """Time a call: the least of several runs, which other users of the machine disturb least.

    Args:
        call: what to time; run once before, to warm up.
        device: where its work is queued; waited for if it is a CUDA device.
        repeats: runs at most.
        budget_seconds: no further run is begun after so long; at least two are timed.

    Returns:
        Seconds.
    """
    device = torch.device(device)

    def timed() -> float:
        _wait(device)
        begun = time.perf_counter()
        call()
        _wait(device)
        return time.perf_counter() - begun

    timed()
    times = [timed(), timed()]
    while len(times) < repeats and sum(times) < budget_seconds:
        times.append(timed())
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
