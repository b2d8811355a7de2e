"""Passes over a map by frugan's kernels and by StyleGAN2's own: python benchmarks/against_compiled.py RECORD

StyleGAN2's release has operations that are compiled on the user's machine: `bias_act` and `upfirdn2d`. Ours are
counted, without a card: bytes moved by an operation, its gradient, and the gradient of a penalty on that, over a
map's bytes. Theirs are taken to be as good as such operations can be: each reads what it needs once and writes what it
makes once; the bias's gradient is a sum that reads the map once more. Writes into the record of `own_kernels.py`.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from frugan.nn.fir import filtered_leaky_relu, fir_filter, upfirdn2d
from frugan.setup.ops import kernel_names, ops_of
from frugan.stepmemory.work import WorkCounter
from own_kernels import written

MAP = (4, 128, 128, 128)
CLAMP = 256.0
PADDING = (2, 1, 2, 1)
"""The filtered map is as large as before."""
OWN = ops_of(kernel_names())
FIR = fir_filter().to("meta")
Layer = Callable[[Tensor, Tensor], Tensor]
CASES: Mapping[str, tuple[Layer, tuple[int, int, int]]] = {
    # x to y; y's gradient and y to x's, which is summed; that one's gradient and y to y's
    "bias, leaky ReLU, clamp": (lambda x, bias: OWN.leaky_relu(x, bias, CLAMP), (2, 4, 3)),
    "filter": (lambda x, _: upfirdn2d(x, FIR, padding=PADDING, ops=OWN), (2, 2, 2)),
    "both, one after the other": (
        lambda x, bias: filtered_leaky_relu(x, bias, FIR, padding=PADDING, clamp=CLAMP, ops=OWN),
        (4, 6, 5),
    ),
}
"""What is counted, and passes of theirs: forward, backward, the gradient of a penalty on the latter."""


def passes(layer: Layer) -> list[float]:
    """Of ours, as above."""
    x = torch.empty(MAP, device="meta", dtype=torch.float16).contiguous(memory_format=torch.channels_last)
    bias = torch.empty(MAP[1], device="meta", requires_grad=True)
    x.requires_grad_()
    found = []
    with WorkCounter() as counter:
        made = layer(x, bias)
        found.append(counter.work.bytes_moved)
    gradient = torch.empty_like(made).requires_grad_()
    with WorkCounter() as counter:
        torch.autograd.grad(made, [x, bias], gradient.detach(), retain_graph=True, allow_unused=True)
        found.append(counter.work.bytes_moved)
    (first,) = torch.autograd.grad(made, [x], gradient, create_graph=True)
    with WorkCounter() as counter:
        torch.autograd.grad(first, [gradient], torch.empty_like(first))
        found.append(counter.work.bytes_moved)
    return [round(each / x.nbytes, 2) for each in found]


def main() -> None:
    """Count, print and write."""
    place = Path(sys.argv[1])
    found = {name: {"theirs": list(theirs), "ours": passes(layer)} for name, (layer, theirs) in CASES.items()}
    record = json.loads(place.read_text("utf-8")) | {"passes": found}
    place.write_text(written(record), "utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
