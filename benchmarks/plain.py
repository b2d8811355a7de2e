"""A recipe's step run plainly, as the original programs run theirs: what frugan's way of running it is held against."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

import torch
from torch import Tensor

from frugan.accelerator.precision import resolve_precision
from frugan.engine.plan import Layout, Plan
from frugan.engine.state.optimizer import Adam
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.nn.attention import SelfAttention

PLAINLY = (
    "fp32, NCHW, eager, weights normalised anew for every micro-batch, attention by products and a softmax, Adam "
    "parameter by parameter, same micro-batches"
)
"""In words."""


class PlainPlan(Plan):
    """A plan whose weights keep the layout they are written in."""

    def layout(self, device: torch.device) -> Layout:
        """NCHW."""
        return Layout(self.precision.dtype, channels_last=False)


class PlainAdam(Adam):
    """torch's Adam, one parameter after the other."""

    @torch.no_grad()
    def update(
        self, accepted: Tensor, *, learning_rate: float, period: int | None, share: float | None, seed: int
    ) -> None:
        """Move every parameter that has a gradient, whatever the verdict."""
        for group in self.param_groups:
            group.update(lr=learning_rate, fused=False, foreach=False)
        torch.optim.Adam.step(self)


def in_nchw(plan: Plan) -> PlainPlan:
    """The same plan without channels-last."""
    return PlainPlan(**{field.name: getattr(plan, field.name) for field in fields(plan)})


def plain_plan(plan: Plan, device: torch.device) -> PlainPlan:
    """As many samples at a time as another plan, and nothing else of it."""
    return PlainPlan(plan.micro_batch, resolve_precision("fp32", device), parts_in_sequence=False)


def plainly(state: TrainingState, step: Step) -> tuple[TrainingState, Step]:
    """The step that prepares weights at every micro-batch, and a state whose Adam and attention are plain ones."""
    for module in (module for network in state.networks.values() for module in network.modules()):
        if isinstance(module, SelfAttention):
            module.__dict__["forward"] = partial(_attend_plainly, module.forward)
    for name, optimizer in state.optimizers.items():
        if type(optimizer) is Adam:
            group = optimizer.param_groups[0]
            plain = PlainAdam(list(optimizer.parameters()), lr=group["lr"], betas=group["betas"], eps=group["eps"])
            state.optimizers[name] = plain
    return state, replace(step, originals=True)


def _attend_plainly(attend: Callable[[Tensor, bool], Tensor], x: Tensor, _: bool = False) -> Tensor:
    return attend(x, True)
