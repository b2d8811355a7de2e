"""How an operation is told to torch: by a kernel on a CUDA card, and in plain torch everywhere else.

A tracker, a planner or a checkpoint sees one operation, with the bytes that it moves. Its plain way also says what the
kernel has to give.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


class Operation(Generic[P, R]):
    """One of `torch.ops.frugan`, which is called as it is; torch knows it as long as this object lives.

    It has no gradient of its own: that is for an `autograd.Function` which calls it.

    Args:
        schema: its name, arguments and results, in torch's words.
        start: starts its kernel.
        plain: gives the same in torch's operations.
        like: gives empty tensors of the same shapes, strides and dtypes.
    """

    def __init__(self, schema: str, start: Callable[P, R], plain: Callable[P, R], like: Callable[..., R]) -> None:
        self.start, self.plain = start, plain
        self._library = torch.library.Library("frugan", "FRAGMENT")
        self.name = self._library.define(schema)
        # no more differentiable than a kernel
        self._library.impl(self.name, torch.no_grad()(plain), "CompositeExplicitAutograd")
        self._library.impl(self.name, torch.library.fallthrough_kernel, "Autograd")
        self._library.impl(self.name, self._on_their_card, "CUDA")
        self._library.impl(self.name, like, "Meta")
        self._called = getattr(torch.ops.frugan, self.name).default

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self._called(*args, **kwargs))

    def by_kernel(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Start the kernel; in float64, which tests compute in and no training, there is none."""
        if any(tensor.dtype == torch.float64 for tensor in _tensors(args)):
            return self.plain(*args, **kwargs)
        return self.start(*args, **kwargs)

    @torch.no_grad()
    def _on_their_card(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Start the kernel on the card that tensors are on: Triton takes the current one, which may be another."""
        with torch.accelerator.device_index(_tensors(args)[0].device.index):
            return self.by_kernel(*args, **kwargs)


def _tensors(args: Sequence[object]) -> list[Tensor]:
    """Tensors among arguments, also those inside lists."""
    values = chain.from_iterable(value if isinstance(value, (list, tuple)) else [value] for value in args)
    return [value for value in values if isinstance(value, Tensor)]


def operation(
    schema: str, *, plain: Callable[P, R], like: Callable[..., R]
) -> Callable[[Callable[P, R]], Operation[P, R]]:
    """Make what starts a kernel an operation of torch's: see `Operation`."""
    return lambda start: Operation(schema, start, plain, like)


def operations(*modules: ModuleType) -> Iterator[Operation[..., Any]]:
    """Operations that are defined in some modules."""
    for module in modules:
        found = (value for value in vars(module).values() if isinstance(value, Operation))
        yield from (value for value in found if value.start.__module__ == module.__name__)


def like_first(x: Tensor, *_: object) -> Tensor:
    """Empty tensor of the shape, strides and dtype of the first argument."""
    return torch.empty_like(x)


def like_second(_: Tensor, x: Tensor, *__: object) -> Tensor:
    """Empty tensor of the shape, strides and dtype of the second argument."""
    return torch.empty_like(x)
