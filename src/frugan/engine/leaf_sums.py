"""How gradients of working weights add up over micro-batches and parts: in fp32, whatever the weights are."""

import torch
from torch import Tensor

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
        if gradient is not None:
            self.add(gradient)

    def add(self, gradient: Tensor) -> None:
        """Add a gradient of the leaf, which is given away."""
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
        if gradient is not None:
            self.add(leaf, gradient)

    def add(self, leaf: Tensor, gradient: Tensor) -> None:
        """Add a gradient of a leaf, which is given away."""
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
        found = self._sums.pop(leaf, None)
        return self._waiting.pop(leaf, None) if found is None else found

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
            found = in_fp32([self._waiting.pop(leaf) for leaf in group])
            new = [(leaf, each) for leaf, each in zip(group, found, strict=True) if leaf not in self._sums]
            more = [(leaf, each) for leaf, each in zip(group, found, strict=True) if leaf in self._sums]
            if more:
                torch._foreach_add_([self._sums[leaf] for leaf, _ in more], [each for _, each in more])
            self._sums.update(new)


def stand_in_for(leaf: Tensor) -> None:
    """Let a leaf without data, on which backward is traced, add up gradients as a working weight does."""
    if leaf.requires_grad and leaf.dtype in (torch.float16, torch.bfloat16):
        leaf.register_post_accumulate_grad_hook(HalfSum(at_once=False))


def leave_gradient(leaf: Tensor, gradient: Tensor) -> None:
    """Leave a gradient that was found elsewhere in a working weight, as backward does; it is given away."""
    for hook in (leaf._post_accumulate_grad_hooks or {}).values():
        if isinstance(hook, HalfSum):
            hook.add(gradient)
            return
        if isinstance(hook, SmallSums):
            hook.add(leaf, gradient)
            return
    if leaf.grad is None:
        leaf.grad = gradient
    else:
        leaf.grad.add_(gradient)


def in_fp32(gradients: list[Tensor]) -> list[Tensor]:
    """Half tensors cast together; others as they are."""
    half = [i for i, each in enumerate(gradients) if each.dtype in (torch.float16, torch.bfloat16)]
    if half:
        made = [torch.empty_like(gradients[i], dtype=torch.float32) for i in half]
        torch._foreach_copy_(made, [gradients[i] for i in half])
        gradients = list(gradients)
        for i, each in zip(half, made, strict=True):
            gradients[i] = each
    return gradients
