"""Loss terms that take their own gradient at once, a few samples at a time.

A structural loss on 512-pixel faces keeps some 25 full-size fp32 maps for its backward. Its gradient with respect to
the prediction is one map. So the gradient is taken while the loss is computed, and only that map is kept: the same
products as a backward later, in a twentieth of the memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

PIECE_ELEMENTS = 1 << 21
"""Elements of the first prediction in one piece: whole batches of small pictures, 2 samples of 512 pixels."""

Terms = dict[str, Tensor]


def eager_gradient(
    loss: Callable[[Sequence[Tensor], Sequence[Tensor]], Terms],
    predictions: Sequence[Tensor],
    constants: Sequence[Tensor],
) -> Terms:
    """Compute terms that are means over samples; the gradient flows as if their sum had been computed as usual.

    Args:
        loss: (predictions of some samples, constants of the same) -> scalar terms, each a mean over the samples, in
            which no sample looks at another.
        predictions: [B, ...] each; receive gradients.
        constants: [B, ...] each.

    Returns:
        The terms by name. The gradient of all of them together is attached to the first one: only their sum may be
        differentiated, with the same weight for each, which is what a part of a phase does.
    """
    if not torch.is_grad_enabled() or not any(p.requires_grad for p in predictions):
        return loss(predictions, constants)
    names: list[str] = []

    def run(*given: Tensor) -> tuple[Tensor, list[Tensor]]:
        names[:], values, gradients = _in_pieces(loss, given, constants)
        return values, gradients

    values = _Eager.apply(run, *predictions)
    detached = values.detach()
    found = {name: detached[i] for i, name in enumerate(names)}
    # Adds nothing to the value, and the whole gradient.
    found[names[0]] = detached[0] + (values.sum() - detached.sum())
    return found


def _in_pieces(
    loss: Callable[[Sequence[Tensor], Sequence[Tensor]], Terms],
    predictions: Sequence[Tensor],
    constants: Sequence[Tensor],
) -> tuple[list[str], Tensor, list[Tensor]]:
    """Names and values of the terms, and the gradient of their sum for each prediction."""
    size = len(predictions[0])
    step = max(1, PIECE_ELEMENTS // max(1, predictions[0][0].numel()))
    gradients = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in predictions]
    names: list[str] = []
    total: Tensor | None = None
    for first in range(0, size, step):
        here = slice(first, min(first + step, size))
        with torch.enable_grad():
            piece = [p[here].detach().requires_grad_() for p in predictions]
            terms = loss(piece, [c[here] for c in constants])
            share = (here.stop - first) / size
            stacked = torch.stack(list(terms.values())) * share
            found = torch.autograd.grad(stacked.sum(), piece)
        for gradient, made in zip(gradients, found, strict=True):
            gradient[here].copy_(made)
        names = list(terms)
        total = stacked.detach() if total is None else total + stacked.detach()
    assert total is not None
    return names, total, gradients


class _Eager(torch.autograd.Function):
    """Values whose gradient is known already."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., tuple[Tensor, list[Tensor]]], *predictions: Tensor) -> Tensor:
        values, gradients = run(*predictions)
        ctx.save_for_backward(*gradients)
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        # Every term has the same weight in a part's loss; so one of them says it.
        weight = outer[0][0]
        return None, *(gradient * weight for gradient in ctx.saved_tensors)
