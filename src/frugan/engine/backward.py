"""Forward and backward of one micro-batch, as it is written; what compiles it stands in for it."""

from collections.abc import Callable

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
    for part in phase.parts:
        found = part(networks, micro, own)
        loss = torch.stack(list(found.values())).sum() * factor * own.loss_scale
        terms |= {name: term.detach() for name, term in found.items()}
        if plan.parts_in_sequence:
            loss.backward()
        else:
            losses.append(loss)
    if losses:
        torch.stack(losses).sum().backward()
    return terms
