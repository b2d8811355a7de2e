"""Everything that training moves, in one place: what a step changes and a checkpoint keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from frugan.engine.ema import Ema, EmaSettings
from frugan.engine.optimizer_state import move_state
from frugan.engine.optimizers import OptimizerSettings, create_optimizer, named_parameters, networks_of
from frugan.engine.plan import Plan
from frugan.engine.precision import LossScale
from frugan.engine.working_weights import lay_out_masters, set_normalisation_batch
from frugan.phase import BufferRule, Phase


@dataclass
class TrainingState:
    """What training has reached.

    Attributes:
        networks: fp32 masters.
        optimizers: by the name that phases give.
        moves: optimizer -> networks that it moves.
        loss_scales: by optimizer.
        carried: name -> fp32, a scalar or [n].
        ema: the averages.
        skipped: phase -> updates skipped so far (int64 scalars on the device).
        step: steps done.
        device: where it all lives.
        optimizer_on_host: but the optimizers' state lives in host memory.
        normalisation_batch: samples that are looked at together; None: those of a micro-batch.
        parked: file of a checkpoint -> tensors of networks and optimizers that no phase uses at present, on the host;
            kept for when one does again.
    """

    networks: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]
    moves: dict[str, tuple[str, ...]]
    loss_scales: dict[str, LossScale]
    carried: dict[str, Tensor]
    ema: Ema
    skipped: dict[str, Tensor]
    step: int
    device: torch.device
    optimizer_on_host: bool = False
    normalisation_batch: int | None = None
    parked: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    @property
    def shown(self) -> dict[str, nn.Module]:
        """The networks that sheets are made with: the averages, or all networks where training averages none."""
        return self.ema.networks or self.networks

    def follow(self, plan: Plan) -> None:
        """Move averages and optimizer state to where a plan wants them, in the midst of training.

        First what goes to the host, then what comes back: both at once may not fit.
        """
        for to_host in (True, False):
            if plan.ema_on_host == to_host != self.ema.on_host:
                self.ema.move(on_host=to_host)
            if plan.optimizer_on_host == to_host != self.optimizer_on_host:
                self.optimizer_on_host = to_host
                for optimizer in self.optimizers.values():
                    move_state(optimizer, on_host=to_host)


def create_state(
    networks: dict[str, nn.Module],
    phases: Sequence[Phase],
    optimizers: Mapping[str, OptimizerSettings],
    averaged: Mapping[str, BufferRule],
    ema: EmaSettings,
    plan: Plan,
    normalisation_batch: int | None,
    device: torch.device,
) -> TrainingState:
    """Set up the first state for networks that are on the device already.

    Args:
        phases: every phase that training may come to run.
    """
    for network in networks.values():
        network.train()
        lay_out_masters(network, plan.layout(device))
        set_normalisation_batch(network, normalisation_batch)
    moves = {name: networks_of(name, phases) for name in dict.fromkeys(phase.optimizer for phase in phases)}
    return TrainingState(
        networks=networks,
        optimizers={
            name: create_optimizer(optimizers[name], named_parameters(networks, moved), on_host=plan.optimizer_on_host)
            for name, moved in moves.items()
        },
        moves=moves,
        loss_scales={name: LossScale.create(plan.precision, device) for name in moves},
        carried={name: _filled(carried.initial, device) for phase in phases for name, carried in phase.carried.items()},
        ema=Ema(networks, averaged, ema, on_host=plan.ema_on_host),
        skipped={phase.name: torch.zeros((), dtype=torch.int64, device=device) for phase in phases},
        step=0,
        device=device,
        optimizer_on_host=plan.optimizer_on_host,
        normalisation_batch=normalisation_batch,
    )


def _filled(values: float | tuple[float, ...], device: torch.device) -> Tensor:
    """One number, or several [n]; fp32. By `full`: a literal tensor under a fake mode has crashed the interpreter."""
    if isinstance(values, tuple):
        return torch.stack([_filled(value, device) for value in values])
    return torch.full((), float(values), device=device)
