"""Filters of torch's in two ways, in milliseconds: python benchmarks/filter_ways.py [DEVICE]

As many groups as channels, or one channel at a time [N·C, 1, H, W], which costs two copies where maps are in
channels-last. On processors the first is the faster one; what a card without Triton prefers only a card can tell.
"""

import json
import sys
from collections.abc import Callable, Iterator
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.stepmemory.calibration import measure_latency

SHAPES = ((4, 64, 64, 64), (2, 32, 128, 128), (8, 256, 16, 16))
"""Maps of a generator at 64 and 128 pixels, and one of many channels."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ORDERS = (torch.contiguous_format, torch.channels_last)
OPERATIONS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "same size": lambda x, weight, groups: F.conv2d(x, weight, padding=2, groups=groups),
    "smaller": lambda x, weight, groups: F.conv2d(x, weight, stride=2, padding=1, groups=groups),
    "larger": lambda x, weight, groups: F.conv_transpose2d(x, weight, stride=2, padding=1, groups=groups),
}


def ways(operation: Callable[[Tensor, Tensor, int], Tensor], x: Tensor, taps: Tensor) -> Iterator[Callable[[], Tensor]]:
    """Groups, and channels one at a time; both give a map in the layout of x."""
    count, channels, *sides = x.shape
    weight = taps.expand(channels, 1, *taps.shape)
    order = ORDERS[x.is_contiguous(memory_format=ORDERS[1])]
    yield lambda: operation(x, weight, channels)

    def alone() -> Tensor:
        made = operation(x.reshape(count * channels, 1, *sides), taps[None, None], 1)
        return made.view(count, channels, *made.shape[2:]).contiguous(memory_format=order)

    yield alone


def main() -> None:
    """Time them, and print JSON lines."""
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
    queued = 1 if device.type == "cpu" else 20
    for dtype, order, shape in product(DTYPES, ORDERS, SHAPES):
        x = torch.randn(shape, device=device).to(dtype).contiguous(memory_format=order)
        taps = torch.randn(4, 4, device=device).to(dtype)
        for name, operation in OPERATIONS.items():
            groups, alone = (
                round(1e3 * measure_latency(way, device, repeats=5, budget_seconds=0.2, queued=queued), 3)
                for way in ways(operation, x, taps)
            )
            row = {"filter": name, "shape": shape, "dtype": str(dtype), "order": str(order)}
            print(json.dumps(row | {"groups_ms": groups, "alone_ms": alone}).replace("torch.", ""), flush=True)


if __name__ == "__main__":
    main()
