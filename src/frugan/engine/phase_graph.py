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


@dataclass(frozen=True)
class Results:
    """What the results of a phase's work on a micro-batch are, in order.

    Attributes:
        terms: names of them.
        leaves: names of the working weights that gradients are for.
        observed: layer, buffer and weight of what layers observe.
        carried: name and samples of what the phase itself does.
    """

    terms: tuple[str, ...]
    leaves: tuple[str, ...]
    observed: tuple[tuple[Stateful, str, float], ...]
    carried: tuple[tuple[str, int], ...]

    def hand_over(self, values: Sequence[Tensor], given: PhaseInputs, own: PhaseState) -> Terms:
        """Gradients to the working weights, observations to who takes them, terms to the caller."""
        found = iter(values)
        terms = {name: next(found) for name in self.terms}
        for leaf in self.leaves:
            leave_gradient(given.tensors[leaf], next(found))
        for layer, buffer, weight in self.observed:
            layer.observe(buffer, next(found), weight)
        for name, samples in self.carried:
            own.observe(name, next(found), samples)
        return terms


@dataclass
class PhaseWork:
    """A phase's work on micro-batches of one size as a function of tensors: `forward_and_backward` on stand-ins.

    Attributes:
        phase, networks, micro, own, factor, plan: as for `forward_and_backward`.
        given: the tensors that it depends on.
        results: what it gives; there once it was called.
    """

    phase: Phase
    networks: Networks
    micro: MicroBatch
    own: PhaseState
    factor: float
    plan: Plan
    given: PhaseInputs = field(init=False)
    results: Results = field(init=False)

    def __post_init__(self) -> None:
        self.given = PhaseInputs.of(self.phase, self.networks, self.micro, self.own)

    def examples(self) -> list[Tensor]:
        """Not the working weights themselves, whose stand-ins would begin with the gradients so far."""
        return [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self.given.tensors.values()]

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Terms, gradients, observations of layers and of the phase; nothing of the networks moves."""
        stand_ins = dict(zip(self.given.tensors, tensors, strict=True))
        seen = _Seen()
        own = _Carried({n: stand_ins[f"carried {n}"] for n in self.phase.carried}, stand_ins["loss scale"])
        own.noted = []
        for tensor in tensors:
            stand_in_for(tensor)
        micro = _micro_of(self.micro, stand_ins)
        with self.given.replaced(stand_ins), _observed_by(self.networks, seen):
            terms = forward_and_backward(self.phase, self.networks, micro, own, self.factor, self.plan)
        pending = {name: pending_gradient(tensor) for name, tensor in stand_ins.items() if tensor.requires_grad}
        leaves = {name: gradient for name, gradient in pending.items() if gradient is not None}
        self.results = Results(
            terms=tuple(terms),
            leaves=tuple(leaves),
            observed=tuple((layer, buffer, weight) for layer, buffer, _, weight in seen.staged),
            carried=tuple((name, samples) for name, _, samples in own.noted),
        )
        observed = [value for _, _, value, _ in seen.staged] + [value for _, value, _ in own.noted]
        return [*terms.values(), *leaves.values(), *observed]


@dataclass
class PhaseGraph:
    """One phase's work on micro-batches of one size.

    Attributes:
        module: the operations, in the order of the eager step.
        inputs: names of the tensors that it takes.
        results: what it gives.
        run: what runs them; the module itself until it is compiled.
    """

    module: GraphModule
    inputs: tuple[str, ...]
    results: Results
    run: Operations

    @classmethod
    def trace(
        cls, phase: Phase, networks: Networks, micro: MicroBatch, own: PhaseState, factor: float, plan: Plan
    ) -> "PhaseGraph":
        """Trace the work of `forward_and_backward`; nothing is computed, and nothing moves."""
        work = PhaseWork(phase, networks, micro, own, factor, plan)
        module = make_fx(work, tracing_mode="fake")(*work.examples())
        module.graph.eliminate_dead_code()
        inputs = dict(zip(work.given.tensors, module.graph.find_nodes(op="placeholder"), strict=True))
        kept = tuple(name for name, node in inputs.items() if node.users)
        for node in inputs.values():
            if not node.users:
                module.graph.erase_node(node)
        module.recompile()
        return cls(module, kept, work.results, module)

    @property
    def operations(self) -> int:
        """In the graph, views included."""
        return sum(node.op == "call_function" for node in self.module.graph.nodes)

    def __call__(self, given: PhaseInputs, own: PhaseState) -> Terms:
        """Run it, and hand over what it found."""
        with torch.no_grad():
            return self.results.hand_over(self.run(*(given.tensors[name] for name in self.inputs)), given, own)


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
