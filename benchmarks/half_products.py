"""Half-precision products on a processor that has no units for them, at bearable speed.

Values are rounded to half before and after each product and added up in fp32 between, which is what the matrix units of
a graphics card do. Everything else runs in half as it is.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

aten = torch.ops.aten
PRODUCTS = frozenset(
    {aten.convolution.default, aten.convolution_backward.default, aten.mm.default, aten.addmm.default, aten.bmm.default}
)


class HalfProducts(TorchDispatchMode):
    """Runs products of fp16 tensors in fp32 and rounds what comes out.

    Attributes:
        watch: measure the outputs' largest magnitudes (takes time).
        largest_forward: largest finite magnitude that a forward product gave while watching, before rounding.
        largest_backward: the same of backward products; they carry the loss scale.
    """

    def __init__(self) -> None:
        super().__init__()
        self.watch = False
        self.largest_forward = 0.0
        self.largest_backward = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        if func not in PRODUCTS or not any(isinstance(a, torch.Tensor) and a.dtype == torch.float16 for a in args):
            return func(*args, **kwargs)
        result = func(*tree_map(_single, args), **tree_map(_single, kwargs))
        if self.watch:
            self._note(result, backward=func is aten.convolution_backward.default)
        return tree_map(_half, result)

    def _note(self, result: Any, *, backward: bool) -> None:
        tensors = [t for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, torch.Tensor)]
        largest = max((float(t.abs().nan_to_num(0, 0, 0).max()) for t in tensors if t.numel()), default=0.0)
        if backward:
            self.largest_backward = max(self.largest_backward, largest)
        else:
            self.largest_forward = max(self.largest_forward, largest)


def _single(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.float16 else value


def _half(value: Any) -> Any:
    return value.half() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
