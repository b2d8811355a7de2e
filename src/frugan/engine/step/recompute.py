"""Recomputation: a block's activations are dropped after its forward and recomputed in backward."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from frugan.accelerator.host_memory import HostCopies
from frugan.contract.layers import Stateful

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
"""Operations whose results cost more to recompute than to keep."""


Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
"""Contexts of a block's first forward and of its recomputation."""


@dataclass
class _Forward:
    """A block's forward, which marks every call but the first as a recomputation for the block's observers."""

    block: nn.Module
    forward: Callable[..., Any]
    _ran: bool = False

    def __call__(self, *args: Any) -> Any:
        observers = {m.observer for m in self.block.modules() if isinstance(m, Stateful) and m.observer is not None}
        for observer in observers:
            observer.leave_room()  # torch matches kept products only if the recomputation runs the very same operations
            observer.recomputing = self._ran
        self._ran = True
        try:
            return self.forward(*args)
        finally:
            for observer in observers:
                observer.recomputing = False


def _contexts_with_products() -> Contexts:
    keep, give = create_selective_checkpoint_contexts(_keep_products)
    return keep, give


def _keep_products(_: object, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    is_product = operation.overloadpacket in _PRODUCTS
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


@dataclass(frozen=True)
class _Block:
    """Forward of a block whose activations are recomputed in backward."""

    block: nn.Module
    forward: Callable[..., Any]  # the block's original forward
    contexts: Callable[[], Contexts]  # contexts of forward and recomputation
    host: HostCopies | None  # offloads the block's inputs; None: they stay on the device

    def __call__(self, *args: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(*args)
        # Of the tensors that this keeps, only the block's arguments reach the hooks of `keeping`.
        with self.host.keeping() if self.host is not None else nullcontext():
            return checkpoint(
                _Forward(self.block, self.forward),
                *args,
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=self.contexts,
            )


@contextmanager
def recomputing(
    networks: Mapping[str, nn.Module],
    blocks: Mapping[str, Sequence[str]],
    *,
    keep_products: bool = False,
    host: HostCopies | None = None,
    bring_ahead: bool = False,
) -> Iterator[None]:
    """Recompute the named blocks (network -> module names) of the networks that are present.

    A block's activations are dropped after its forward and recomputed in backward. Exact by construction: the working
    weights stay in place until backward is done, layers stage nothing while a block is recomputed, and no forward
    draws random numbers. Per block, because one checkpoint around a whole network saves nothing.

    Args:
        keep_products: keep the results of convolutions and matrix products. Not for blocks that write into such a
            result (an activation in place): torch raises.
        host: offloads the inputs of blocks; None: they stay on the device.
        bring_ahead: bring inputs back one block before they are needed.
    """
    contexts = _contexts_with_products if keep_products else noop_context_fn
    chosen = [networks[name].get_submodule(block) for name in blocks if name in networks for block in blocks[name]]
    before = [block.__dict__.get("forward") for block in chosen]
    for block, forward in zip(chosen, before, strict=True):
        # An attribute of the instance hides the method of its class, or what slices have put in its place.
        block.__dict__["forward"] = _Block(block, forward or partial(type(block).forward, block), contexts, host)
    try:
        with host.until_done(bring_ahead=bring_ahead) if host is not None else nullcontext():
            yield
    finally:
        for block, forward in zip(chosen, before, strict=True):
            if forward is None:
                del block.__dict__["forward"]
            else:
                block.__dict__["forward"] = forward
