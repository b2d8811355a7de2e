"""Gradients between the backward and the update: added up in fp32, measured, judged and clipped."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from frugan.contract.layers import Reparametrised, keeps_fp32
from frugan.torch_internals import foreach_add_, foreach_copy_, foreach_mul_, foreach_norm

SMALL_ELEMENTS = 1 << 18
"""Gradients up to this size add up many at a time: there are many of them, and a kernel for each takes longer to start
than to run."""

TOGETHER_ELEMENTS = 1 << 22
"""About so many are added up at once: 16 MiB of fp32 beside the sums."""


class HalfSum:
    """Adds up the gradients of a half-precision leaf in fp32.

    Half leaves would add up half gradients: 300 ones make 256 in bf16. Torch's own way (`grad_dtype`) makes an fp32
    copy of each contribution first: 0.6 GiB for the largest dense layer of a 512-pixel face model. Here a single
    contribution stays in half, which loses nothing, until there is another to add or the sum is taken.

    Args:
        at_once: begin the sum in fp32 with the first contribution. Where many follow, fp32 is what lives for most of
            the phase, and the second micro-batch takes as much memory as any later one.
        one: a 1 in fp32 [1] beside the leaf, for all sums; None: made when it is needed.

    Attributes:
        value: the sum so far.
    """

    def __init__(self, *, at_once: bool, one: Tensor | None = None) -> None:
        self.value: Tensor | None = None
        self._at_once, self._one = at_once, one

    def __call__(self, leaf: Tensor) -> None:
        """Take over what backward has just left in the leaf."""
        gradient, leaf.grad = leaf.grad, None
        if gradient is None:
            return
        if self.value is None:
            self.value = gradient.float() if self._at_once else gradient
        elif self.value.dtype == torch.float32:
            self.value.add_(gradient)
        else:
            self.value = _sum_of_halves(self.value, gradient, self._one)

    def take(self) -> Tensor | None:
        """The sum, given away; in half if only one gradient came."""
        value, self.value = self.value, None
        return value


def _sum_of_halves(a: Tensor, b: Tensor, one: Tensor | None) -> Tensor:
    """a + b in fp32, neither cast before: a third number that is fp32 makes all of the operation so."""
    if a.is_cpu:  # which casts whole tensors
        return a.float().add_(b)
    return torch.addcmul(a, b, torch.ones(1, device=a.device) if one is None else one)


class SmallSums:
    """Adds up the gradients of many small leaves together: when asked to, or one comes that has a gradient waiting."""

    def __init__(self) -> None:
        self._waiting: dict[Tensor, Tensor] = {}
        self._sums: dict[Tensor, Tensor] = {}

    def __call__(self, leaf: Tensor) -> None:
        """Take over what backward has just left in a leaf."""
        gradient, leaf.grad = leaf.grad, None
        if gradient is None:
            return
        if leaf in self._waiting:
            self.add_up()
        self._waiting[leaf] = gradient

    def held(self, leaf: Tensor) -> Tensor | None:
        """A leaf's gradient so far, or the last part of it."""
        return self._sums.get(leaf, self._waiting.get(leaf))

    def take(self, leaf: Tensor) -> Tensor | None:
        """A leaf's sum, given away; in the leaf's precision if only one gradient came."""
        if leaf in self._waiting and leaf in self._sums:
            self.add_up()
        total = self._sums.pop(leaf, None)
        return self._waiting.pop(leaf, None) if total is None else total

    def drop(self) -> None:
        """Forget what came, as leaves and sums hold each other: memory that ran out must be free at once."""
        self._waiting.clear()
        self._sums.clear()

    @torch.no_grad()
    def add_up(self) -> None:
        """Add what waits to the sums, in fp32."""
        leaves = list(self._waiting)
        while leaves:
            group, room = list[Tensor](), TOGETHER_ELEMENTS
            while leaves and (not group or leaves[-1].numel() <= room):
                group.append(leaves.pop())
                room -= group[-1].numel()
            gradients = in_fp32([self._waiting.pop(leaf) for leaf in group], group)
            new = [(leaf, gradient) for leaf, gradient in zip(group, gradients, strict=True) if leaf not in self._sums]
            more = [(leaf, gradient) for leaf, gradient in zip(group, gradients, strict=True) if leaf in self._sums]
            if more:
                foreach_add_([self._sums[leaf] for leaf, _ in more], [gradient for _, gradient in more])
            self._sums.update(new)


def in_fp32(gradients: list[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Half tensors cast together, into their leaves' layouts, so that none is copied again; others as they are."""
    half = [i for i, gradient in enumerate(gradients) if gradient.dtype in (torch.float16, torch.bfloat16)]
    if half:
        casts = [torch.empty_like(leaves[i], dtype=torch.float32) for i in half]
        foreach_copy_(casts, [gradients[i] for i in half])
        gradients = list(gradients)
        for i, gradient in zip(half, casts, strict=True):
            gradients[i] = gradient
    return gradients


# Large dense layers, worked in slices.

SLICE_ELEMENTS = 1 << 22
"""Weights in a slice, about: 8 MiB in half precision. Smaller ones make no difference beside activations."""

LARGE_ELEMENTS = 1 << 23
"""Weights from which on a dense layer is worked in slices of rows, each cast when it is used: no working copy of the
weight, and gradients that add up in fp32 piece by piece. 168 million weights (a face model of 512 pixels has two such
layers) take 0.3 GiB for a half-precision copy and as much for each half gradient beside the fp32 sum; in slices both
are a few MB."""


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


# What an update's gradients are, and whether they count.


@dataclass(frozen=True)
class GradientReport:
    """Gradients of one update, all on the device."""

    names: tuple[str, ...]  # parameters that have a gradient
    missing: tuple[str, ...]  # parameters of the updated networks that got none
    norms: Tensor  # L2 norm of each gradient [len(names)], fp32, unscaled
    norm: Tensor  # L2 norm of all of them together
    zeros: Tensor | None = None  # share of exact zeros [len(names)], if it was asked for


@torch.no_grad()
def measure(parameters: Mapping[str, nn.Parameter]) -> GradientReport:
    """Measure gradients.

    Args:
        parameters: by name; those without gradient are only named.

    Raises:
        RuntimeError: if no parameter got a gradient.
    """
    gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    if not gradients:
        raise RuntimeError(f"no gradient reached any of {', '.join(list(parameters)[:3])} ...: the loss ignores them")
    norms = torch.stack(foreach_norm(list(gradients.values())))
    return GradientReport(
        names=tuple(gradients),
        missing=tuple(name for name in parameters if name not in gradients),
        norms=norms,
        norm=torch.linalg.vector_norm(norms),
    )


@torch.no_grad()
def shares_of_zeros(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the share of exact zeros of each gradient that there is [gradients], in one more pass over them."""
    return torch.stack([share_of_zeros(p.grad) for p in parameters if p.grad is not None])


def share_of_zeros(gradient: Tensor) -> Tensor:
    """Share of exact zeros, as a scalar.

    Counted as they are, as floats they would take as much memory as the gradient; and a large one in slices, as a card
    makes of what it counts a byte for each element.
    """
    if gradient.numel() < LARGE_ELEMENTS:
        return 1 - gradient.count_nonzero() / gradient.numel()
    slices = gradient.split(max(1, SLICE_ELEMENTS * len(gradient) // gradient.numel()))
    return 1 - torch.stack([rows.count_nonzero() for rows in slices]).sum() / gradient.numel()


def all_finite(values: Tensor) -> Tensor:
    """Return whether all values are finite, as a bool scalar; torch's `isfinite` takes four kernels."""
    largest: Tensor = torch.linalg.vector_norm(values, math.inf)
    return largest < math.inf


@torch.no_grad()
def clip(parameters: Mapping[str, nn.Parameter], norm: Tensor, largest: float) -> None:
    """Scale all gradients down together so that their norm is at most `largest`.

    By exactly largest / norm: torch's own clipping adds 1e-6 to the norm, which the originals do not.
    """
    factor = torch.where(norm >= largest, largest / norm, 1.0)
    foreach_mul_([p.grad for p in parameters.values() if p.grad is not None], factor)
