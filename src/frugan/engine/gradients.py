"""What becomes of gradients between the last backward and the update: measured, judged, clipped."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class GradientReport:
    """Gradients of one update, all on the device.

    Attributes:
        names: parameters that have a gradient.
        missing: parameters of the updated networks that got none.
        norms: L2 norm of each gradient [len(names)], fp32, unscaled.
        norm: L2 norm of all of them together.
        zeros: share of exact zeros [len(names)], if it was asked for.
    """

    names: tuple[str, ...]
    missing: tuple[str, ...]
    norms: Tensor
    norm: Tensor
    zeros: Tensor | None


@torch.no_grad()
def measure(parameters: Mapping[str, nn.Parameter], inverse_scale: Tensor | None, *, zeros: bool) -> GradientReport:
    """Unscale gradients in place, and measure them.

    Args:
        parameters: by name; those without gradient are only named.
        inverse_scale: multiplies every gradient; None: no loss scale.
        zeros: whether to count exact zeros (one more pass).

    Raises:
        RuntimeError: if no parameter got a gradient.
    """
    gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    if not gradients:
        raise RuntimeError(f"no gradient reached any of {', '.join(list(parameters)[:3])} ...: the loss ignores them")
    # counted as they are: as floats the zeros of a large layer would take as much memory as its gradient
    share = torch.stack([1 - g.count_nonzero() / g.numel() for g in gradients.values()]) if zeros else None
    if inverse_scale is not None:
        torch._foreach_mul_(list(gradients.values()), inverse_scale)
    norms = torch.stack(torch._foreach_norm(list(gradients.values())))
    return GradientReport(
        names=tuple(gradients),
        missing=tuple(name for name in parameters if name not in gradients),
        norms=norms,
        norm=torch.linalg.vector_norm(norms),
        zeros=share,
    )


def all_finite(values: Tensor) -> Tensor:
    """Whether all values are, as a bool scalar; torch's own `isfinite` is four kernels."""
    largest: Tensor = torch.linalg.vector_norm(values, math.inf)
    return largest < math.inf


@torch.no_grad()
def clip(parameters: Mapping[str, nn.Parameter], norm: Tensor, largest: float) -> None:
    """Scale all gradients down together so that their norm is at most `largest`.

    By exactly largest / norm: torch's own clipping adds 1e-6 to the norm, which the originals do not.
    """
    factor = torch.where(norm >= largest, largest / norm, 1.0)
    torch._foreach_mul_([p.grad for p in parameters.values() if p.grad is not None], factor)
