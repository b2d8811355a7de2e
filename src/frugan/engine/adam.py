"""Adam (Kingma and Ba 2014): torch's fused one, gated on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from frugan.engine.host_state import beside
from frugan.engine.optimizer import Optimizer


class Adam(Optimizer, torch.optim.Adam):
    """Adam with fp32 statistics.

    Args:
        parameters: fp32 masters.
        lr, betas, eps: as torch defines them.
    """

    elementwise = True
    slots = ("exp_avg", "exp_avg_sq")
    steps = ("step",)

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        torch.optim.Adam.__init__(self, parameters, lr=lr, betas=betas, eps=eps, fused=True)

    @torch.no_grad()
    def update(
        self, accepted: Tensor, *, learning_rate: float, period: int | None, share: float | None, seed: int
    ) -> None:
        """Move every parameter that has a gradient; nothing at all where `accepted` is False.

        Raises:
            ValueError: a cosine or a share was given.
        """
        if period is not None or share is not None:
            raise ValueError(f"Adam has no learning-rate dropout (period {period}, share {share})")
        for group in self.param_groups:
            group["lr"] = learning_rate
        self.found_inf = (~accepted).float()
        self.grad_scale = None
        if self.on_host:
            self._step_parameter_by_parameter()
        else:
            self.step()

    def _step_parameter_by_parameter(self) -> None:
        """One step whose statistics lie in host memory: each comes over, moves and goes back.

        Copies and updates are queued on one stream, so that the host waits for none of them.
        """
        gradients = {parameter: parameter.grad for parameter in self.moved() if parameter.grad is not None}
        for parameter in gradients:
            parameter.grad = None
        for parameter, gradient in gradients.items():
            host = self.state[parameter]
            self.state[parameter] = {
                slot: beside(value, parameter) if slot in self.slots else value for slot, value in host.items()
            }
            parameter.grad = gradient
            self.step()
            parameter.grad = None
            for slot in self.slots:
                host[slot].copy_(self.state[parameter][slot], non_blocking=True)
            self.state[parameter] = host
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
