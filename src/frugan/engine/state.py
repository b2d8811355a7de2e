"""Everything that training moves, in one place: what a step changes and a checkpoint keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frugan.engine.ema import Ema, EmaSettings
from frugan.engine.optimizers import AdamSettings, create_optimizer, named_parameters, networks_of
from frugan.engine.plan import Plan
from frugan.engine.precision import LossScale
from frugan.engine.working_weights import set_normalisation_batch
from frugan.phase import BufferRule, Phase


@dataclass
class TrainingState:
    """What training has reached.

    Attributes:
        networks: fp32 masters.
        optimizers: by the name that phases give.
        loss_scales: by optimizer.
        carried: phase -> name -> fp32 scalar.
        ema: the averages.
        skipped: phase -> updates skipped so far (int64 scalars on the device).
        step: steps done.
        device: where it all lives.
    """

    networks: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]
    loss_scales: dict[str, LossScale]
    carried: dict[str, dict[str, Tensor]]
    ema: Ema
    skipped: dict[str, Tensor]
    step: int
    device: torch.device


def create_state(
    networks: dict[str, nn.Module],
    phases: Sequence[Phase],
    optimizers: Mapping[str, AdamSettings],
    averaged: Mapping[str, BufferRule],
    ema: EmaSettings,
    plan: Plan,
    normalisation_batch: int | None,
    device: torch.device,
) -> TrainingState:
    """Set up the first state for networks that are on the device already."""
    for network in networks.values():
        network.train()
        set_normalisation_batch(network, normalisation_batch)
    used = list(dict.fromkeys(phase.optimizer for phase in phases))
    return TrainingState(
        networks=networks,
        optimizers={
            name: create_optimizer(optimizers[name], named_parameters(networks, networks_of(name, phases)))
            for name in used
        },
        loss_scales={name: LossScale.create(plan.precision, device) for name in used},
        carried={
            phase.name: {
                name: torch.full((), carried.initial, device=device) for name, carried in phase.carried.items()
            }
            for phase in phases
        },
        ema=Ema(networks, averaged, ema, on_host=plan.ema_on_host),
        skipped={phase.name: torch.zeros((), dtype=torch.int64, device=device) for phase in phases},
        step=0,
        device=device,
    )
