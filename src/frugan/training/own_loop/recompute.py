"""Blocks whose activations are made again in backward, on what they were given and held the first time."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import EllipsisType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from frugan.errors import BadInput
from frugan.torch_internals import tree_leaves, write_count
from frugan.wording import nearest


@dataclass
class _Forward:
    """A block's forward; when it is repeated, on what it was given and held before, so that nothing moves twice.

    Running statistics are such, vectors of a spectral norm, which the result depends on, and caches of keys and values,
    to which a decoder's block would add once more.
    """

    block: nn.Module
    forward: Callable[..., Any]
    _before: "Before | None" = field(default=None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._before is None:
            self._before = Before.of(self.block, args, kwargs)
            return self.forward(*args, **kwargs)
        with self._before.restored(self.block) as (args_before, kwargs_before):
            return self.forward(*args_before, **kwargs_before)


@dataclass(frozen=True)
class Before:
    """Inputs and state of a block before its forward; tensors are shared but for its buffers, containers are copies."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    buffers: list[tuple[nn.Module, str, Tensor]]
    attributes: list[tuple[nn.Module, dict[str, Any]]]  # plain ones, of its modules
    versions: list[tuple[Tensor, int]]  # counts of the writes to each tensor so far

    @classmethod
    def of(cls, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Before":
        tensors: list[Tensor] = []
        copied_args, copied_kwargs = _copied((args, kwargs), {}, tensors)
        buffers = [(m, name, b.clone()) for m in block.modules() for name, b in m._buffers.items() if b is not None]
        attributes = [
            (m, {k: copy.copy(v) if isinstance(v, list | dict | set) else v for k, v in vars(m).items()})
            for m in block.modules()
        ]
        return cls(copied_args, copied_kwargs, buffers, attributes, [(t, write_count(t)) for t in tensors])

    @contextmanager
    def restored(self, block: nn.Module) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Put a block's buffers and attributes of then in place, and give what it was given.

        Raises:
            RuntimeError: a tensor that it was given has been written to since.
        """
        if any(write_count(tensor) != version for tensor, version in self.versions):
            raise RuntimeError(
                f"what a {type(block).__name__} is given is written to in place, by itself or after it, so that it "
                "cannot be run again on the same"
            )
        now = [(m, name, b) for m in block.modules() for name, b in m._buffers.items() if b is not None]
        held = [(module, _plain(vars(module))) for module in block.modules()]
        try:
            for module, attributes in self.attributes:
                vars(module).update(_plain(attributes))
            for module, name, buffer in self.buffers:
                module._buffers[name] = buffer
            yield self.args, self.kwargs
        finally:
            for module, attributes in held:
                vars(module).update(attributes)
            for module, name, buffer in now:
                module._buffers[name] = buffer


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """A module's attributes but for torch's own tables, and its forward, which is in our hands."""
    return {
        key: value
        for key, value in attributes.items()
        if key != "forward" and not (key.startswith("_") and isinstance(value, dict | set))
    }


_SHARED = (nn.Module, torch.dtype, torch.device, torch.Generator, type, ModuleType, FunctionType, MethodType)
_SINGLE = (str, bytes, int, float, complex, NoneType, EllipsisType)


def _copied(value: Any, known: dict[int, Any], tensors: list[Tensor]) -> Any:
    """Copy containers and plain objects, however deep; tensors are shared, and noted.

    Raises:
        RuntimeError: an object has no way to be copied.
    """
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, Tensor):
        tensors.append(value)
        return value
    if isinstance(value, (*_SHARED, *_SINGLE)):
        return value
    if isinstance(value, tuple | frozenset):
        items = [_copied(item, known, tensors) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    try:
        new = copy.copy(value)
    except (TypeError, ValueError, AttributeError) as error:
        raise RuntimeError(f"it is given a {type(value).__name__}, which cannot be copied: {error}") from error
    known[id(value)] = new
    if isinstance(value, list):
        new[:] = [_copied(item, known, tensors) for item in value]
    elif isinstance(value, dict):
        for key, item in value.items():
            dict.__setitem__(new, key, _copied(item, known, tensors))
    if new is not value and hasattr(value, "__dict__"):
        for key, item in vars(value).items():
            new.__dict__[key] = _copied(item, known, tensors)
    return new


@contextmanager
def recomputing(model: nn.Module, names: Sequence[str], again: AbstractContextManager[Any]) -> Iterator[None]:
    """Recompute the activations of blocks in backward, with the same dropout, instead of keeping them.

    Args:
        again: what they are run again in.
    """
    with ExitStack() as stack:
        for block, forward in recompute_blocks(model, names, again):
            stack.callback(_restore_forward, block, forward)
        yield


def recompute_blocks(
    model: nn.Module, names: Sequence[str], again: AbstractContextManager[Any] | None = None
) -> list[tuple[nn.Module, Callable[..., Any] | None]]:
    """Wrap the forward of blocks in torch's checkpoint, where it is not yet.

    Args:
        again: what they are run again in; None: as the first time.

    Returns:
        Those that were wrapped, each with the attribute that its forward was before, if it was one.
    """
    before = []
    for block in [block_named(model, name) for name in names]:
        forward = block.__dict__.get("forward")
        if getattr(forward, "func", None) is not _checkpointed:
            # An attribute of the instance hides the method of its class.
            block.__dict__["forward"] = partial(
                _checkpointed, block, forward or partial(type(block).forward, block), again or nullcontext()
            )
            before.append((block, forward))
    return before


def _checkpointed(
    block: nn.Module, forward: Callable[..., Any], again: AbstractContextManager[Any], *args: Any, **kwargs: Any
) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    drawn = not any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_leaves((args, kwargs)))
    return checkpoint(
        _Forward(block, forward),
        *args,
        use_reentrant=False,
        preserve_rng_state=drawn,
        context_fn=lambda: (nullcontext(), again),
        **kwargs,
    )


def _restore_forward(block: nn.Module, forward: Callable[..., Any] | None) -> None:
    if forward is None:
        del block.__dict__["forward"]
    else:
        block.__dict__["forward"] = forward


def block_named(model: nn.Module, name: str) -> nn.Module:
    """A module of a model that can be called by itself.

    Raises:
        BadInput: there is none of this name, or it is a list.
    """
    known: dict[str, nn.Module] = dict(model.named_modules())
    if not name or name not in known:
        raise BadInput(f"block {name!r} is unknown in this {type(model).__name__}{nearest(str(name), [*known])}")
    if isinstance(known[name], nn.ModuleList | nn.ModuleDict):
        raise BadInput(f"block {name!r} is a {type(known[name]).__name__}, which is not called: name what it holds")
    return known[name]
