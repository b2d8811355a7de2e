"""Recompute: a block's activations are dropped after its forward and made again in backward.

Exact by construction: the working weights stay in place until backward is done, layers stage nothing while a block runs
again, and no forward draws random numbers. Per block, because one checkpoint around a whole network saves nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from frugan.phase import Stateful


@dataclass
class _Repetition:
    """Tells the block's observers that what runs now is a repetition. Entered again by every double backward."""

    block: nn.Module

    def _flag(self, recomputing: bool) -> None:
        for module in self.block.modules():
            if isinstance(module, Stateful) and module.observer is not None:
                module.observer.recomputing = recomputing

    def __enter__(self) -> None:
        self._flag(True)

    def __exit__(self, *_: object) -> None:
        self._flag(False)


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _Repetition(block)


def _run(block: nn.Module, *args: Any) -> Any:
    forward = partial(type(block).forward, block)
    if not torch.is_grad_enabled():
        return forward(*args)
    return checkpoint(
        forward, *args, use_reentrant=False, preserve_rng_state=False, context_fn=partial(_contexts, block)
    )


@contextmanager
def recomputing(networks: Mapping[str, nn.Module], blocks: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Recompute the named blocks (network -> module names) of the networks that are present, while this is open."""
    chosen = [networks[name].get_submodule(block) for name in blocks if name in networks for block in blocks[name]]
    for block in chosen:
        # An attribute of the instance hides the method of its class until it is deleted.
        block.__dict__["forward"] = partial(_run, block)
    try:
        yield
    finally:
        for block in chosen:
            del block.__dict__["forward"]
