"""StyleGAN3's filtered nonlinearity in four ways: python benchmarks/filtered_nonlinearity.py [--out FILE]

Plain torch, plain torch that is recomputed in the backward (`torch.utils.checkpoint`), and the function of the layers,
by torch's operations and by its kernel. For each layer of stylegan3-t-256 and -r-256 it counts, on tensors without
data, what a forward and a backward in half precision keep, take at most, move and launch on a card. For some layers it
also measures the seconds that a sample takes on this processor in fp32, where there are no kernels: CPU time of one
thread, the least of several rounds in which the ways take turns.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from frugan.contract import cpu_ways
from frugan.families.stylegan3.filtered_nonlinearity import filtered_nonlinearity
from frugan.setup.ops import ops_of
from frugan.stepmemory import Dataless, measure
from frugan.stepmemory.work import SavedActivations
from machine import describe_machine

RESOLUTION = 256
RATES = (16, 16, 16, 32, 32, 64, 64, 128, 128, 128, 256, 256, 256, 256, 256)
SIZES = (36, 36, 36, 52, 52, 84, 84, 148, 148, 148, 276, 276, 276, 256, 256)
CRITICAL = 2
"""Layers before the last one whose filters are separable with rotations too."""
BATCH = 8
ROUNDS = 3
TIMED = (0, 7, 12)
"""Layers whose seconds are measured: at the least rate, where it is doubled, and at the highest."""
TIMED_CHANNELS = 32
"""Channels that are measured at most: each takes as long as another."""
GAIN, SLOPE, CLAMP = math.sqrt(2), 0.2, 256.0


class Layer(NamedTuple):
    """Shape, rates and padding of a layer's nonlinearity."""

    label: str
    channels: int
    side: int
    up: int
    down: int
    padding: tuple[int, int, int, int]
    radial: bool

    def filters(self, device: str) -> tuple[Tensor, Tensor]:
        """Low passes of a sort; what they let pass does not matter here."""
        first, second = (torch.hann_window(6 * rate + 2, device=device)[1:-1] for rate in (self.up, self.down))
        second = torch.outer(second, second) if self.radial else second
        return first / first.sum(), second / second.sum()


def layers(rotation: bool) -> Iterator[Layer]:
    """Of a generator, but for the last one, which turns features into colours without filters."""
    for i in range(len(SIZES) - 1):
        before = max(0, i - 1)
        up, down = (2 * max(RATES[before], RATES[i]) // rate for rate in (RATES[before], RATES[i]))
        side = SIZES[before] + (0 if rotation else 2)  # a convolution of 3 x 3 pixels adds a margin
        whole = (SIZES[i] - 1) * down + 1 - side * up + 6 * (up + down) - 2
        first = (whole + up) // 2
        cutoff = 2 * (RESOLUTION / 4) ** min(i / (len(SIZES) - 1 - CRITICAL), 1)
        channels = round(min(32768 * (1 + rotation) / 2 / cutoff, 512 * (1 + rotation)))
        radial = rotation and i < len(SIZES) - 1 - CRITICAL
        label = f"L{i}_{SIZES[i]}_{channels}"
        yield Layer(label, channels, side, up, down, (first, whole - first) * 2, radial)


def plain(x: Tensor, bias: Tensor, first: Tensor, second: Tensor, layer: Layer) -> Tensor:
    """By torch's operations; what runs along rows and columns in turn is separable."""
    count, channels, height, width = x.shape
    up, down = layer.up, layer.down
    x = x + bias.to(x.dtype).view(1, -1, 1, 1)
    zeros = F.pad(x[..., None, :, None], (0, up - 1, 0, 0, 0, up - 1))
    x = F.pad(zeros.reshape(count, channels, height * up, width * up), layer.padding)
    x = _along_both(x, first * up, 1)
    x = (F.leaky_relu(x, SLOPE) * GAIN).clamp(-CLAMP, CLAMP)
    return _along_both(x, second, down)


def _along_both(x: Tensor, taps: Tensor, down: int) -> Tensor:
    channels, taps = x.shape[1], taps.to(x.dtype)
    if taps.ndim == 2:
        return F.conv2d(x, taps.expand(channels, 1, -1, -1), stride=down, groups=channels)
    x = F.conv2d(x, taps[:, None].expand(channels, 1, -1, -1), stride=(down, 1), groups=channels)
    return F.conv2d(x, taps[None].expand(channels, 1, -1, -1), stride=(1, down), groups=channels)


def recomputed(x: Tensor, bias: Tensor, first: Tensor, second: Tensor, layer: Layer) -> Tensor:
    """By torch's operations, which run once more in the backward."""
    result: Tensor = checkpoint(plain, x, bias, first, second, layer, use_reentrant=False)
    return result


def own(x: Tensor, bias: Tensor, first: Tensor, second: Tensor, layer: Layer) -> Tensor:
    """By the function of the layers."""
    rest = (layer.up, layer.down, layer.padding, GAIN, SLOPE, CLAMP)
    return filtered_nonlinearity(x, bias, first, second, *rest)


def by_kernel(x: Tensor, bias: Tensor, first: Tensor, second: Tensor, layer: Layer) -> Tensor:
    """By that function and its kernel."""
    rest = (layer.up, layer.down, layer.padding, GAIN, SLOPE, CLAMP)
    return filtered_nonlinearity(x, bias, first, second, *rest, ops_of(["filtered_nonlinearity"]))


Way = Callable[[Tensor, Tensor, Tensor, Tensor, Layer], Tensor]
MEASURED: dict[str, Way] = {"plain": plain, "recomputed": recomputed, "own": own}
WAYS = {**MEASURED, "kernel": by_kernel}


@contextmanager
def _as_on_a_card() -> Iterator[None]:
    with patch.object(cpu_ways, "taken_for", lambda x: False):
        yield


def counted(way: Way, layer: Layer) -> dict[str, int]:
    """Of a forward and a backward in half precision."""
    x = torch.empty(BATCH, layer.channels, layer.side, layer.side, dtype=torch.float16, device="meta")
    x, bias = x.requires_grad_(), torch.empty(layer.channels, device="meta", requires_grad=True)
    filters = layer.filters("meta")
    saved = SavedActivations([bias, *filters])
    with saved.watch():
        way(x, bias, *filters, layer)

    def step() -> None:
        result = way(x, bias, *filters, layer)
        torch.autograd.grad(result, [x, bias], torch.empty_like(result))

    with _as_on_a_card():
        memory = measure(step, {"batch": [x], "parameters": [bias, *filters]}, dataless=Dataless())
    return {
        "kept_bytes": x.nbytes if way is recomputed else saved.saved_bytes,  # which keeps its inputs by itself
        "peak_bytes": memory.peak.size_bytes - x.nbytes,
        "moved_bytes": round(memory.work.bytes_moved),
        "launches": round(memory.work.operations),
    }


def seconds(layer: Layer) -> dict[str, float]:
    """CPU time of a forward and a backward of one sample by each way, for all channels."""
    torch.manual_seed(0)
    channels = min(layer.channels, TIMED_CHANNELS)
    x = torch.randn(1, channels, layer.side, layer.side, requires_grad=True)
    bias, filters = torch.zeros(channels, requires_grad=True), layer.filters("cpu")
    found = dict.fromkeys(MEASURED, math.inf)
    for _ in range(ROUNDS + 1):
        for name, way in MEASURED.items():
            begun = time.process_time()
            result = way(x, bias, *filters, layer)
            torch.autograd.grad(result, [x, bias], torch.ones_like(result))
            found[name] = min(found[name], time.process_time() - begun)
    return {name: round(least * layer.channels / channels, 4) for name, least in found.items()}


def main() -> None:
    """Count, measure, and print JSON."""
    torch.set_num_threads(1)
    record: dict[str, Any] = {"machine": describe_machine(), "batch": BATCH, "dtype": "float16"}
    for name, rotation in (("stylegan3-t-256", False), ("stylegan3-r-256", True)):
        rows: dict[str, Any] = {}
        record[name] = rows
        for i, layer in enumerate(layers(rotation)):
            rows[layer.label] = {way: counted(function, layer) for way, function in WAYS.items()}
            if i in TIMED:
                rows[layer.label]["cpu_seconds"] = seconds(layer)
            print(layer.label, json.dumps(rows[layer.label]), flush=True)
        record[f"{name}, all layers"] = {
            way: {
                word: (max if word == "peak_bytes" else sum)(row[way][word] for row in rows.values())
                for word in ("kept_bytes", "peak_bytes", "moved_bytes", "launches")
            }
            for way in WAYS
        }
    if "--out" in sys.argv:
        Path(sys.argv[sys.argv.index("--out") + 1]).write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
