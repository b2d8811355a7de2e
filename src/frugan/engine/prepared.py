"""Networks that are run outside of training: on working weights for a while, or whenever they are called."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from torch import nn

from frugan.contract.layers import Reparametrised
from frugan.engine.layout import Layout
from frugan.engine.working_weights import is_working, working_weights


@contextmanager
def prepared(network: nn.Module, layout: Layout | None = None) -> Iterator[nn.Module]:
    """Run a network for inference: evaluation mode, normalised and cast weights, nothing moves.

    Args:
        network: outside a phase.
        layout: dtype and memory format; default: fp32 as it is.
    """
    was_training = network.training
    network.eval()
    try:
        with working_weights({"network": network}, {"network": layout or Layout()}, (), None):
            yield network
    finally:
        network.train(was_training)


def make_callable(network: nn.Module) -> nn.Module:
    """Let a network be called as it is, outside the engine: each call prepares its weights and restores the masters.

    Gradients flow to the masters through the normalisation. Nothing moves. Inside `prepared` or a phase it steps aside.
    """
    restores: list[Callable[[], None]] = []

    def before(module: nn.Module, _: object) -> None:
        if is_working(module):
            return
        slots: list[tuple[nn.Module, str, nn.Parameter]] = []
        for owner in module.modules():
            if isinstance(owner, Reparametrised):
                for name in owner.reparametrised:
                    master = cast(nn.Parameter, owner._parameters[name])
                    slots.append((owner, name, master))
                    owner._parameters[name] = owner.working_weight(name, master)  # type: ignore[assignment]

        def restore() -> None:
            for owner, name, master in slots:
                owner._parameters[name] = master

        restores.append(restore)

    def after(_: nn.Module, __: object, ___: object) -> None:
        if restores:
            restores.pop()()

    network.register_forward_pre_hook(before)
    network.register_forward_hook(after, always_call=True)
    return network
