"""What frugan uses of torch beyond what its documentation promises, in one place and each with a test.

A release of torch may change any of it; tests/test_torch_internals.py then says which.
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

# operations on lists of tensors, as torch's own optimizers call them: a few launches on a card for any number
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
    """Count the tensors that hold a tensor's memory, itself included."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def running_backward_node() -> Any | None:
    """Return the node of the graph that backward is at in this thread; None: no backward runs."""
    return torch._C._current_autograd_node()


def is_node_needed(node: Any) -> bool:
    """Return whether the backward that runs will come to a node, as some of the gradients asked for need it."""
    return bool(torch._C._will_engine_execute_node(node))


def is_traced() -> bool:
    """Whether operations are recorded for a compiler rather than run."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
