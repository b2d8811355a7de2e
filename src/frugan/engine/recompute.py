"""Recompute: a block's activations are dropped after its forward and made again in backward.

Exact by construction: the working weights stay in place until backward is done, layers stage nothing while a block runs
again, and no forward draws random numbers. Per block, because one checkpoint around a whole network saves nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from frugan.contract.layers import Stateful
from frugan.engine.offload import HostCopies

_aten = torch.ops.aten
_PRODUCTS = frozenset(
    {
        _aten.convolution,
        _aten.mm,
        _aten.addmm,
        _aten.bmm,
        _aten.baddbmm,
        _aten._scaled_dot_product_flash_attention,
        _aten._scaled_dot_product_flash_attention_for_cpu,
        _aten._scaled_dot_product_efficient_attention,
        _aten._scaled_dot_product_cudnn_attention,
    }
)
"""Operations whose results cost more to make again than to keep."""

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
"""What surrounds a block's first forward, and its repetition."""


@dataclass
class _Repetition:
    """Tells the block's observers that what runs now is a repetition. Entered again by every double backward."""

    block: nn.Module
    kept: AbstractContextManager[Any] = field(default_factory=nullcontext)

    def _flag(self, recomputing: bool) -> None:
        for module in self.block.modules():
            if isinstance(module, Stateful) and module.observer is not None:
                module.observer.recomputing = recomputing

    def __enter__(self) -> None:
        self._flag(True)
        self.kept.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.kept.__exit__(*error)
        self._flag(False)


def _contexts(block: nn.Module) -> Contexts:
    return nullcontext(), _Repetition(block)


def _contexts_with_products(block: nn.Module) -> Contexts:
    keep, give = create_selective_checkpoint_contexts(_keep_products)
    return keep, _Repetition(block, give)


def _keep_products(_: object, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    is_product = operation.overloadpacket in _PRODUCTS
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


@dataclass(frozen=True)
class _Block:
    """A block that is recomputed.

    Attributes:
        block: it.
        forward: its own.
        contexts: what surrounds its forwards.
        host: where what it is given is kept; None: where it is.
    """

    block: nn.Module
    forward: Callable[..., Any]
    contexts: Callable[[nn.Module], Contexts]
    host: HostCopies | None

    def __call__(self, *args: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(*args)
        # Of what this keeps, only the block's arguments are seen from outside.
        with self.host.keeping() if self.host is not None else nullcontext():
            return checkpoint(
                self.forward,
                *args,
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=partial(self.contexts, self.block),
            )


@contextmanager
def recomputing(
    networks: Mapping[str, nn.Module],
    blocks: Mapping[str, Sequence[str]],
    *,
    keep_products: bool = False,
    host: HostCopies | None = None,
) -> Iterator[None]:
    """Recompute the named blocks (network -> module names) of the networks that are present, while this is open.

    Args:
        keep_products: keep the results of convolutions and matrix products. Not for blocks that write into such a
            result (an activation in place): torch raises.
        host: keeps what blocks are given; None: it stays where it is.
    """
    contexts = _contexts_with_products if keep_products else _contexts
    chosen = [networks[name].get_submodule(block) for name in blocks if name in networks for block in blocks[name]]
    before = [block.__dict__.get("forward") for block in chosen]
    for block, own in zip(chosen, before, strict=True):
        # An attribute of the instance hides the method of its class, or what slices have put in its place.
        block.__dict__["forward"] = _Block(block, own or partial(type(block).forward, block), contexts, host)
    try:
        yield
    finally:
        for block, own in zip(chosen, before, strict=True):
            if own is None:
                del block.__dict__["forward"]
            else:
                block.__dict__["forward"] = own
