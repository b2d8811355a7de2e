"""Everything that training moves, in one place: what a step changes and a checkpoint keeps."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from frugan.engine.plan import Plan
from frugan.engine.state.ema import Ema
from frugan.engine.state.loss_scale import LossScale
from frugan.engine.state.optimizer import Optimizer, move_state


@dataclass
class TrainingState:
    """State of a training: networks, optimizers, loss scales, averages and counters."""

    networks: dict[str, nn.Module]  # fp32 masters
    optimizers: dict[str, Optimizer]  # by the name that phases give
    moves: dict[str, tuple[str, ...]]  # optimizer -> networks that it moves
    loss_scales: dict[str, LossScale]  # by optimizer
    carried: dict[str, Tensor]  # name -> fp32, a scalar or [n]
    ema: Ema  # the averages
    skipped: dict[str, Tensor]  # phase -> updates skipped so far (int64 scalars on the device)
    step: int  # steps done
    device: torch.device  # where it all lives
    within_step: bool = False  # whether some of a step's updates were made, and others were not
    optimizer_on_host: bool = False  # but the optimizers' state lives in host memory
    # file of a checkpoint -> tensors of networks and optimizers that no phase uses at present, on the host; kept for
    # when one does again
    parked: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    @property
    def shown(self) -> dict[str, nn.Module]:
        """The networks that grids are made with: the averages, or all networks where training averages none."""
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
