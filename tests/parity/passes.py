"""Single passes through networks outside of training, as the recordings made them."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frugan.contract.layers import Observer
from frugan.contract.phase import MicroBatch, PhaseState
from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import prepared, working_weights
from parity.float64 import Float64Recording, InFloat64
from parity.golden import Case, Recording

Call = Callable[[nn.Module], Tensor]


@torch.no_grad()
def train_forward(network: nn.Module, call: Call) -> Tensor:
    """One forward in training mode; what the layers observed is committed."""
    observer = Observer()
    network.train()
    with working_weights({"network": network}, {"network": Layout()}, (), observer):
        out = call(network)
    observer.commit(None)
    return out


@torch.no_grad()
def eval_forward(network: nn.Module, call: Call) -> Tensor:
    """One forward in evaluation mode."""
    with prepared(network):
        return call(network)


@dataclass(frozen=True)
class Update:
    """One backward of one phase from the first state, without the update."""

    terms: dict[str, float]  # losses by name
    outputs: list[Tensor]  # of the discriminator, one for each part
    gradients: dict[str, Tensor]  # of the updated network's masters, by parameter


def first_update(case: Case, phase_name: str, *, float64: bool = False) -> Update:
    """Losses and gradients of phase "D" or "G" on the first row of inputs, not accumulated."""
    networks = case.built(torch.float64 if float64 else torch.float32)
    for network in networks.values():
        network.train()
    phase = next(phase for phase in case.phases() if phase.name == phase_name)
    outputs: list[Tensor] = []
    networks["D"].register_forward_hook(lambda _, __, output: outputs.append(output.detach()))
    size = int(case.options["batch_size"])
    feed = Float64Recording(case) if float64 else Recording(case)
    terms: dict[str, float] = {}
    with InFloat64() if float64 else nullcontext():
        draws = {"z": case.data["train.z"][0][:size], "y": case.data["train.y"][0][:size].long()}
        micro = MicroBatch({"images": feed.take("images", "images", 0, size)}, draws, size)
        layouts = dict.fromkeys(networks, Layout())
        with working_weights(networks, layouts, phase.updates, Observer()) as working:
            for part in phase.parts:
                own_terms = part(networks, micro, PhaseState({}, torch.ones(())))
                torch.stack(list(own_terms.values())).sum().backward()
                terms |= {name: float(term.detach()) for name, term in own_terms.items()}
            for weights in working.values():
                weights.carry()
    gradients = {key: p.grad for key, p in networks[phase_name].named_parameters() if p.grad is not None}
    return Update(terms, outputs, gradients)
