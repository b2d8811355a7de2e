"""Working weights: what a network runs with during a phase, made once from its fp32 masters.

The working weights are detached leaves that stand in for the parameters while the phase runs, backward included.
`torch.func.functional_call` would put the masters back when a forward returns, and a recomputation inside backward
would then run on the masters: wrong without a word in fp32.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from frugan.contract.layers import GroupNormalised, Observer, Reparametrised, Stateful, keeps_fp32
from frugan.engine.dense_slices import SliceSum, sliced_forward, slices_of


@dataclass(frozen=True)
class Layout:
    """How working weights are laid out.

    Attributes:
        dtype: compute dtype of everything but the parameters that a layer keeps in fp32.
        channels_last: 4-dimensional weights in channels-last order; activations follow them.
    """

    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    def place(self, weight: Tensor, *, fp32: bool) -> Tensor:
        """Cast and lay out one weight; the same tensor if nothing changes."""
        weight = weight.to(torch.float32 if fp32 and weight.dtype != torch.float64 else self._dtype(weight))
        if self.channels_last and weight.ndim == 4:
            weight = weight.contiguous(memory_format=torch.channels_last)
        return weight

    def _dtype(self, weight: Tensor) -> torch.dtype:
        # A float64 network (made by tests to measure rounding) stays float64.
        return weight.dtype if weight.dtype == torch.float64 else self.dtype


class _HalfSum:
    """Adds up the gradients of a half-precision leaf in fp32.

    Half leaves would add up half gradients: 300 ones make 256 in bf16. Torch's own way (`grad_dtype`) makes an fp32
    copy of each contribution first: 0.6 GiB for the largest dense layer of a 512-pixel face model. Here a single
    contribution stays in half, which loses nothing, until there is another to add or the sum is taken.

    Args:
        at_once: begin the sum in fp32 with the first contribution. Where many follow, fp32 is what lives for most of
            the phase, and the second micro-batch takes as much memory as any later one.

    Attributes:
        value: the sum so far.
    """

    def __init__(self, *, at_once: bool) -> None:
        self.value: Tensor | None = None
        self._at_once = at_once

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
            self.value = self.value.float().add_(gradient)

    def take(self) -> Tensor | None:
        """The sum in fp32, given away."""
        value, self.value = self.value, None
        return None if value is None else value.float()


@dataclass(frozen=True)
class _Slot:
    """One parameter's place in a network, its master, its working weight, and the way back through the norm."""

    owner: nn.Module
    name: str
    master: nn.Parameter
    leaf: Tensor
    back: GradientEdge | None
    sum: _HalfSum | SliceSum | None

    def take_gradient(self) -> Tensor | None:
        """What backward left, given away."""
        if self.sum is not None:
            return self.sum.take()
        gradient, self.leaf.grad = self.leaf.grad, None
        return gradient


@dataclass
class WorkingWeights:
    """The working weights of one network during one phase.

    Attributes:
        network: the network; its parameters are the leaves until `restore`.
        layout: dtype and memory format.
        updated: whether gradients are wanted, of all parameters but frozen ones.
        observer: takes what preparation and forwards observe; None: nothing may move (inference).
        in_slices: dense layers without working weights: theirs are cast slice by slice when they are used.
        many: whether three or more micro-batches will add to each gradient.
    """

    network: nn.Module
    layout: Layout
    updated: bool
    observer: Observer | None
    in_slices: tuple[str, ...] = ()
    many: bool = False
    _slots: list[_Slot] = field(default_factory=list)

    def install(self) -> None:
        """Make the working weights and put them in the parameters' places."""
        for module in self.network.modules():
            if isinstance(module, Stateful):
                module.observer = self.observer
        # A shared parameter is prepared once.
        made: dict[nn.Parameter, tuple[Tensor, GradientEdge | None, _HalfSum | SliceSum | None]] = {}
        for name in self.in_slices:
            layer = self.network.get_submodule(name)
            made[layer.weight] = self._slice(layer)  # type: ignore[index,arg-type]
        with torch.set_grad_enabled(self.updated):
            for module in self.network.modules():
                for name, master in list(module.named_parameters(recurse=False)):
                    if master not in made:
                        made[master] = self._make(module, name, master)
                    leaf, back, total = made[master]
                    self._slots.append(_Slot(module, name, master, leaf, back, total))
                    module._parameters[name] = leaf  # type: ignore[assignment]

    def _make(
        self, module: nn.Module, name: str, master: nn.Parameter
    ) -> tuple[Tensor, GradientEdge | None, _HalfSum | None]:
        working: Tensor = master
        back: GradientEdge | None = None
        updated = self.updated and master.requires_grad
        if isinstance(module, Reparametrised) and name in module.reparametrised:
            working = module.working_weight(name, master)
            # Only the way back is kept: the normalised fp32 weight itself goes as soon as it is cast.
            back = get_gradient_edge(working) if updated else None
        leaf = self.layout.place(working, fp32=name in keeps_fp32(module)).detach()
        total: _HalfSum | None = None
        if updated:
            leaf.requires_grad_()
            if leaf.dtype in (torch.float16, torch.bfloat16):
                total = _HalfSum(at_once=self.many)
                leaf.register_post_accumulate_grad_hook(total)
        return leaf, back, total

    def _slice(self, layer: nn.Linear) -> tuple[Tensor, None, SliceSum | None]:
        """Let a layer work on slices of its master; what stands in the parameter's place is the master's own memory."""
        total = SliceSum(layer.weight) if self.updated and layer.weight.requires_grad else None
        slices = slices_of(layer.weight, total)
        leaf = layer.weight.detach()
        dtype = self.layout.dtype if leaf.dtype == torch.float32 else leaf.dtype
        layer.__dict__["forward"] = partial(sliced_forward, layer, slices, dtype)
        if total is not None:
            leaf.requires_grad_()
            leaf.register_post_accumulate_grad_hook(total)
        return leaf, None, total

    def carry(self) -> None:
        """Carry the leaves' gradients through cast and normalisation to the masters, and drop the leaves' own."""
        roots: list[GradientEdge] = []
        gradients: list[Tensor] = []
        for slot in self._slots:
            gradient = slot.take_gradient()
            if gradient is None:
                continue
            gradient = in_layout_of(slot.master, gradient)
            if slot.back is not None:
                roots.append(slot.back)
                gradients.append(gradient)
            elif slot.master.grad is None:
                slot.master.grad = gradient
            else:
                slot.master.grad.add_(gradient)
        if roots:
            torch.autograd.backward(roots, gradients)

    def restore(self) -> None:
        """Put the masters back; what was not carried is dropped."""
        for slot in self._slots:
            slot.owner._parameters[slot.name] = slot.master
        self._slots.clear()
        for name in self.in_slices:
            self.network.get_submodule(name).__dict__.pop("forward", None)
        for module in self.network.modules():
            if isinstance(module, Stateful):
                module.observer = None


def in_layout_of(master: Tensor, value: Tensor) -> Tensor:
    """The same values with the strides of a master: optimizers walk a parameter and its tensors as flat memory."""
    if value.shape != master.shape or value.stride() == master.stride():
        return value
    return torch.empty_like(master, dtype=value.dtype).copy_(value)


def lay_out_masters(network: nn.Module, layout: Layout) -> None:
    """Give plain convolutions' masters the layout of their working weights, so that a cast is a straight copy.

    Casting 28 million NCHW weights to channels-last, and their gradients back, took a sixth of a face model's step on a
    CPU. Reparametrised weights stay as they are: norms look at them as matrices.
    """
    if not layout.channels_last:
        return
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in network.modules():
        for name, master in list(module.named_parameters(recurse=False)):
            if master.ndim != 4 or (isinstance(module, Reparametrised) and name in module.reparametrised):
                continue
            if master not in made:
                laid = master.detach().contiguous(memory_format=torch.channels_last)
                made[master] = nn.Parameter(laid, requires_grad=master.requires_grad)
            module._parameters[name] = made[master]


def pending_gradient(leaf: Tensor) -> Tensor | None:
    """What backward has left for a parameter so far: of a master, of a working weight, or of its sum."""
    hooks = leaf._post_accumulate_grad_hooks or {}
    sums = [hook.value for hook in hooks.values() if isinstance(hook, _HalfSum | SliceSum)]
    return sums[0] if sums else leaf.grad


def stand_in_for(leaf: Tensor) -> None:
    """Let a leaf without data, on which backward is traced, add up gradients as a working weight does."""
    if leaf.requires_grad and leaf.dtype in (torch.float16, torch.bfloat16):
        leaf.register_post_accumulate_grad_hook(_HalfSum(at_once=False))


def leave_gradient(leaf: Tensor, gradient: Tensor) -> None:
    """Leave a gradient that was found elsewhere in a working weight, as backward does; it is given away."""
    sums = [hook for hook in (leaf._post_accumulate_grad_hooks or {}).values() if isinstance(hook, _HalfSum)]
    if sums:
        sums[0].add(gradient)
    elif leaf.grad is None:
        leaf.grad = gradient
    else:
        leaf.grad.add_(gradient)


def is_working(network: nn.Module) -> bool:
    """Whether working weights stand in the network's parameters at present."""
    return any(not isinstance(p, nn.Parameter) for p in network.parameters())


@contextmanager
def working_weights(
    networks: Mapping[str, nn.Module],
    layouts: Mapping[str, Layout],
    updates: tuple[str, ...],
    observer: Observer | None,
    in_slices: Mapping[str, tuple[str, ...]] | None = None,
    *,
    many: bool = False,
) -> Iterator[dict[str, WorkingWeights]]:
    """Run a block with every network on its working weights; the masters are back afterwards, whatever happened."""
    working: dict[str, WorkingWeights] = {}
    try:
        for name, network in networks.items():
            sliced = (in_slices or {}).get(name, ())
            working[name] = WorkingWeights(network, layouts[name], name in updates, observer, sliced, many)
            working[name].install()
        yield working
    finally:
        for weights in working.values():
            weights.restore()


@contextmanager
def prepared(network: nn.Module, layout: Layout | None = None) -> Iterator[nn.Module]:
    """Run a network for inference: evaluation mode, normalised and cast weights, nothing moves.

    Args:
        network: outside a phase.
        layout: dtype and memory format; default: fp32 as it is.
    """
    was_training = network.training
    network.eval()
    try:
        with working_weights({"network": network}, {"network": layout or Layout()}, (), None):
            yield network
    finally:
        network.train(was_training)


def make_callable(network: nn.Module) -> nn.Module:
    """Let a network be called as it is, outside the engine: each call prepares its weights and restores the masters.

    Gradients flow to the masters through the normalisation. Nothing moves. Inside `prepared` or a phase it steps aside.
    """
    restores: list[Callable[[], None]] = []

    def before(module: nn.Module, _: object) -> None:
        if is_working(module):
            return
        slots: list[tuple[nn.Module, str, nn.Parameter]] = []
        for owner in module.modules():
            if isinstance(owner, Reparametrised):
                for name in owner.reparametrised:
                    master = cast(nn.Parameter, owner._parameters[name])
                    slots.append((owner, name, master))
                    owner._parameters[name] = owner.working_weight(name, master)  # type: ignore[assignment]

        def restore() -> None:
            for owner, name, master in slots:
                owner._parameters[name] = master

        restores.append(restore)

    def after(_: nn.Module, __: object, ___: object) -> None:
        if restores:
            restores.pop()()

    network.register_forward_pre_hook(before)
    network.register_forward_hook(after, always_call=True)
    return network


def set_normalisation_batch(network: nn.Module, size: int | None) -> None:
    """Give every group-normalising layer its group size."""
    for module in network.modules():
        if isinstance(module, GroupNormalised):
            module.normalisation_batch = size


def normalises_groups(networks: Mapping[str, nn.Module]) -> bool:
    """Whether any layer's result depends on which samples stand together."""
    return any(isinstance(module, GroupNormalised) for network in networks.values() for module in network.modules())
