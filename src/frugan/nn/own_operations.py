"""Operations of frugan's own, as torch knows them: each in torch's operations, in kernels, and without data.

A tracker, a planner or a checkpoint sees one operation, with the bytes that it moves. On a CUDA card it is a kernel;
everywhere else it is made of torch's operations, which also say what the kernel has to give.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

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
        library.impl(name, started, "CUDA")
        library.impl(name, dataless, "Meta")
    return library
