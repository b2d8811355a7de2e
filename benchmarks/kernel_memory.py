"""What kernels take beyond the tensors that a plan counts: python benchmarks/kernel_memory.py RESULT.json

The peak that torch's allocator for the processor reports over one step, against the plan's, for the U-Net of
docs/your-own-loop.md and for steps of little else than 3-D convolutions or recurrent layers.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import frugan
from frugan.stepmemory.tracker import tensors_of
from machine import describe_machine

PAGE = Path(__file__).parent.parent / "docs" / "your-own-loop.md"
UNETS = {"16 wide, 3 levels, 16 of 48": (16, 3, 16, 48), "32 wide, 4 levels, 8 of 128": (32, 4, 8, 128)}
"""Name -> width, depth, batch and side of the page's U-Net."""


class Recurrent(nn.Module):
    """A recurrent layer and a projection of what it gives."""

    def __init__(self, kind: Callable[..., nn.Module], width: int) -> None:
        super().__init__()
        self.layer, self.head = kind(width, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A number of each place [N, T, 1]."""
        return self.head(self.layer(x)[0])  # type: ignore[no-any-return]


def volumes(width: int) -> nn.Module:
    """Three 3-D convolutions."""
    wide = [nn.Conv3d(a, b, 3, padding=1) for a, b in ((1, width), (width, width), (width, 1))]
    return nn.Sequential(wide[0], nn.ReLU(), wide[1], nn.ReLU(), wide[2])


def mean_square(model: nn.Module, x: Tensor) -> Tensor:
    """A loss for whatever a model gives."""
    return model(x).square().mean()  # type: ignore[no-any-return]


def beyond(build: Callable[[], nn.Module], loss: Callable[..., Tensor], batch: tuple[Tensor, ...]) -> dict[str, Any]:
    """Plan a step in fp32, run it, and return the planned and the allocated peak."""
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    plan = frugan.plan_module(model, loss, batch, optimizer, precision="fp32")
    step = frugan.ModuleStep(model, loss, optimizer, plan)
    step(*batch)  # makes the optimizer's state
    held = [*model.parameters(), *model.buffers(), *tensors_of(list(optimizer.state.values())), *batch]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step(*batch)
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = torch.tensor([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    allocated = sum(tensor.nbytes for tensor in held) + int(changes.cumsum(0).max())
    beyond = allocated / plan.peak_bytes - 1
    return {"planned_bytes": plan.peak_bytes, "allocated_bytes": allocated, "beyond": round(beyond, 4)}


def main() -> None:
    """Measure all, and write the record."""
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL) if "UNet" in block
    )
    page: dict[str, Any] = {}
    exec(code.partition("torch.manual_seed(0)")[0], page)  # the page's own classes
    found = {
        f"U-Net: {name}": beyond(lambda w=width, d=depth: page["UNet"](w, d), page["loss"], page["discs"](count, side))  # type: ignore[misc]
        for name, (width, depth, count, side) in UNETS.items()
    }
    for width, side in ((8, 16), (16, 32), (64, 16)):
        cubes = (torch.randn(4, 1, side, side, side),)
        name = f"3-D convolutions: {width} wide, 4 of {side}"
        found[name] = beyond(lambda w=width: volumes(w), mean_square, cubes)  # type: ignore[misc]
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for width, length in ((128, 64), (512, 16), (64, 256)):
            sequences = (torch.randn(32, length, width),)
            name = f"{kind.__name__}: {width} wide, 32 of {length}"
            found[name] = beyond(lambda k=kind, w=width: Recurrent(k, w), mean_square, sequences)  # type: ignore[misc]
    record = {"beyond": found, "machine": describe_machine()}
    text = json.dumps(record, indent=1) + "\n"
    print(text)
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
