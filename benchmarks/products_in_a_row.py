"""How long the products of a training step take by themselves, one after the other: what the rest of a step adds to.

Products are convolutions, matrix products and attention, forward and backward.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from frugan.stepmemory.work import MacCounter


class ProductList(TorchDispatchMode):
    """Notes every convolution and matrix product that runs inside, with shapes and layouts but without the numbers.

    Attributes:
        found: (operation, its arguments with descriptions in place of tensors) -> how often.
        flops: of all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts = MacCounter().flop_registry
        self.found: dict[str, tuple[Callable[..., object], tuple[Any, ...], int]] = {}
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and note it."""
        out = func(*args, **(kwargs or {}))
        count = self._counts.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        if count is not None or "scaled_dot_product" in str(func):
            described = tree_map(_described, (args, kwargs or {}))
            _, _, times = self.found.get(key := f"{func} {described}", (func, described, 0))
            self.found[key] = (func, described, times + 1)
        return out


def seconds_in_a_row(products: ProductList, device: torch.device, *, rounds: int = 10) -> float:
    """Time all noted products on made-up numbers: the least of `rounds` runs of each, times how often it was noted."""
    seconds = 0.0
    for func, described, times in products.found.values():
        args, kwargs = tree_map(lambda each: each.make(device) if isinstance(each, _Described) else each, described)
        least = float("inf")
        for _ in range(rounds + 1):
            began = time.perf_counter()
            func(*args, **kwargs)
            if device.type == "cuda":
                torch.cuda.synchronize()
            least = min(least, time.perf_counter() - began)
        seconds += least * times
    return seconds


class _Described:
    """A tensor's shape, strides and type."""

    def __init__(self, tensor: Tensor) -> None:
        self.size, self.stride, self.dtype = tensor.shape, tensor.stride(), tensor.dtype

    def make(self, device: torch.device) -> Tensor:
        last = sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True))
        made = torch.randn(last + 1, device=device).to(self.dtype)
        return made.as_strided(self.size, self.stride)

    def __repr__(self) -> str:
        return f"{tuple(self.size)} {self.stride} {self.dtype}"


def _described(value: object) -> object:
    return _Described(value) if isinstance(value, Tensor) else value
