"""Forward and backward of one micro-batch, as it is written; what compiles it stands in for it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.engine.plan import Plan

Backward = Callable[[Phase, Networks, MicroBatch, PhaseState, float, Plan], Terms]
"""(phase, networks on their working weights, micro-batch, the phase's state, factor of the loss, plan) -> terms,
detached; gradients are in the working weights."""


def forward_and_backward(
    phase: Phase, networks: Networks, micro: MicroBatch, own: PhaseState, factor: float, plan: Plan
) -> Terms:
    """Run a phase's parts on one micro-batch and leave their gradients in the working weights.

    Args:
        factor: of the loss: the phase's gain, and the micro-batch's share of the update.
    """
    terms: Terms = {}
    losses: list[Tensor] = []
    scale = own.loss_scale * factor  # what each loss counts: backward begins with it, so that no product is recorded
    for part in phase.parts:
        found = part(networks, micro, own)
        terms |= {name: term.detach() for name, term in found.items()}
        losses += found.values()
        if plan.parts_in_sequence:
            _backward(losses, scale)
            losses.clear()
    if losses:
        _backward(losses, scale)
    return terms


def _backward(losses: Sequence[Tensor], scale: Tensor) -> None:
    """Backward of scale·loss, of several losses at once; some may be there to be read alone."""
    live = [loss for loss in losses if loss.requires_grad] or losses
    torch.autograd.backward(live, [scale.to(loss.dtype) for loss in live])
