"""Undocumented parts of torch that frugan uses, each of which has a test.

A release of torch may change any of them; tests/test_torch_internals.py then says which.
"""

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = [
    "FakeTensorMode",
    "OpOverload",
    "TorchDispatchMode",
    "foreach_add_",
    "foreach_copy_",
    "foreach_div",
    "foreach_div_",
    "foreach_mul_",
    "foreach_norm",
    "has_amx",
    "has_avx512_bf16",
    "is_node_needed",
    "is_traced",
    "running_backward_node",
    "storage_holders",
    "tree_leaves",
    "tree_map",
]

# Operations on lists of tensors, which torch's own optimizers call: few launches on a card for any number of tensors.
foreach_add_ = torch._foreach_add_
foreach_copy_ = torch._foreach_copy_
foreach_div = torch._foreach_div
foreach_div_ = torch._foreach_div_
foreach_mul_ = torch._foreach_mul_
foreach_norm = torch._foreach_norm


def has_amx() -> bool:
    """Whether this processor multiplies tiles of bf16."""
    return bool(torch.cpu._is_amx_tile_supported())


def has_avx512_bf16() -> bool:
    """Whether this processor has AVX-512 instructions for bf16."""
    return bool(torch.cpu._is_avx512_bf16_supported())


def storage_holders(tensor: Tensor) -> int:
    """Count the tensors that share a tensor's memory, itself included."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def running_backward_node() -> Any | None:
    """Node of the graph that the backward pass of this thread is at; None: no backward pass runs."""
    return torch._C._current_autograd_node()


def is_node_needed(node: Any) -> bool:
    """Whether the running backward pass will reach a node, since a requested gradient depends on it."""
    return bool(torch._C._will_engine_execute_node(node))


def is_traced() -> bool:
    """Whether operations are recorded for a compiler rather than run."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
