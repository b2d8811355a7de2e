"""Undocumented parts of torch that frugan uses, each of which has a test.

A release of torch may change any of them; tests/test_torch_internals.py then says which.
"""

import copy
import importlib
import sys
import weakref
from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from operator import eq
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

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
    "inside_function",
    "is_compiled",
    "is_node_needed",
    "is_traced",
    "no_compiler",
    "running_backward_node",
    "storage_holders",
    "tree_leaves",
    "tree_map",
    "write_count",
]

# Operations on lists of tensors, which torch's own optimizers call: few launches on a card for any number of tensors.
foreach_add_ = torch._foreach_add_
foreach_copy_ = torch._foreach_copy_
foreach_div = torch._foreach_div
foreach_div_ = torch._foreach_div_
foreach_mul_ = torch._foreach_mul_
foreach_norm = torch._foreach_norm


def tree_map(function: Callable[[Any], Any], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Map the leaves of nested containers, also those of a `UserDict` or a dataclass, which keep their types."""

    def mapped(leaf: Any) -> Any:
        inside = None if is_leaf is not None and is_leaf(leaf) else _inside(leaf)
        if inside is None:
            return function(leaf)
        new = copy.copy(leaf)
        changed = tree_map(function, inside, is_leaf)
        for name, value in ({"data": changed} if isinstance(leaf, UserDict) else changed).items():
            object.__setattr__(new, name, value)  # a dataclass may be frozen
        return new

    return _pytree.tree_map(mapped, tree, is_leaf=is_leaf)


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of nested containers, those inside a `UserDict` or a dataclass too."""
    leaves = _pytree.tree_leaves(tree)
    insides = [_inside(leaf) for leaf in leaves]
    if all(inside is None for inside in insides):
        return leaves
    both = zip(leaves, insides, strict=True)
    return [inner for leaf, inside in both for inner in ([leaf] if inside is None else tree_leaves(inside))]


def _inside(leaf: Any) -> dict[str, Any] | None:
    """Return what is in a container that torch takes for a leaf: a tokenizer's batch, or a dataclass; None: it is one.

    A field that is not set is left out.
    """
    if isinstance(leaf, UserDict):
        return leaf.data
    if not hasattr(type(leaf), "__dataclass_fields__"):
        return None
    return {each.name: getattr(leaf, each.name) for each in fields(leaf) if hasattr(leaf, each.name)}


def has_amx() -> bool:
    """Whether this processor multiplies tiles of bf16."""
    return bool(torch.cpu._is_amx_tile_supported())


def has_avx512_bf16() -> bool:
    """Whether this processor has AVX-512 instructions for bf16."""
    return bool(torch.cpu._is_avx512_bf16_supported())


def is_compiled(module: Any) -> bool:
    """Whether a module was given to torch's compiler, by `module.compile()` or `torch.compile(module)`."""
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")


def storage_holders(tensor: Tensor) -> int:
    """Count the tensors that share a tensor's memory, itself included."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def write_count(tensor: Tensor) -> int:
    """Count the writes in place so far to the memory that a tensor shares with its views, as autograd sees them."""
    return int(tensor._version)


def inside_function(function: Any) -> Callable[..., Any] | None:
    """Return a function of `torch.nn.functional` that does not hand itself to a `TorchFunctionMode`, but what it calls.

    None: it is not written in Python, or does not hand itself over.
    """
    if not isinstance(function, FunctionType) or function.__module__ != "torch.nn.functional":
        return None
    # What it asks first is whether a mode is on, by global names; pools ask inside another function of theirs.
    questions = [name for name in function.__code__.co_names if name.startswith("has_torch_function")]
    if not questions:
        return None
    names = {**function.__globals__, **dict.fromkeys(questions, lambda *_: False)}
    inside = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    inside.__kwdefaults__ = function.__kwdefaults__
    return inside


def running_backward_node() -> Any | None:
    """Node of the graph that the backward pass of this thread is at; None: no backward pass runs."""
    return torch._C._current_autograd_node()


def is_node_needed(node: Any) -> bool:
    """Whether the running backward pass will reach a node, since a requested gradient depends on it."""
    return bool(torch._C._will_engine_execute_node(node))


def is_traced() -> bool:
    """Whether operations are recorded for a compiler rather than run."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


# Torch's compiler, kept from being imported: nothing is compiled.

COMPILER, SYMBOLS = "torch._dynamo", "torch.fx.experimental.symbolic_shapes"
_SETTINGS = SimpleNamespace(error_on_nested_fx_trace=True)  # read by a recomputation, used where something is compiled


class _StandIn(ModuleType):
    """A module of which a few functions are known; gives way to the real one when asked for another."""

    def __init__(self, name: str, known: dict[str, Any]) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # a package, to Python's import
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _remove(self)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def no_compiler() -> Iterator[None]:
    """Inside, torch's compiler is not imported, unless somebody asks for more of it than to be left alone.

    That spares a process that only plans two seconds of a processor's time. Torch imports it at the first call of many
    a function (an optimizer's step, a backward from given gradients) only to say that it must not compile it, or to
    compare sizes that might be symbols. As nothing is compiled, that changes nothing.
    """
    answered: list[weakref.ref[Any]] = []  # weak: some are made at every call and hold its tensors

    def disable(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        answered.append(weakref.ref(function))
        return function

    stand_ins: list[_StandIn] = [
        _StandIn(COMPILER, {"disable": disable, "graph_break": lambda *_, **__: None, "config": _SETTINGS}),
        _StandIn(SYMBOLS, {"expect_true": bool, "sym_eq": eq}),
    ]
    stand_ins = [module for module in stand_ins if module.__name__ not in sys.modules]
    sys.modules.update({module.__name__: module for module in stand_ins})
    try:
        yield
    finally:
        for module in stand_ins:
            _remove(module)
        for reference in answered:  # torch noted the answer; let it ask again
            if (function := reference()) is not None:
                vars(function).pop("__dynamo_disable", None)


def _remove(stand_in: _StandIn) -> None:
    if sys.modules.get(stand_in.__name__) is stand_in:
        del sys.modules[stand_in.__name__]
