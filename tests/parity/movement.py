"""Measures how far one state of a recorded run is from another, also where only digests were recorded."""

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from parity.golden import Case
from parity.traces import LOSSES

BUFFER = re.compile(r"\.(?:(u)\d|(sv)\d|stored_(?:mean|var))$")

Kind = Literal["parameter", "u", "sv", "statistics"]
Digest = tuple[int, float, float, float]
"""Of a tensor: number of elements, L2 norm, sum, sum of v_i·cos(0.7·i + 0.3)."""


def kind(key: str) -> Kind:
    """What an entry of a state is."""
    match = BUFFER.search(key)
    if match is None:
        return "parameter"
    return "u" if match[1] else "sv" if match[2] else "statistics"


def cancelled_biases(case: Case) -> set[str]:
    """Biases of the generator that a batch norm takes away again, as "G.key".

    Their true gradient is 0; what arrives is rounding, which Adam makes full steps of. A bias is a constant for a
    channel, and a batch norm directly behind the convolution removes it: so for every convolution of a block but the
    last. The last one's and the skip's goes through the residual sum to the next block's first norm, and along that
    block's skip to the one behind, and so on to the output's. All of them remove it, unless attention stands on the
    way: it is no convolution and sees the constant.
    """
    residual: dict[int, list[str]] = {}
    last_attention = -1
    biases: set[str] = set()
    for key in case.states:
        match = re.fullmatch(r"G\.blocks\.(\d+)\.(0\.(conv\w+)\.bias|1\.gamma)", key)
        if match is None:
            continue
        block = int(match[1])
        if match[3] is None:
            last_attention = max(last_attention, block)
        elif match[3] in ("conv_sc", _last_convolution(case)):
            residual.setdefault(block, []).append(key)
        else:
            biases.add(key)
    return biases.union(*(keys for block, keys in residual.items() if block > last_attention))


def _last_convolution(case: Case) -> str:
    return "conv4" if case.options["model"] == "BigGANdeep" else "conv2"


def digest(tensor: Tensor) -> Digest:
    """Digest of a tensor, as in the recordings."""
    values = tensor.to(torch.float64).flatten()
    return len(values), float(values.norm()), float(values.sum()), float(values @ _cosines(len(values)))


@cache
def _cosines(count: int) -> Tensor:
    return torch.cos(0.7 * torch.arange(count, dtype=torch.float64) + 0.3)


def digests(tensors: Mapping[str, Tensor]) -> dict[str, Digest]:
    """Digest of every tensor."""
    return {key: digest(value) for key, value in tensors.items()}


def recorded_digests(case: Case, which: str, done: int) -> dict[str, Digest]:
    """The recording's digests of "G", "D" and, if there was one, "G_ema"."""
    digests_of: dict[str, Digest] = {}
    for network in ("G", "D", "G_ema"):
        for key, (shape, *values) in case.record[which]["digest"].get(f"{network}_after{done}", {}).items():
            digests_of[f"{network}.{key}"] = (math.prod(shape), *values)
    return digests_of


def first(case: Case) -> dict[str, Tensor]:
    """The recorded first state; the average starts as a copy."""
    copies = {f"G_ema.{key[2:]}": value for key, value in case.states.items() if key.startswith("G.")}
    return dict(case.states) | copies


def projections(after: Mapping[str, Digest], before: Mapping[str, Digest] | None, keys: list[str]) -> Tensor:
    """Three numbers for each tensor, together a vector: [3·len(keys)].

    Sum and cosine sum, divided by the lengths of what they multiply with, are the projections of the tensor, or of its
    movement, on two fixed directions of length 1; the change of its norm is close to the projection on itself. An error
    of the whole movement in no special direction shows in them with the same relative size.
    """
    rows: list[float] = []
    for key in keys:
        count, *now = after[key]
        start = (0.0, 0.0, 0.0) if before is None else before[key][1:]
        lengths = (1.0, math.sqrt(count), float(_cosines(count).norm()))
        rows += [(a - b) / length for a, b, length in zip(now, start, lengths, strict=True)]
    return torch.tensor(rows, dtype=torch.float64)


def relative(ours: Tensor, reference: Tensor) -> float:
    """‖ours - reference‖ / ‖reference‖."""
    return float((ours - reference).norm() / reference.norm())


def movement(case: Case, network: str, after: Mapping[str, Tensor]) -> Tensor:
    """How all parameters of a network moved, cancelled biases left out, as one vector."""
    start = first(case)
    return torch.cat(
        [(after[key].double() - start[key].double()).flatten() for key in _keys(case, network, "parameter")]
    )


def _keys(case: Case, network: str, wanted: Kind) -> list[str]:
    cancelled = {key[2:] for key in cancelled_biases(case)} if network != "D" else set()
    source = "D." if network == "D" else "G."
    keys = [key[2:] for key in case.states if key.startswith(source)]
    return [f"{network}.{key}" for key in keys if kind(f".{key}") == wanted and key not in cancelled]


def errors(case: Case, ours: Mapping[str, Digest], reference: Mapping[str, Digest]) -> dict[str, float]:
    """How far a state is from another, both as digests.

    Returns:
        "G", "D": relative error of the movement of all parameters together.
        "u", "sv", "statistics": the larger of both networks' relative errors, each of all such buffers together: of the
            values themselves for u and sv (u starts unnormalised), of the movement for batch-norm statistics.
        "G_ema": the largest of the average's four.
    """
    before = digests(first(case))

    def error(network: str, wanted: Kind) -> float:
        keys = _keys(case, network, wanted)
        if not keys:
            return 0.0
        start = before if wanted in ("parameter", "statistics") else None
        return relative(projections(ours, start, keys), projections(reference, start, keys))

    worst = {network: error(network, "parameter") for network in ("G", "D")}
    kinds: tuple[Kind, ...] = ("u", "sv", "statistics")
    worst |= {wanted: max(error(network, wanted) for network in ("G", "D")) for wanted in kinds}
    if any(key.startswith("G_ema.") for key in reference):
        worst["G_ema"] = max(error("G_ema", wanted) for wanted in ("parameter", *kinds))
    return worst


def loss_error(ours: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """Relative error of an iteration's three losses as a vector."""
    a, b = (torch.tensor([values[name] for name in LOSSES], dtype=torch.float64) for values in (ours, reference))
    return relative(a, b)


def moment_error(
    case: Case, ours: Mapping[str, tuple[float, float]], reference: Mapping[str, tuple[float, float]]
) -> float:
    """Root mean square over all tensors of the relative errors of the norms of Adam's moments."""
    keys = _keys(case, "G", "parameter") + _keys(case, "D", "parameter")
    ratios = [a / b - 1 for key in keys for a, b in zip(ours[key], reference[key], strict=True) if b]
    return math.sqrt(sum(ratio**2 for ratio in ratios) / len(ratios))


def recorded_moments(case: Case) -> dict[str, tuple[float, float]]:
    """Norms of Adam's moments after three iterations of the plain recording."""
    return {
        f"{network}.{key}": (values[1], values[2])
        for network in ("G", "D")
        for key, values in case.record["train_plain"]["adam_digest"][network].items()
    }
