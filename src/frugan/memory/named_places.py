"""Names the places of a tracker after blocks of networks while these run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from frugan.engine.state import TrainingState
from frugan.memory.tracker import Tracker


def tensors_of(tree: object) -> list[Tensor]:
    """Tensors in a tree of any kind."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@contextmanager
def named_places(state: TrainingState, tracker: Tracker, blocks: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Name places after blocks: in a forward from the block's start, in a backward from when its gradient has come."""

    def named(name: str) -> str:
        return f"{tracker.place.split('/')[0]}/{name}"

    def watch(module: nn.Module, name: str) -> None:
        def before(_: nn.Module, given: object) -> None:
            if torch.is_grad_enabled():
                tracker.mark("saved activations", tensors_of(given))  # a recomputed block keeps what it is given
            tracker.place = named(name)

        def after(_: nn.Module, __: object, made: object) -> None:
            tracker.place = tracker.place.split("/")[0]
            for tensor in tensors_of(made):
                if tensor.requires_grad:
                    tensor.register_hook(lambda _: setattr(tracker, "place", named(f"{name} backward")))

        undo.callback(module.register_forward_pre_hook(before).remove)
        undo.callback(module.register_forward_hook(after).remove)

    with ExitStack() as undo:
        for network, names in blocks.items():
            for name in names if network in state.networks else ():
                watch(state.networks[network].get_submodule(name), f"{network}.{name}")
        yield
