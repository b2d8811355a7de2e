"""Signs that a GAN is collapsing, read from its events: each with its number, and with what people do about it."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SATURATION_STEPS = 200
SATURATED_LOSS = 0.05
"""A hinge discriminator that is unsure loses about 2 on real and fake together; one that tells all apart, nothing."""
RECOVERED_LOSS = 0.2
JUMP = 2.0
"""A largest singular value that doubles between reports, beside the median of the reports before."""
JUMP_REPORTS = 5
DUPLICATE_DISTANCE = 0.02
"""Mean difference of two pictures in [-1, 1] at 16 pixels below which an eye takes them for the same."""
DUPLICATE_SHARE = 0.2
SHOWN_SIDE = 16


@dataclass
class CollapseSigns:
    """Watches the events of one training."""

    _losses: dict[str, deque[float]] = field(default_factory=dict)
    _saturated: set[str] = field(default_factory=set)
    _values: dict[str, deque[float]] = field(default_factory=dict)

    def look(self, event: Mapping[str, Any]) -> Iterator[str]:
        """Lines to warn with at a step's event."""
        if event.get("event") != "step":
            return
        for phase, found in event["phases"].items():
            yield from self._saturation(phase, found["terms"])
        yield from self._jumps(event.get("singular_values", {}))

    def _saturation(self, phase: str, terms: Mapping[str, Any]) -> Iterator[str]:
        if not {"real", "fake"} <= terms.keys():
            return
        real, fake = terms["real"], terms["fake"]
        if not (isinstance(real, float) and isinstance(fake, float)):
            return  # not finite: told as a skipped update
        losses = self._losses.setdefault(phase, deque(maxlen=SATURATION_STEPS))
        losses.append(real + fake)
        mean = sum(losses) / len(losses)
        if mean > RECOVERED_LOSS:
            self._saturated.discard(phase)
        if len(losses) == SATURATION_STEPS and mean < SATURATED_LOSS and phase not in self._saturated:
            self._saturated.add(phase)
            yield (
                f"{phase}: its losses on real and fake add up to {mean:.3f}, averaged over {SATURATION_STEPS} steps: "
                "it tells all pictures apart and gives the generator nothing to learn from. People lower its learning "
                "rate, take fewer of its steps, or add pictures"
            )

    def _jumps(self, values: Mapping[str, Any]) -> Iterator[str]:
        jumped = []
        for layer, value in values.items():
            if not isinstance(value, float):
                continue
            before = self._values.setdefault(layer, deque(maxlen=JUMP_REPORTS))
            if len(before) == JUMP_REPORTS and value > JUMP * median(before) > 0:
                jumped.append((value / median(before), layer, median(before), value))
            before.append(value)
        if jumped:
            _, layer, usual, now = max(jumped)
            yield (
                f"largest singular value of {layer} jumped from {usual:.3g} to {now:.3g}"
                + (f", and of {len(jumped) - 1} more layers" if len(jumped) > 1 else "")
                + ": in BigGAN the early sign of collapse. People go back to a checkpoint from before, lower the "
                "learning rates, or stop: the best pictures came before it"
            )


def duplicate_samples(sheet: Tensor) -> str | None:
    """What to tell of a sheet whose pictures look alike though each has its own latent; None: nothing.

    Args:
        sheet: [rows, columns, C, H, W] in [-1, 1]; a row is a class.
    """
    rows, columns = sheet.shape[:2]
    if columns < 2:
        return None
    small = F.adaptive_avg_pool2d(sheet.float().flatten(0, 1), SHOWN_SIDE).reshape(rows, columns, -1)
    distances = torch.cdist(small, small, p=1) / small.shape[-1]  # [rows, columns, columns]
    distances.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    alike = distances.amin(2) < DUPLICATE_DISTANCE  # [rows, columns]
    count = int(alike.sum())
    if count < DUPLICATE_SHARE * alike.numel():
        return None
    return (
        f"{count} of {alike.numel()} samples have a twin of the same class on their sheet (mean difference below "
        f"{DUPLICATE_DISTANCE:g}): the generator passes over its latents. People go back to a checkpoint from before, "
        "or train with more pictures, a larger batch or stronger regularisation"
    )
