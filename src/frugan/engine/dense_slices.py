"""Large dense layers worked in slices: no working copy of the weight, and gradients that add up in fp32 piece by piece.

A dense layer of 168 million weights (a face model of 512 pixels has two) takes 0.3 GiB for its half-precision copy and
as much for each half gradient beside the fp32 sum. In slices of rows, each cast when it is used, both are a few MB.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from frugan.contract.layers import Reparametrised, keeps_fp32

SLICE_ELEMENTS = 1 << 22
"""Weights in a slice, about: 8 MiB in half precision. Smaller ones make no difference beside activations."""

LARGE_ELEMENTS = 1 << 23
"""Weights from which on a layer is worth working in slices."""


def sliceable(network: nn.Module) -> tuple[str, ...]:
    """Names of a network's large plain dense layers."""
    return tuple(
        name
        for name, module in network.named_modules()
        if type(module) is nn.Linear
        and not isinstance(module, Reparametrised)
        and not keeps_fp32(module)
        and module.weight.numel() >= LARGE_ELEMENTS
    )


class SliceSum:
    """Adds up the gradients of a weight's slices in one fp32 tensor, made when the first one comes.

    Attributes:
        value: the sum so far, of the weight's shape; None: no gradient yet.
    """

    def __init__(self, weight: Tensor) -> None:
        self.value: Tensor | None = None
        self._weight = weight

    def take(self) -> Tensor | None:
        """The sum, given away."""
        value, self.value = self.value, None
        return value

    def __call__(self, leaf: Tensor) -> None:
        """A hook of the whole weight's leaf, which no gradient reaches: its slices are the leaves."""

    def add(self, first: int, leaf: Tensor) -> None:
        """Take over what backward has just left in a slice that begins at row `first`."""
        gradient, leaf.grad = leaf.grad, None
        if gradient is None:
            return
        if self.value is None:
            self.value = torch.zeros_like(self._weight)
        self.value[first : first + len(gradient)].add_(gradient)


class _Product(torch.autograd.Function):
    """x Wᵀ in a compute dtype, of an fp32 slice of W that is cast when it is used, forward and backward.

    Gradients leave in fp32: the input's are summed over slices, which half precision would round each time. So the
    input comes twice: in fp32, which takes the gradient, and cast once for all slices.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cast: Tensor, rows: Tensor) -> Tensor:
        """[N, in] fp32, the same in the compute dtype, [slice, in] fp32 -> [N, slice]."""
        ctx.save_for_backward(cast, rows)
        ctx.dtype = x.dtype
        return F.linear(cast, rows.to(cast.dtype))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        """To x and to the slice."""
        cast, rows = ctx.saved_tensors
        (gradient,) = gradients
        to_x = torch.mm(gradient, rows.to(cast.dtype)).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        to_rows = torch.mm(gradient.t(), cast).to(rows.dtype) if ctx.needs_input_grad[2] else None
        return to_x, None, to_rows


def slices_of(weight: Tensor, total: SliceSum | None) -> tuple[Tensor, ...]:
    """Leaves that stand for the rows of a weight, without memory of their own.

    Args:
        weight: [out, in] fp32.
        total: takes their gradients; None: none are wanted.
    """
    rows = max(1, SLICE_ELEMENTS // weight.shape[1])
    leaves = []
    for first in range(0, weight.shape[0], rows):
        leaf = weight.detach()[first : first + rows]
        if total is not None:
            leaf.requires_grad_()
            leaf.register_post_accumulate_grad_hook(partial(total.add, first))
        leaves.append(leaf)
    return tuple(leaves)


def sliced_forward(module: nn.Linear, slices: Sequence[Tensor], dtype: torch.dtype, x: Tensor) -> Tensor:
    """Forward of a dense layer whose weight is worked in slices: [..., in] -> [..., out] in `dtype`.

    Raises:
        RuntimeError: in a backward through the backward (R1, path length), which this way does not know.
    """
    flat = x.flatten(0, -2).to(slices[0].dtype)
    cast = flat.detach().to(dtype)
    parts = [_Product.apply(flat, cast, rows) for rows in slices]
    out: Tensor = torch.cat(parts, 1).unflatten(0, x.shape[:-1])
    return out if module.bias is None else out + module.bias.to(dtype)
