"""Operations of frugan's own, as torch knows them: each in torch's operations, in kernels, and without data.

A tracker, a planner or a checkpoint sees one operation, with the bytes that it moves. On a CUDA card it is a kernel;
everywhere else it is made of torch's operations, which also say what the kernel has to give.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from itertools import chain
from typing import Any

import torch
from torch import Tensor

NAMES = (
    *("leaky_relu", "styled_leaky_relu", "modulation", "styles", "fir"),
    *("dssim", "batch_norm", "spectral_norm", "pooling"),
)
"""Of the kernels there are, as a recipe's training and a layer's `own_kernels` know them."""

Computes = Callable[..., Any]
Operations = Mapping[str, tuple[Computes, Computes, Computes]]
"""Schema -> the same in torch's operations, in kernels, and without data."""


def registered(operations: Operations) -> torch.library.Library:
    """Tell torch of operations; it knows them as long as what is given back lives."""
    library = torch.library.Library("frugan", "FRAGMENT")
    for schema, (plain, started, dataless) in operations.items():
        name = library.define(schema)
        library.impl(name, torch.no_grad()(plain), "CompositeExplicitAutograd")  # no more differentiable than a kernel
        library.impl(name, torch.library.fallthrough_kernel, "Autograd")
        library.impl(name, _on_their_card(started), "CUDA")
        library.impl(name, dataless, "Meta")
    return library


def _on_their_card(started: Computes) -> Computes:
    """Start kernels on the card that tensors are on: Triton takes the current one, which may be another."""

    @wraps(started)
    def start(*given: Any) -> Any:
        each = chain.from_iterable(value if isinstance(value, (list, tuple)) else [value] for value in given)
        device = next(value.device for value in each if isinstance(value, Tensor))
        with torch.accelerator.device_index(device.index):
            return started(*given)

    return start
