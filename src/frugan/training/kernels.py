"""Kernels of frugan's own on a card: those that give what torch's operations give, and are faster, are used.

Each is tried once on a card, and what was found is kept for it, for these versions of torch and Triton and for the
kernels as they are written.
"""

import hashlib
import json
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.device import ran_out_of_memory, release_memory
from frugan.contract.kernel import Call
from frugan.contract.layers import UsesOps
from frugan.contract.ops import PLAIN, Ops, combined, overridden
from frugan.engine.run.training import Training
from frugan.errors import BadInput
from frugan.files import Folders, atomic_file, read_json
from frugan.progress import Say
from frugan.recipe.recipe import Recipe
from frugan.setup.ops import kernel, kernel_names
from frugan.stepmemory.calibration import choose_card, measure_latency
from frugan.wording import GIB, first_line

FILE = "kernels.json"
"""In the folder of what can be computed again."""
SMALL = (3, 21, 7, 9)
"""A map that is compared: odd, so that every tile has an edge. Each kind of it is compiled, in a tenth of a second."""
BYTES_PER_S = 400e9
"""A card this fast needs no larger map: a layer takes it 0.1 to 1 ms, and the host some 0.01 ms to start a kernel."""
ROOM_BYTES = GIB
"""More than it takes to time it, in torch's operations."""
NO_ROOM = "finds no memory to be tried in"
QUEUED = 20
"""Forwards and backwards between two waits."""
MOST_SECONDS = 0.1
"""For the timing of one way of one kernel, after which no further run of so many is begun."""
TOLERANCE = MappingProxyType({torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2})
"""Share of the largest value by which results may differ: a few last bits."""


@dataclass(frozen=True)
class Verdict:
    """Result of trying a kernel on a card."""

    left_out: str | None  # why; None: it is used
    times_as_fast: float | None  # as torch's own operations, forward and backward; None: that was not reached


def kernels_for(recipe: Recipe, training: Training, device: torch.device, say: Say) -> frozenset[str]:
    """Names of the kernels that a training uses on a device.

    Args:
        say: is given a line where there was a choice.

    Raises:
        BadInput: they are asked for, and cannot be had here.
    """
    choice = recipe.training.kernels
    if choice == "torch":
        return frozenset()
    if choice == "triton":
        every = kernel_names()
        _refuse(what_is_missing(device, every))
        return frozenset(every)
    if accelerator_of(device).kind != "cuda" or not (wanted := useful_to(training)):
        return frozenset()
    if (missing := what_is_missing(device, wanted)) is not None:
        say(f"kernels: torch's own operations in place of {', '.join(wanted)}; {missing}")
        return frozenset()
    found = verdicts(device, wanted)
    used = [name for name in wanted if found[name].left_out is None]
    say(f"kernels: {'; '.join(told(name, found[name]) for name in wanted)}; off with training.kernels=torch")
    return frozenset(used)


def kernels_beside(first: frozenset[str], recipe: Recipe, device: torch.device, say: Say) -> frozenset[str]:
    """Names of those that another rank than the first uses: what the first one has chosen, and what can be had here.

    Ranks that timed kernels each for itself would not round alike.

    Args:
        first: the first rank's.
        say: is given a line where some of them cannot be had.

    Raises:
        BadInput: they are asked for, and cannot be had here.
    """
    if not first:
        return first
    missing = what_is_missing(device, first)
    if recipe.training.kernels == "triton":
        _refuse(missing)
        return first
    if missing is not None:
        say(f"kernels: torch's own operations in place of the first rank's {', '.join(sorted(first))}; {missing}")
        return frozenset()
    found = verdicts(device, [name for name in kernel_names() if name in first])
    wrong = {name: verdict for name, verdict in found.items() if verdict.times_as_fast is None}
    if wrong:
        say(f"kernels beside the first rank's: {'; '.join(told(name, verdict) for name, verdict in wrong.items())}")
    return first - wrong.keys()


def _refuse(missing: str | None) -> None:
    if missing is not None:
        raise BadInput(f"training.kernels = triton: {missing}; or leave it to training.kernels=auto")


def useful_to(training: Training) -> list[str]:
    """Names of the kernels that a training's networks have a use for."""
    modules = [module for network in training.build("meta").values() for module in network.modules()]
    operations = {name for module in modules if isinstance(module, UsesOps) for name in module.asks}
    return [name for name in kernel_names() if operations & overridden(kernel(name))] if operations else []


def told(name: str, verdict: Verdict) -> str:
    """A verdict in words."""
    if verdict.left_out is not None:
        return f"{name} by torch, as frugan's own {verdict.left_out}"
    return f"{name} by frugan's own, {verdict.times_as_fast:.1f} times as fast as torch's"


def what_is_missing(device: torch.device, names: Collection[str] | None = None) -> str | None:
    """Why there are no kernels on a device; None: there are.

    Args:
        names: of the kernels that it is about; None: all.
    """
    if accelerator_of(device).kind != "cuda":
        return f"frugan's kernels run on CUDA cards, and this device is {device}"
    reasons = (kernel(name).missing(device) for name in kernel_names() if names is None or name in names)
    return next((reason for reason in reasons if reason is not None), None)


def verdicts(device: torch.device, names: Sequence[str] | None = None, *, tries: bool = True) -> Mapping[str, Verdict]:
    """Return verdicts on kernels on a card, remembered or found now.

    Args:
        names: of the kernels; None: all.
        tries: False: only what was found before.
    """
    every = kernel_names()
    file, key = Folders.from_environment().cache / FILE, _key(device)
    kept, known = read_json(file), dict[str, Verdict]()
    if isinstance(kept.get(key), dict):
        with suppress(TypeError):  # damaged: tried again
            known = {name: Verdict(**values) for name, values in kept[key].items() if name in every}
    wanted = every if names is None else names
    found = {name: known.get(name) or judged(name, device) for name in wanted if tries or name in known}
    if found.keys() <= known.keys():
        return found
    release_memory(device)
    known |= {
        name: verdict for name, verdict in found.items() if verdict.left_out != NO_ROOM
    }  # there may be another time
    _keep(file, kept | {key: {name: asdict(verdict) for name, verdict in known.items()}})
    return found


def _keep(file: Path, values: Mapping[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as place:
            place.write_text(json.dumps(values, indent=1) + "\n", "utf-8")
    except OSError:  # a folder that is not ours to write: they are tried again the next time
        return


def _key(device: torch.device) -> str:
    """Name of all that a verdict depends on: card, versions, kernels' files."""
    try:
        triton = version("triton")
    except PackageNotFoundError:  # by another name, on Windows
        triton = "of another package"
    return f"{accelerator_of(device).name}, torch {torch.__version__}, Triton {triton}, kernels {digest()}"


def digest() -> str:
    """Hash of the files of all kernels' packages: of the programs too, and of how maps are divided between these.

    A kernel whose module is in no package is that module's file alone.
    """
    modules = [sys.modules[name] for name in sorted({kernel(name).__module__ for name in kernel_names()})]
    packages = sorted({module.__package__ for module in modules if module.__package__})
    written = [content for package in packages for content in _sources(resources.files(package))]
    written += [Path(str(module.__file__)).read_bytes() for module in modules if not module.__package__]
    return hashlib.sha256(b"".join(written).replace(b"\r", b"")).hexdigest()[:12]


def _sources(folder: Traversable) -> Iterator[bytes]:
    """Contents of all files in Python."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _sources(entry)
        elif entry.name.endswith(".py"):
            yield entry.read_bytes()


def judged(name: str, device: torch.device) -> Verdict:
    """Try one kernel on a card."""
    kind = kernel(name)
    ops = combined([kind])
    try:
        half = torch.bfloat16 if accelerator_of(device).has_bf16_units else torch.float16
        orders = (torch.channels_last, torch.contiguous_format)
        for dtype, order in ((half, orders[0]), (half, orders[1]), (torch.float32, orders[1])):
            if (where := difference(*kind.case(SMALL, dtype, order, device), ops)) is not None:
                return Verdict(f"differs in its {where} ({dtype}, {order})".replace("torch.", ""), None)
        call, tensors = kind.case(_timed(kind.timed, device), half, orders[0], device)
        seconds = [_seconds(call, tensors, by, device) for by in (PLAIN, ops)]
    except Exception as error:  # noqa: BLE001  (a compiler and a driver fail in many ways; torch's operations are there)
        if ran_out_of_memory(error):
            return Verdict(NO_ROOM, None)
        return Verdict(f"fails: {type(error).__name__}: {first_line(error)}"[:200], None)
    gain = seconds[0] / seconds[1]
    return Verdict(f"takes {1 / gain:.1f} times as long" if gain < 1 else None, gain)


def difference(call: Call, tensors: Sequence[Tensor], ops: Ops) -> str | None:
    """Where operations give something else than plain torch: result, gradients or theirs; None: nowhere."""
    ways = [_derivatives(call, tensors, by) for by in (PLAIN, ops)]
    limit = TOLERANCE[tensors[0].dtype]
    for name, expected, found in zip(_PARTS, ways[0], ways[1], strict=True):
        for one, other in zip(expected, found, strict=True):
            most = limit * float(one.float().nan_to_num(0, 0, 0).abs().max().clamp_min(1e-3))
            alike = (one == other) | (one.isnan() & other.isnan())  # where halves overflow in both ways too
            apart = (one.float() - other.float()).abs().masked_fill(alike, 0)
            if not float(apart.max()) <= most:  # NaN is no less
                return name
    return None


_PARTS: tuple[str, ...] = ("result", "gradients", "gradients' gradients")


def _derivatives(call: Call, tensors: Sequence[Tensor], ops: Ops) -> tuple[list[Tensor], ...]:
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    result = call(*leaves, ops=ops)
    weights = torch.linspace(-1, 1, result.numel(), device=result.device, dtype=result.dtype)
    weights = weights.view_as(result).requires_grad_()
    alone = torch.autograd.grad(result, leaves, weights.detach(), retain_graph=True)
    first = torch.autograd.grad(result, leaves, weights, create_graph=True)
    # path lengths differentiate what goes to a map and to its factors
    upstream = [gradient.detach() for gradient in first[:2]]
    inputs = [weights, *leaves]
    found = torch.autograd.grad(first[:2], inputs, upstream, allow_unused=True)
    second = [torch.zeros_like(of) if value is None else value for of, value in zip(inputs, found, strict=True)]
    return [result.detach()], [*alone, *(gradient.detach() for gradient in first)], second


def _timed(shape: tuple[int, ...], device: torch.device) -> tuple[int, ...]:
    """A shape of more samples where a card moves bytes faster, for else the host alone would be timed; if it has room.

    Faster cards have larger caches as well, which a map must not fit into: several passes over it would cost no more
    than one.
    """
    accelerator = accelerator_of(device)
    if not accelerator.is_card:  # a processor stands in for one, where what is started is counted
        return shape
    times = math.ceil(choose_card(None, device).bytes_per_s / BYTES_PER_S)
    return (shape[0] * max(1, min(times, accelerator.free_bytes // ROOM_BYTES)), *shape[1:])


def _seconds(call: Call, tensors: Sequence[Tensor], ops: Ops, device: torch.device) -> float:
    """Time a forward and a backward, in seconds."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    gradient = torch.ones_like(call(*tensors, ops=ops))

    def both() -> None:
        torch.autograd.grad(call(*leaves, ops=ops), leaves, gradient)

    return measure_latency(both, device, budget_seconds=MOST_SECONDS, queued=QUEUED)
