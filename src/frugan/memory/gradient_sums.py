"""Where backward adds two gradients in the memory of the first.

Torch's engine does so when nobody else holds the first one; but not while anything watches its operations, as a tracker
does. Who watches can tell such a sum from others by who holds its operands, and do what the engine would have done.

Source: the comment on accumulation in `torch/csrc/autograd/input_buffer.cpp` (torch 2.11 to 2.13), and its behaviour.
"""

import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
ADD, ADD_IN_PLACE = aten.add.Tensor, aten.add_.Tensor


class Holders(NamedTuple):
    """How many hold an operation's first operand: its Python object, its tensor and its memory."""

    objects: int
    tensors: int
    memory: int


def holders(args: tuple[Any, ...]) -> Holders:
    """Of the first operand; to be called with the arguments as they came, from the mode that was given them."""
    memory = torch._C._storage_Use_Count(args[0].untyped_storage()._cdata)
    return Holders(sys.getrefcount(args[0]), args[0]._use_count(), memory)


def lone_holders() -> Holders:
    """What a mode sees where the engine alone holds a gradient: how many hold it on the way depends on versions."""
    seen: list[Holders] = []

    class Look(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is ADD and not torch.is_grad_enabled():
                seen.append(holders(args))
            return func(*args, **(kwargs or {}))

    with torch.enable_grad():
        x = torch.ones(2, requires_grad=True)
        y = x * 1
        z = torch.stack([y * 2, y * 3])
    with Look():
        torch.autograd.grad(z, y, torch.ones(2, 2))
    return seen[0]


def is_made_in_place(args: tuple[Any, ...], found: Holders, lone: Holders, first_made_in: int | None) -> bool:
    """Whether the engine would make a sum, neither scaled nor into anything, in the memory of its first operand.

    Args:
        args: its operands.
        found: who holds the first of them, as the mode saw it.
        lone: what it sees where only the engine does.
        first_made_in: `running_node` when the first operand's memory was made.
    """
    node = torch._C._current_autograd_node()
    if node is None or torch.is_grad_enabled() or any(more > few for more, few in zip(found, lone, strict=True)):
        return False
    a, b = args
    if not isinstance(b, Tensor) or a.dtype != b.dtype or a.shape != b.shape or not _is_dense(a):
        return False
    # The formulas of second derivatives add what they have just made, which is no sum of the engine's.
    return "BackwardBackward" not in node.name() or first_made_in != running_node()


def running_node() -> int | None:
    """Number of the node that backward is at; None: no backward runs."""
    node = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def _is_dense(x: Tensor) -> bool:
    """Whether a tensor fills its memory, each place once."""
    return x.numel() > 0 and sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1 == x.numel()
