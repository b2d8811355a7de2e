"""From a step's results on the device to plain numbers, without making the device wait.

All scalars of a step travel in one copy, started when the step is queued and read a step later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frugan.engine.card_events import queued_so_far
from frugan.engine.host_state import host_like
from frugan.engine.update import PhaseResult

Place = tuple[str, int, str, str]
"""(phase, repeat, kind, name): where a number belongs."""


@dataclass(frozen=True)
class Readout:
    """Numbers of one step on their way to the host.

    Attributes:
        step: steps done, this one included.
        results: kept until read, so that a bad update's tensors can be named.
    """

    step: int
    results: Sequence[PhaseResult]
    places: tuple[Place, ...]
    values: Tensor
    arrived: torch.cuda.Event | None

    @classmethod
    def start(cls, step: int, results: Sequence[PhaseResult], extra: Mapping[str, Tensor]) -> "Readout":
        """Begin the copy of a step's numbers, and of `extra` named scalars."""
        numbers: dict[Place, Tensor] = {}
        for r in results:
            here = (r.phase, r.repeat)
            for name, values in r.terms.items():
                weights = torch.tensor(r.weights, dtype=values.dtype).to(values.device, non_blocking=True)
                numbers[*here, "terms", name] = (values * weights).sum()
            numbers[*here, "gradient_norm", ""] = r.gradients.norm
            numbers[*here, "accepted", ""] = r.accepted
            numbers[*here, "loss_scale", ""] = r.loss_scale
            if r.gradients.zeros is not None:
                for i, name in enumerate(r.gradients.names):
                    numbers[*here, "table", name] = r.gradients.norms[i]
                    numbers[*here, "zeros", name] = r.gradients.zeros[i]
        for name, value in extra.items():
            numbers["", 0, "extra", name] = value
        packed = torch.stack([value.detach().double().reshape(()) for value in numbers.values()])
        arrived = None
        if packed.is_cuda:
            device = packed.device
            packed = host_like(packed, "a step's numbers").copy_(packed, non_blocking=True)
            arrived = queued_so_far(device)
        return cls(step, results, tuple(numbers), packed, arrived)

    def read(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Wait for the copy; numbers by phase (repeats averaged), and the extra ones.

        A phase's entry holds `terms`, `gradient_norm`, `loss_scale` and `skipped` (of this step's repeats); in reported
        steps also `gradients` (parameter -> norm), `zero_share` (parameter -> share of exact zeros) and
        `without_gradient` (names).
        """
        if self.arrived is not None:
            self.arrived.synchronize()
        phases: dict[str, Any] = {}
        extra: dict[str, float] = {}
        repeats = {name: sum(r.phase == name for r in self.results) for name in {r.phase for r in self.results}}
        for (phase, repeat, kind, name), value in zip(self.places, self.values.tolist(), strict=True):
            if kind == "extra":
                extra[name] = value
                continue
            entry = phases.setdefault(phase, {"terms": {}, "gradient_norm": 0.0, "loss_scale": 1.0, "skipped": 0})
            if kind == "terms":
                entry["terms"][name] = entry["terms"].get(name, 0.0) + value / repeats[phase]
            elif kind == "gradient_norm":
                entry["gradient_norm"] += value / repeats[phase]
            elif kind == "accepted":
                entry["skipped"] += int(not value)
            elif kind == "loss_scale":
                entry["loss_scale"] = value
            elif repeat == 0:
                entry.setdefault({"table": "gradients", "zeros": "zero_share"}[kind], {})[name] = value
        for r in self.results:
            if r.gradients.zeros is not None and r.gradients.missing:
                phases[r.phase]["without_gradient"] = list(r.gradients.missing)
        return phases, extra

    def skipped(self) -> list[PhaseResult]:
        """Updates of this step that were not committed; asks the device, so only after `read` found some."""
        return [r for r in self.results if not bool(r.accepted)]


def first_bad(result: PhaseResult) -> str:
    """Name the first non-finite term and gradient of a skipped update."""
    terms = [name for name, values in result.terms.items() if not bool(torch.isfinite(values).all())]
    bad = (~torch.isfinite(result.gradients.norms)).nonzero().flatten().tolist()
    term = f"term {terms[0]!r} is not finite" if terms else "all terms are finite"
    gradient = f"first bad gradient: {result.gradients.names[bad[0]]}" if bad else "every gradient's norm is finite"
    return f"{term}; {gradient}"
