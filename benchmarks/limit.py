"""How near a step comes to what this machine reaches: python benchmarks/limit.py [RECIPE] [KEY=VALUE ...] [OUT.json]

Every operation of a step is timed where it runs, with its arithmetic and its bytes, and belongs to a kind of work:
products, attention, convolutions of 3 x 3 and more, pointwise, grouped and depthwise ones, the optimizer, and all that
only moves numbers. In the same run each kind is measured by itself at sizes that suit it; the best of these is what the
machine reaches. A place's share is the time that its work would take at that rate, over the time that it took; the
step's floor is the sum of these. What is between operations (Python, autograd) is a place of its own, at a floor of
nothing.

Times are those of one thread on its processor, so that waiting for other programs is not counted.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from frugan.accelerator.host_memory import keep_freed_memory
from frugan.contract.phase import Phase
from frugan.engine.step.update import Probe
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.stepmemory.work import MacCounter, WorkCounter
from machine import describe_machine
from set_up import SetUp, set_up
from step import kinds_of_steps

ROUNDS = 6
CPU = torch.device("cpu")
MOVES, BETWEEN, ATTENTION = "moves numbers", "between operations", "attention"
CONVOLUTIONS = ("convolution", "pointwise", "grouped", "depthwise")
SIZES = ((8, 128, 64), (16, 256, 32), (16, 512, 16), (32, 768, 8))
"""Batch, channels and side of maps by which convolutions are measured."""
GROUP = 16
"""Channels of a group, as R3GAN has them."""
COSTLIEST = 20
"""Operations that are listed one by one."""

Place = tuple[str, str, str]
"""Phase, kind of work, and an operation with its shapes."""


@dataclass
class Done:
    """Work of one kind in one phase."""

    calls: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    moved_bytes: float = 0.0
    exponentials: float = 0.0

    def add(self, other: "Done", share: float = 1) -> None:
        """Add another's work, as often as a share of all steps does it."""
        self.calls += other.calls
        self.seconds += share * other.seconds
        self.flops += share * other.flops
        self.moved_bytes += share * other.moved_bytes
        self.exponentials += share * other.exponentials


def kind_of(name: str, args: tuple[Any, ...]) -> str:
    """Kind of work of an operation."""
    if name in ("convolution", "convolution_backward"):
        weight = args[2 if name == "convolution_backward" else 1]
        groups = args[-2 if name == "convolution_backward" else -1]
        if groups > 1:
            return "depthwise" if weight.shape[1] == 1 else "grouped"
        return "pointwise" if weight[0, 0].numel() == 1 else "convolution"
    if "scaled_dot_product" in name:
        return ATTENTION
    if name in ("mm", "addmm", "bmm", "baddbmm", "mv"):
        return "product"
    return "optimizer" if name.startswith("_fused_") else MOVES


def shapes_of(args: tuple[Any, ...]) -> str:
    """Shapes and types of an operation's first tensors, as text."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)][:3]
    return " ".join(f"{'x'.join(map(str, x.shape))}:{str(x.dtype).removeprefix('torch.')}" for x in tensors)


def exponentials_of(name: str, args: tuple[Any, ...]) -> int:
    """Exponentials of an attention: one for each pair of positions, and one again in its derivative."""
    query, key = args[1:3] if "backward" in name else args[:2]
    return int(query[..., 0].numel()) * int(key.shape[-2])


class Timer(TorchDispatchMode):
    """Times every operation on the processor, by phase, kind of work and shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Place, Done] = {}
        self.phase = ""
        self.inside = 0.0  # seconds in operations, and in this class
        self._macs = MacCounter().flop_registry
        self._work = WorkCounter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and time it."""
        entered = time.thread_time()
        kwargs = kwargs or {}
        began = time.thread_time()
        out = func(*args, **kwargs)
        seconds = time.thread_time() - began
        moved_bytes, macs, _ = self._work.cost_of(func, args, kwargs, out)
        name = str(func.overloadpacket).removeprefix("aten.")
        kind = kind_of(name, args)
        exponentials = exponentials_of(name, args) if kind == ATTENTION else 0
        done = self.found.setdefault((self.phase, kind, f"{name} {shapes_of(args)}"), Done())
        done.add(Done(1, seconds, 2 * macs, moved_bytes, exponentials))
        self.inside += time.thread_time() - entered
        return out


class Phases(Probe):
    """Tells the timer which phase runs."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer

    def phase_begins(self, phase: Phase) -> None:
        """Note the phase."""
        self._timer.phase = phase.name

    def phase_ends(self, phase: Phase) -> None:
        """Note that the averages follow, after the last phase."""
        self._timer.phase = "averages"


def timed_step(way: SetUp, at: int) -> tuple[dict[Place, Done], float]:
    """Work of one step by place, and the seconds between operations."""
    state, step, plan = way
    timer = Timer()
    state.step = at
    began = time.thread_time()
    with timer:
        replace(step, probe=Phases(timer)).run(state, plan)
    return timer.found, time.thread_time() - began - timer.inside


def plain_step(way: SetUp, at: int) -> float:
    """Seconds of one step that nothing is timed in."""
    state, step, plan = way
    state.step = at
    began = time.thread_time()
    step.run(state, plan)
    return time.thread_time() - began


def least(rounds: list[dict[Place, Done]]) -> dict[Place, Done]:
    """The round's work with the least seconds of each entry."""
    return {key: replace(done, seconds=min(one[key].seconds for one in rounds)) for key, done in rounds[0].items()}


def seconds_of(call: Callable[[], object]) -> float:
    """Least seconds of a call in six runs."""
    call()
    found = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        call()
        found.append(time.thread_time() - began)
    return min(found)


def reached(dtype: torch.dtype) -> dict[str, float]:
    """FLOP per second that the machine reaches for each kind of arithmetic, forward and backward together.

    Of the optimizer and of what only moves numbers, bytes per second; of attention, exponentials.
    """
    a, b = torch.randn(2, 2048, 2048).to(dtype)
    rates = {"product": 2 * 2048**3 / seconds_of(lambda: a @ b)}
    source = torch.randn(1 << 25)
    target = torch.empty_like(source)
    rates[MOVES] = 2 * 4 * source.numel() / seconds_of(lambda: target.copy_(source))
    near = torch.randn(1 << 15)  # stays in the nearest cache
    found = torch.empty_like(near)
    rates[ATTENTION] = near.numel() / seconds_of(lambda: torch.exp(near, out=found))
    for kind in CONVOLUTIONS:
        rates[kind] = max(_convolution_rate(kind, *size, dtype) for size in SIZES)
    rates["pointwise"] = max(rates["pointwise"], rates["product"])  # it is a product
    rates["optimizer"] = _optimizer_rate()
    return rates


def _convolution_rate(kind: str, batch: int, channels: int, side: int, dtype: torch.dtype) -> float:
    """FLOP per second of a convolution and both its derivatives."""
    groups = {"grouped": channels // GROUP, "depthwise": channels}.get(kind, 1)
    kernel = 1 if kind == "pointwise" else 3
    x = torch.randn(batch, channels, side, side, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(channels, channels // groups, kernel, kernel, dtype=dtype)
    weight = weight.to(memory_format=torch.channels_last).requires_grad_()
    gradient = torch.randn(batch, channels, side, side, dtype=dtype).to(memory_format=torch.channels_last)

    def call() -> tuple[Tensor, ...]:
        return torch.autograd.grad(F.conv2d(x, weight, padding=kernel // 2, groups=groups), (x, weight), gradient)

    flops = 3 * 2 * batch * side**2 * weight.numel()
    return flops / seconds_of(call)


def _optimizer_rate() -> float:
    """Bytes per second of torch's fused Adam, which reads four numbers for each weight and writes three."""
    parameter = torch.nn.Parameter(torch.randn(1 << 22))
    parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.Adam([parameter], fused=True)
    return 7 * 4 * parameter.numel() / seconds_of(optimizer.step)


def floor_seconds(kind: str, done: Done, rates: Mapping[str, float]) -> float:
    """Seconds that work would take at what the machine reaches: by arithmetic or by traffic, whichever is longer."""
    if kind in (MOVES, "optimizer"):
        return done.moved_bytes / rates[kind]
    if kind == ATTENTION:
        return max(done.flops / rates["product"], done.exponentials / rates[ATTENTION])
    return max(done.flops / rates[kind], done.moved_bytes / rates[MOVES])


def limit(recipe: Recipe) -> dict[str, Any]:
    """Table of an average step by phase and kind of work, and its costliest operations."""
    way = set_up(recipe, CPU, recipe.training.precision, micro_batch=recipe.training.batch)
    places: dict[Place, Done] = {}
    between = plain = 0.0
    with keep_freed_memory(True):
        rates = reached(way[2].precision.dtype)
        for at, share in kinds_of_steps(tuple(way[1].phases)).items():
            plain_step(way, at)
            rounds, gaps, whole = [], [], []
            for _ in range(ROUNDS):
                found, gap = timed_step(way, at)
                rounds.append(found)
                gaps.append(gap)
                whole.append(plain_step(way, at))
            plain += share * min(whole)
            between += share * min(gaps)
            for place, done in least(rounds).items():
                places.setdefault(place, Done()).add(done, share)
        again = reached(way[2].precision.dtype)  # others may have used the machine the first time
        rates = {kind: max(rate, again[kind]) for kind, rate in rates.items()}
    rows: dict[tuple[str, str], Done] = {}
    floors: dict[tuple[str, str], float] = {}
    for (phase, kind, _), done in places.items():
        rows.setdefault((phase, kind), Done()).add(done)
        floors[phase, kind] = floors.get((phase, kind), 0.0) + floor_seconds(kind, done, rates)
    operations: dict[tuple[str, str], Done] = {}
    for (_, kind, operation), done in places.items():
        operations.setdefault((kind, operation), Done()).add(done)
    return {
        "seconds": round(plain, 4),
        "seconds_between_operations": round(between, 4),
        "precision": way[2].precision.name,
        "batch": recipe.training.batch,
        "reached": {kind: round(rate / 1e9, 1) for kind, rate in rates.items()},
        "rows": [
            {"phase": phase, "kind": kind, **_figures(done, floors[phase, kind])}
            for (phase, kind), done in _costliest(rows)
        ],
        "operations": [
            {"kind": kind, "operation": operation, **_figures(done, floor_seconds(kind, done, rates))}
            for (kind, operation), done in _costliest(operations)[:COSTLIEST]
        ],
    }


def _costliest(found: Mapping[tuple[str, str], Done]) -> list[tuple[tuple[str, str], Done]]:
    """Entries, the longest first."""
    return sorted(found.items(), key=lambda item: -item[1].seconds)


def _figures(done: Done, floor: float) -> dict[str, float]:
    """Work and time as they are recorded."""
    return {
        "calls": done.calls,
        "seconds": round(done.seconds, 5),
        "gflop": round(done.flops / 1e9, 3),
        "gbyte": round(done.moved_bytes / 1e9, 3),
        "floor_seconds": round(floor, 5),
    }


def table(result: Mapping[str, Any]) -> str:
    """Rows as text: share of the step, share of what the machine reaches."""
    total = sum(row["seconds"] for row in result["rows"]) + result["seconds_between_operations"]
    head = f"{'calls':>6} {'ms':>8} {'of step':>8} {'GFLOP':>8} {'GB':>7} {'of peak':>8}"
    lines = [f"{'phase':18} {'kind':14} {head}"]
    lines += [f"{row['phase']:18} {row['kind']:14} {_columns(row, total)}" for row in result["rows"]]
    between = result["seconds_between_operations"]
    lines.append(f"{'':18} {BETWEEN:21} {1e3 * between:8.1f} {between / total:8.1%}")
    floor = sum(row["floor_seconds"] for row in result["rows"])
    share = floor / result["seconds"]
    lines.append(f"floor {1e3 * floor:.1f} ms of {1e3 * result['seconds']:.1f} ms: {share:.1%} of the limit")
    lines += ["", head]
    lines += [f"{_columns(row, total)}  {row['kind']}: {row['operation']}" for row in result["operations"]]
    return "\n".join(lines)


def _columns(row: Mapping[str, Any], total: float) -> str:
    """Figures of a row, in columns."""
    share = row["floor_seconds"] / row["seconds"] if row["seconds"] else 0.0
    return (
        f"{row['calls']:6} {1e3 * row['seconds']:8.1f} {row['seconds'] / total:8.1%} {row['gflop']:8.2f} "
        f"{row['gbyte']:7.2f} {share:8.1%}"
    )


def main() -> None:
    """Print the table, and write the figures if a file is named."""
    words = sys.argv[1:]
    targets = [word for word in words if word.endswith(".json")]
    words = [word for word in words if word not in targets]
    name, overrides = (words[0], words[1:]) if words else ("biggan-digits-32", [])
    recipe = load_recipe(name, overrides).at_step(0)
    torch.set_num_threads(1)
    result = {"recipe": [name, *overrides], **limit(recipe), "machine": describe_machine()}
    print(table(result))
    for target in targets:
        Path(target).write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
