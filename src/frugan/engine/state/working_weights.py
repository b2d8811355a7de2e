"""Working weights: what a network runs with during a phase, or outside of training, made once from its fp32 masters."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from frugan.contract.layers import (
    SQUARES,
    Divisor,
    GroupNormalised,
    Observer,
    Reparametrised,
    Scaled,
    ScaledWeight,
    Scaling,
    Stateful,
    SumsSquares,
    keeps_fp32,
    squares_of,
)
from frugan.engine.plan import Layout
from frugan.engine.state.fp32_blocks import enter_fp32
from frugan.engine.state.gradients import SMALL_ELEMENTS, HalfSum, SliceSum, SmallSums, sliced_forward, slices_of
from frugan.torch_internals import foreach_copy_, foreach_div, foreach_div_, foreach_mul_


def in_layout_of(master: Tensor, value: Tensor) -> Tensor:
    """Return values in a master's dtype and strides: optimizers walk a parameter and its tensors as flat memory."""
    return in_layouts_of([master], [value])[0]


def in_layouts_of(masters: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
    """Return values in the dtypes and strides of masters, copied in one operation where they differ."""
    laid_out = list(values)
    changed = [
        i
        for i, (master, value) in enumerate(zip(masters, values, strict=True))
        if value.dtype != master.dtype or (value.shape == master.shape and value.stride() != master.stride())
    ]
    if changed:
        copies = [torch.empty_like(masters[i]) for i in changed]
        foreach_copy_(copies, [values[i] for i in changed])
        for i, copy in zip(changed, copies, strict=True):
            laid_out[i] = copy.detach()
    return laid_out


def lay_out_masters(network: nn.Module, layout: Layout) -> None:
    """Give plain convolutions' masters the layout of their working weights, so that a cast is a straight copy.

    Casting 28 million NCHW weights to channels-last, and their gradients back, took a sixth of a face model's step on a
    CPU. Reparametrised weights stay as they are: norms look at them as matrices.
    """
    if not layout.channels_last:
        return
    parameters: dict[nn.Parameter, nn.Parameter] = {}
    for module in network.modules():
        for name, master in list(module.named_parameters(recurse=False)):
            if master.ndim != 4 or (isinstance(module, Reparametrised) and name in module.reparametrised):
                continue
            if master not in parameters:
                laid = master.detach().contiguous(memory_format=torch.channels_last)
                parameters[master] = nn.Parameter(laid, requires_grad=master.requires_grad)
            module._parameters[name] = parameters[master]


def memory_of(tensor: Tensor) -> Tensor:
    """A tensor's elements as they lie in memory [numel].

    Raises:
        ValueError: they lie with gaps, or on top of each other.
    """
    if tensor.is_contiguous():
        return tensor.view(-1)
    by_stride = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, size in by_stride:
        if size != 1 and stride != expected:
            raise ValueError(f"a tensor {tuple(tensor.shape)} with strides {tensor.stride()} does not lie densely")
        expected *= size
    return tensor.as_strided((tensor.numel(),), (1,))


def set_normalisation_batch(network: nn.Module, size: int | None) -> None:
    """Give every group-normalising layer its group size."""
    for module in network.modules():
        if isinstance(module, GroupNormalised):
            module.normalisation_batch = size


def normalises_groups(networks: Mapping[str, nn.Module]) -> bool:
    """Return whether any layer's result depends on which samples stand together."""
    return any(isinstance(module, GroupNormalised) for network in networks.values() for module in network.modules())


@dataclass(frozen=True)
class _WorkingWeight:
    """A working weight, and the way of its gradient back to the master."""

    leaf: Tensor  # stands in the parameter's place
    sum: HalfSum | SmallSums | SliceSum | None  # adds up its gradients; None: torch does
    back: GradientEdge | None = None  # through the norm that it was made by; None: there is none, or a divisor
    divisor: Divisor | None = None  # by which the master was divided; None: by none

    def take_gradient(self) -> Tensor | None:
        """Return the accumulated gradient and clear it; in half precision if there was only one."""
        if isinstance(self.sum, SmallSums):
            return self.sum.take(self.leaf)
        if self.sum is not None:
            return self.sum.take()
        gradient, self.leaf.grad = self.leaf.grad, None
        return gradient


@dataclass
class WorkingWeights:
    """The working weights of one network during one phase.

    They are detached leaves that stand in for the parameters while the phase runs, backward included.
    `torch.func.functional_call` would put the masters back when a forward returns, and a recomputation inside backward
    would then run on the masters: wrong without a word in fp32.
    """

    network: nn.Module  # the network; its parameters are the leaves until `restore`
    layout: Layout  # dtype and memory format
    updated: bool  # whether gradients are wanted, of all parameters but frozen ones
    observer: Observer | None  # takes what preparation and forwards observe; None: nothing may move (inference)
    # dense layers without working weights: theirs are cast slice by slice when they are used
    in_slices: tuple[str, ...] = ()
    many: bool = False  # whether three or more micro-batches will add to each gradient
    _slots: list[tuple[nn.Module, str, nn.Parameter]] = field(default_factory=list)
    _weights: dict[nn.Parameter, _WorkingWeight] = field(default_factory=dict)
    _scaled: list[tuple[Scaling, list[nn.Parameter]]] = field(default_factory=list)
    _squares: dict[nn.Parameter, tuple[SumsSquares, _WorkingWeight]] = field(default_factory=dict)
    _small: SmallSums = field(default_factory=SmallSums)
    _one: Tensor | None = None
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def begin(self) -> None:
        """Look at the network, and let its layers observe."""
        for module in self.network.modules():
            if isinstance(module, Stateful):
                module.observer = self.observer
        for name in self.in_slices:
            layer = self.network.get_submodule(name)
            self._weights[layer.weight] = self._slice(layer)  # type: ignore[index,arg-type]
        self._undo = enter_fp32(self.network, self.layout.dtype)
        self._slots = [
            (module, name, master)
            for module in self.network.modules()
            for name, master in module.named_parameters(recurse=False)
        ]

    def finish(self) -> None:
        """Make those that are not divided by anything, and put all in the parameters' places."""
        self._make_plain()
        for module, name, master in self._slots:
            if master not in self._weights:  # a shared parameter is prepared once
                self._weights[master] = self._make_by_layer(cast(Reparametrised, module), name, master)
            module._parameters[name] = self._weights[master].leaf  # type: ignore[assignment]
        self._make_squares()

    def _waiting(self) -> list[tuple[nn.Module, str, nn.Parameter]]:
        """Parameters that have no working weight yet, once each."""
        slots = {master: slot for slot in reversed(self._slots) if (master := slot[2]) not in self._weights}
        return list(reversed(slots.values()))

    def scaled(self) -> list[ScaledWeight]:
        """Return the weights that are masters divided by something and have no working weight yet."""
        return [
            ScaledWeight(module, name, master)
            for module, name, master in self._waiting()
            if isinstance(module, Scaled) and name in module.reparametrised
        ]

    def take_scaled(
        self,
        scaling: Scaling,
        masters: list[nn.Parameter],
        divisors: Sequence[tuple[ScaledWeight, Divisor, Tensor | None]],
    ) -> None:
        """Divide this network's weights by `divisors` of `masters`, some of which may be other networks'."""
        self._scaled.append((scaling, masters))
        together: list[tuple[nn.Parameter, float, Tensor | None]] = []
        for weight, divisor, matrix in divisors:
            master = cast(nn.Parameter, weight.master)
            room = self.layout.room(master, fp32=weight.name in keeps_fp32(weight.layer))
            if matrix is not None:
                leaf = self.layout.of_matrix(matrix, master)
            elif isinstance(divisor, float) and (room is None or master.numel() <= SMALL_ELEMENTS):
                together.append((master, divisor, room))
                continue
            else:
                leaf = torch.div(master, divisor, out=torch.empty_like(master) if room is None else room)
            self._weights[master] = self._leaf(leaf, master, divisor=divisor)
        if together:
            self._divide_together(together)

    def _divide_together(self, together: Sequence[tuple[nn.Parameter, float, Tensor | None]]) -> None:
        """Make the weights of masters that numbers divide, in rooms where there are any: all in one operation."""
        divided = foreach_div([m.detach() for m, _, _ in together], [divisor for _, divisor, _ in together])
        rooms = [(room, leaf) for (_, _, room), leaf in zip(together, divided, strict=True) if room is not None]
        if rooms:
            foreach_copy_([room for room, _ in rooms], [leaf for _, leaf in rooms])
        for (master, divisor, room), leaf in zip(together, divided, strict=True):
            self._weights[master] = self._leaf(leaf if room is None else room, master, divisor=divisor)

    def _make_squares(self) -> None:
        """Sums of squares of working weights, beside these."""
        masters = {module: master for module, name, master in self._slots if name == "weight"}
        layers = [module for module in masters if isinstance(module, SumsSquares)]
        for layer, squares in zip(layers, squares_of(layers) if layers else (), strict=True):
            master = masters[layer]
            self._squares[master] = layer, self._leaf(squares, master)
            layer._parameters[SQUARES] = squares  # type: ignore[assignment]

    @torch.no_grad()
    def _make_plain(self) -> None:
        """Cast and lay out all weights that are not reparametrised, in one operation."""
        copies: list[tuple[Tensor, Tensor]] = []
        for module, name, master in self._waiting():
            if isinstance(module, Reparametrised) and name in module.reparametrised:
                continue
            room = self.layout.room(master, fp32=name in keeps_fp32(module))
            if room is not None:
                copies.append((room, master.detach()))
            self._weights[master] = self._leaf(master.detach() if room is None else room, master)
        if copies:
            foreach_copy_([room for room, _ in copies], [weight for _, weight in copies])

    def _make_by_layer(self, module: Reparametrised, name: str, master: nn.Parameter) -> _WorkingWeight:
        """Make a weight by its layer's `working_weight`, through which autograd carries the gradient back."""
        with torch.set_grad_enabled(self.updated):
            working = module.working_weight(name, master)
            # Only the way back is kept: the normalised fp32 weight itself goes as soon as it is cast.
            back = get_gradient_edge(working) if self.updated and master.requires_grad else None
            leaf = self.layout.place(working.detach(), fp32=name in keeps_fp32(module))
        return self._leaf(leaf, master, back=back)

    def _leaf(
        self, leaf: Tensor, master: Tensor, back: GradientEdge | None = None, divisor: Divisor | None = None
    ) -> _WorkingWeight:
        """Have a leaf's gradients added up, if they are wanted."""
        total: HalfSum | SmallSums | None = None
        if self.updated and master.requires_grad:
            leaf.requires_grad_()
            if leaf.numel() <= SMALL_ELEMENTS:
                total = self._small
            elif leaf.dtype in (torch.float16, torch.bfloat16):
                self._one = torch.ones(1, device=leaf.device) if self._one is None else self._one
                total = HalfSum(at_once=self.many, one=self._one)
            if total is not None:
                leaf.register_post_accumulate_grad_hook(total)
        return _WorkingWeight(leaf, total, back, divisor)

    def _slice(self, layer: nn.Linear) -> _WorkingWeight:
        """Let a layer work on slices of its master; what stands in the parameter's place is the master's own memory."""
        total = SliceSum(layer.weight) if self.updated and layer.weight.requires_grad else None
        slices = slices_of(layer.weight, total)
        leaf = layer.weight.detach()
        dtype = self.layout.dtype if leaf.dtype == torch.float32 else leaf.dtype
        layer.__dict__["forward"] = partial(sliced_forward, layer, slices, dtype)
        if total is not None:
            leaf.requires_grad_()
            leaf.register_post_accumulate_grad_hook(total)
        return _WorkingWeight(leaf, total)

    def add_up(self) -> None:
        """Add to the sums what a micro-batch has left, so that every further one finds and leaves the same."""
        self._small.add_up()

    @torch.no_grad()
    def carry(self, inverse_scale: Tensor | None = None) -> None:
        """Carry the leaves' gradients through cast and normalisation to the masters, and drop the leaves' own.

        Args:
            inverse_scale: multiplies every gradient, where a norm divides it on the same way; None: no loss scale.
        """
        gradients, working = self._in_layouts_of_masters()
        self._divide_by_numbers(gradients)
        if inverse_scale is not None and gradients:
            foreach_mul_(list(gradients.values()), inverse_scale)
        gradients |= self._through_norms(working, inverse_scale)
        edges = [
            (weight.back, gradients.pop(master))
            for master, weight in self._weights.items()
            if weight.back and master in gradients
        ]
        for master, gradient in gradients.items():
            if master.grad is None:
                master.grad = gradient
            else:
                master.grad.add_(gradient)
        if edges:
            torch.autograd.backward([edge for edge, _ in edges], [gradient for _, gradient in edges])

    def _divide_by_numbers(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Divide gradients in place by the divisors of their weights that are numbers."""
        divisors = {master: self._weights[master].divisor for master in gradients}
        divided = {master: d for master, d in divisors.items() if isinstance(d, float) and d != 1}
        if divided:
            foreach_div_([gradients[master] for master in divided], list(divided.values()))

    def _in_layouts_of_masters(self) -> tuple[dict[nn.Parameter, Tensor], dict[nn.Parameter, Tensor]]:
        """Gradients by master, laid out as these; and as they are those of weights that a tensor divides."""
        gradients: dict[nn.Parameter, Tensor] = {}
        small: dict[nn.Parameter, Tensor] = {}
        working: dict[nn.Parameter, Tensor] = {}
        for master, gradient in self._gradients():
            if isinstance(self._weights[master].divisor, Tensor):
                working[master] = gradient
            elif gradient.numel() > SMALL_ELEMENTS:
                gradients[master] = in_layout_of(master, gradient)
            else:
                small[master] = gradient
        gradients |= zip(small, in_layouts_of(list(small), list(small.values())), strict=True)
        return gradients, working

    def _through_norms(
        self, working: dict[nn.Parameter, Tensor], inverse_scale: Tensor | None
    ) -> dict[nn.Parameter, Tensor]:
        """Gradients of masters from those of weights that were divided by their norms; given away."""
        gradients: dict[nn.Parameter, Tensor] = {}
        for scaling, masters in self._scaled:
            if any(master in working for master in masters):
                leaf_gradients = [working.pop(master, None) for master in masters]
                carried = scaling.carry([master.detach() for master in masters], leaf_gradients, inverse_scale)
                gradients |= {
                    master: gradient for master, gradient in zip(masters, carried, strict=True) if gradient is not None
                }
        return gradients

    def _gradients(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Gradients of the leaves that got any, given away, with what flows to them through their squares."""
        for master, weight in self._weights.items():
            gradient = weight.take_gradient()
            if gradient is None:
                continue
            if master in self._squares:
                layer, squares = self._squares[master]
                if (through := squares.take_gradient()) is not None:
                    gradient.addcmul_(weight.leaf, through[:, :, None, None], value=layer.gradient_factor())
            yield master, gradient

    def restore(self) -> None:
        """Put the masters back; what was not carried is dropped."""
        for module, name, master in self._slots:
            module._parameters[name] = master
        for layer, _ in self._squares.values():
            layer._parameters.pop(SQUARES, None)
        for kept in (self._slots, self._weights, self._scaled, self._squares):
            kept.clear()
        self._small.drop()
        while self._undo:
            self._undo.pop(0)()
        for name in self.in_slices:
            self.network.get_submodule(name).__dict__.pop("forward", None)
        for module in self.network.modules():
            if isinstance(module, Stateful):
                module.observer = None


@torch.no_grad()
def install(working: Sequence[WorkingWeights]) -> None:
    """Make the working weights of several networks and put them in the parameters' places.

    Divisors are found together for all layers that are alike, whosever they are.
    """
    for weights in working:
        weights.begin()
    alike: dict[Hashable, list[tuple[WorkingWeights, ScaledWeight]]] = {}
    for weights in working:
        for scaled in weights.scaled():
            key = (scaled.layer.scaling, scaled.layer.alike(), scaled.master.dtype)
            alike.setdefault(key, []).append((weights, scaled))
    for group in alike.values():
        masters = [cast(nn.Parameter, scaled.master) for _, scaled in group]
        scaling = group[0][1].layer.scaling.find(
            [replace(scaled, master=scaled.master.detach()) for _, scaled in group]
        )
        wanted = [w.layout.dtype_of(scaled.master, fp32=scaled.name in keeps_fp32(scaled.layer)) for w, scaled in group]
        last = group[0][0].layout.channels_last
        divided = scaling.divided([master.detach() for master in masters], wanted, last=last)
        for weights in working:
            divisors = [
                (scaled, divisor, divided.get(i))
                for i, ((owner, scaled), divisor) in enumerate(zip(group, scaling.divisors, strict=True))
                if owner is weights
            ]
            if divisors:
                weights.take_scaled(scaling, masters, divisors)
    for weights in working:
        weights.finish()


def pending_gradient(leaf: Tensor) -> Tensor | None:
    """Return the gradient accumulated so far of a master or a working weight."""
    hooks = leaf._post_accumulate_grad_hooks or {}
    for hook in hooks.values():
        if isinstance(hook, SmallSums):
            return hook.held(leaf)
        if isinstance(hook, HalfSum | SliceSum):
            return hook.value
    return leaf.grad


def is_working(network: nn.Module) -> bool:
    """Return whether the network's parameters are working weights at present."""
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
        install(list(working.values()))
        yield working
    finally:
        for weights in working.values():
            weights.restore()


@contextmanager
def prepared_together(networks: Mapping[str, nn.Module], layout: Layout) -> Iterator[None]:
    """Run networks, outside a phase, for inference: evaluation mode, normalised and cast weights, nothing moves."""
    training = {name: network.training for name, network in networks.items()}
    for network in networks.values():
        network.eval()
    try:
        with working_weights(networks, dict.fromkeys(networks, layout), (), None):
            yield
    finally:
        for name, network in networks.items():
            network.train(training[name])


@contextmanager
def prepared(network: nn.Module, layout: Layout | None = None) -> Iterator[nn.Module]:
    """Run one network for inference, see `prepared_together`; default layout: fp32, as it is."""
    with prepared_together({"network": network}, layout or Layout()):
        yield network


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
                    master = owner._parameters.get(name)
                    if master is None:  # a layer without a bias
                        continue
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
