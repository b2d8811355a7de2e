"""A phase's work on one micro-batch as one graph of operations: forward of its parts, penalties, and backward.

It is traced below autograd, on stand-ins without data: `autograd.grad` with `create_graph`, recomputation and backward
are operations like all others by then, so there is one graph without a break, whatever the parts do. Whatever layers
and parts observe, and the gradients that would be left in the working weights, are results of the graph; each run
hands them over as the step does without it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from frugan.contract.layers import Observer, Stateful
from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.engine.backward import forward_and_backward
from frugan.engine.leaf_sums import leave_gradient, stand_in_for
from frugan.engine.plan import Plan
from frugan.engine.working_weights import pending_gradient

Operations = Callable[..., Sequence[Tensor]]
"""Tensors to tensors: a graph, compiled or not."""


class _Seen(Observer):
    """Notes what layers observe while a phase is traced.

    Attributes:
        staged: layer, buffer, value and weight of each observation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.staged: list[tuple[Stateful, str, Tensor, float]] = []

    def room(self, like: Tensor, count: int) -> Tensor:
        """By itself: a compiler would copy what is shared at each write."""
        return like.new_zeros(count)

    def stage(self, layer: Stateful, buffer: str, value: Tensor, weight: float = 1) -> None:
        """Note one."""
        if not self.recomputing:
            self.staged.append((layer, buffer, value.detach(), weight))


class _Carried(PhaseState):
    """A phase's own state while it is traced.

    Attributes:
        noted: name, mean and samples of each observation.
    """

    noted: list[tuple[str, Tensor, int]]

    def observe(self, name: str, mean: Tensor, samples: int) -> None:
        """Note one; also what the phase goes on with, if it reads."""
        super().observe(name, mean, samples)
        self.noted.append((name, mean.detach().float(), samples))


@dataclass(frozen=True)
class PhaseInputs:
    """All tensors that a phase's work on a micro-batch depends on, by name and in order.

    Attributes:
        places: module's parameters or buffers, name in them, and the tensor's name here.
        tensors: working weights, buffers, pictures, draws, carried state and loss scale.
    """

    places: tuple[tuple[dict[str, Tensor | None], str, str], ...]
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, phase: Phase, networks: Networks, micro: MicroBatch, own: PhaseState) -> "PhaseInputs":
        """Collect them; a tensor that stands in several places comes once."""
        places: list[tuple[dict[str, Tensor | None], str, str]] = []
        tensors: dict[str, Tensor] = {}
        known: dict[int, str] = {}
        for network_name, network in networks.items():
            for module_name, module in network.named_modules():
                for holder in (module._parameters, module._buffers):
                    for name, tensor in holder.items():
                        if tensor is None:
                            continue
                        key = known.setdefault(id(tensor), f"{network_name}.{module_name}.{name}")
                        tensors[key] = tensor
                        places.append((holder, name, key))
        for source, named in micro.pictures.items():
            tensors |= {f"pictures {source}.{name}": tensor for name, tensor in named.items()}
        tensors |= {f"draw {name}": tensor for name, tensor in micro.draws.items()}
        tensors |= {f"carried {name}": own.read(name) for name in phase.carried}
        tensors["loss scale"] = own.loss_scale
        return cls(tuple(places), tensors)

    def shapes(self) -> dict[str, tuple[object, ...]]:
        """What a graph is made for: shape, strides and dtype of each, and whether it takes a gradient."""
        return {n: (tuple(t.shape), t.stride(), t.dtype, t.requires_grad) for n, t in self.tensors.items()}

    @contextmanager
    def replaced(self, tensors: dict[str, Tensor]) -> Iterator[None]:
        """Let others stand in the networks' places."""
        try:
            for holder, name, key in self.places:
                holder[name] = tensors[key]
            yield
        finally:
            for holder, name, key in self.places:
                holder[name] = self.tensors[key]


@dataclass
class PhaseGraph:
    """One phase's work on micro-batches of one size.

    Attributes:
        module: the operations, in the order of the eager step.
        inputs: names of the tensors that it takes.
        run: what runs them; the module itself until it is compiled.
    """

    module: GraphModule
    inputs: tuple[str, ...]
    run: Operations
    _terms: tuple[str, ...] = ()
    _leaves: tuple[str, ...] = ()
    _observed: tuple[tuple[Stateful, str, float], ...] = ()
    _carried: tuple[tuple[str, int], ...] = ()

    @classmethod
    def trace(
        cls, phase: Phase, networks: Networks, micro: MicroBatch, own: PhaseState, factor: float, plan: Plan
    ) -> "PhaseGraph":
        """Trace the work of `forward_and_backward`; nothing is computed, and nothing moves."""
        given = PhaseInputs.of(phase, networks, micro, own)
        names = tuple(given.tensors)
        record = _Record()

        def work(*tensors: Tensor) -> list[Tensor]:
            stand_ins = dict(zip(names, tensors, strict=True))
            with given.replaced(stand_ins), _observed_by(networks, record.seen):
                return record.run(phase, networks, _micro_of(micro, stand_ins), stand_ins, factor, plan)

        # not the working weights themselves, whose stand-ins would begin with the gradients so far
        examples = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in given.tensors.values()]
        module = make_fx(work, tracing_mode="fake")(*examples)
        module.graph.eliminate_dead_code()
        unused = [node for node in module.graph.find_nodes(op="placeholder") if not node.users]
        kept = [name for name, node in zip(names, module.graph.find_nodes(op="placeholder"), strict=True) if node.users]
        for node in unused:
            module.graph.erase_node(node)
        module.recompile()
        return cls(module, tuple(kept), module, **record.layout())  # type: ignore[arg-type]

    @property
    def operations(self) -> int:
        """In the graph, views included."""
        return sum(node.op == "call_function" for node in self.module.graph.nodes)

    def __call__(self, given: PhaseInputs, own: PhaseState) -> Terms:
        """Run it, and hand over what it found: gradients to the working weights, observations to who takes them."""
        with torch.no_grad():
            found = iter(self.run(*(given.tensors[name] for name in self.inputs)))
            terms = {name: next(found) for name in self._terms}
            for leaf in self._leaves:
                leave_gradient(given.tensors[leaf], next(found))
            for layer, buffer, weight in self._observed:
                layer.observe(buffer, next(found), weight)
            for name, samples in self._carried:
                own.observe(name, next(found), samples)
        return terms


@dataclass
class _Record:
    """What the results of a graph are.

    Attributes:
        seen: takes what layers observe.
    """

    seen: _Seen = field(default_factory=_Seen)
    _terms: Terms = field(default_factory=dict)
    _leaves: dict[str, Tensor] = field(default_factory=dict)
    _own: _Carried | None = None

    def run(
        self,
        phase: Phase,
        networks: Networks,
        micro: MicroBatch,
        stand_ins: dict[str, Tensor],
        factor: float,
        plan: Plan,
    ) -> list[Tensor]:
        """The work itself, on stand-ins: terms, gradients, observations of layers and of the phase."""
        own = self._own = _Carried({n: stand_ins[f"carried {n}"] for n in phase.carried}, stand_ins["loss scale"])
        own.noted = []
        for tensor in stand_ins.values():
            stand_in_for(tensor)
        self._terms = forward_and_backward(phase, networks, micro, own, factor, plan)
        pending = {name: pending_gradient(tensor) for name, tensor in stand_ins.items() if tensor.requires_grad}
        self._leaves = {name: gradient for name, gradient in pending.items() if gradient is not None}
        observed = [value for _, _, value, _ in self.seen.staged] + [value for _, value, _ in own.noted]
        return [*self._terms.values(), *self._leaves.values(), *observed]

    def layout(self) -> dict[str, object]:
        """Names of the results, in order."""
        assert self._own is not None
        return {
            "_terms": tuple(self._terms),
            "_leaves": tuple(self._leaves),
            "_observed": tuple((layer, buffer, weight) for layer, buffer, _, weight in self.seen.staged),
            "_carried": tuple((name, samples) for name, _, samples in self._own.noted),
        }


def _micro_of(micro: MicroBatch, tensors: dict[str, Tensor]) -> MicroBatch:
    """The same micro-batch of other tensors."""
    return MicroBatch(
        pictures={
            source: {name: tensors[f"pictures {source}.{name}"] for name in named}
            for source, named in micro.pictures.items()
        },
        draws={name: tensors[f"draw {name}"] for name in micro.draws},
        size=micro.size,
        normalisation_batch=micro.normalisation_batch,
    )


@contextmanager
def _observed_by(networks: Networks, observer: Observer) -> Iterator[None]:
    """Let layers observe for somebody else."""
    layers = [m for network in networks.values() for m in network.modules() if isinstance(m, Stateful)]
    before = [layer.observer for layer in layers]
    try:
        for layer in layers:
            layer.observer = observer
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            layer.observer = own
