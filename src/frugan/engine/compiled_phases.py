"""A phase's work on one micro-batch as one graph of operations: forward of its parts, penalties, and backward.

It is traced below autograd, on stand-ins without data: `autograd.grad` with `create_graph`, recomputation and backward
are operations like all others by then, so there is one graph without a break, whatever the parts do. Whatever layers
and parts observe, and the gradients that would be left in the working weights, are results of the graph; each run
hands them over as the step does without it.
"""

import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.device import ran_out_of_memory
from frugan.contract.layers import Observer, Stateful
from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.engine.plan import Plan
from frugan.engine.state.gradients import leave_gradient, stand_in_for
from frugan.engine.state.working_weights import pending_gradient
from frugan.engine.step.update import Backward, NotCompiled, forward_and_backward
from frugan.files import Folders

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
    """A phase's own state while it is traced."""

    noted: list[tuple[str, Tensor, int]]  # name, mean and samples of each observation

    def observe(self, name: str, mean: Tensor, samples: int) -> None:
        """Note one; also what the phase goes on with, if it reads."""
        super().observe(name, mean, samples)
        self.noted.append((name, mean.detach().float(), samples))


@dataclass(frozen=True)
class PhaseInputs:
    """All tensors that a phase's work on a micro-batch depends on, by name and in order."""

    # module's parameters or buffers, name in them, and the tensor's name here
    places: tuple[tuple[dict[str, Tensor | None], str, str], ...]
    tensors: dict[str, Tensor]  # working weights, buffers, pictures, draws, carried state and loss scale

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
        tensors |= {"loss scale": own.loss_scale, "course": own.course}
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
    """What the results of a phase's work on a micro-batch are, in order."""

    terms: tuple[str, ...]  # names of them
    leaves: tuple[str, ...]  # names of the working weights that gradients are for
    observed: tuple[tuple[Stateful, str, float], ...]  # layer, buffer and weight of what layers observe
    carried: tuple[tuple[str, int], ...]  # name and samples of what the phase itself does

    def hand_over(self, values: Sequence[Tensor], given: PhaseInputs, own: PhaseState) -> Terms:
        """Gradients to the working weights, observations to who takes them, terms to the caller."""
        remaining = iter(values)
        terms = {name: next(remaining) for name in self.terms}
        for leaf in self.leaves:
            leave_gradient(given.tensors[leaf], next(remaining))
        for layer, buffer, weight in self.observed:
            layer.observe(buffer, next(remaining), weight)
        for name, samples in self.carried:
            own.observe(name, next(remaining), samples)
        return terms


@dataclass
class PhaseWork:
    """A phase's work on micro-batches of one size as a function of tensors: `forward_and_backward` on stand-ins."""

    # phase, networks, micro, own, factor, plan: as for `forward_and_backward`
    phase: Phase
    networks: Networks
    micro: MicroBatch
    own: PhaseState
    factor: float
    plan: Plan
    given: PhaseInputs = field(init=False)  # the tensors that it depends on
    results: Results = field(init=False)  # what it gives; there once it was called

    def __post_init__(self) -> None:
        self.given = PhaseInputs.of(self.phase, self.networks, self.micro, self.own)

    def examples(self) -> list[Tensor]:
        """Not the working weights themselves, whose stand-ins would begin with the gradients so far."""
        return [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self.given.tensors.values()]

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Terms, gradients, observations of layers and of the phase; nothing of the networks moves."""
        stand_ins = dict(zip(self.given.tensors, tensors, strict=True))
        seen = _Seen()
        own = _Carried(
            {n: stand_ins[f"carried {n}"] for n in self.phase.carried}, stand_ins["loss scale"], stand_ins["course"]
        )
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
    """One phase's work on micro-batches of one size."""

    module: GraphModule  # the operations, in the order of the eager step
    inputs: tuple[str, ...]  # names of the tensors that it takes
    results: Results  # what it gives
    run: Operations  # what runs them; the module itself until it is compiled

    @classmethod
    def trace(
        cls, phase: Phase, networks: Networks, micro: MicroBatch, own: PhaseState, factor: float, plan: Plan
    ) -> "PhaseGraph":
        """Trace the work of `forward_and_backward`; nothing is computed, and nothing moves."""
        work = PhaseWork(phase, networks, micro, own, factor, plan)
        module = make_fx(work, tracing_mode="fake")(*work.examples())
        module.graph.eliminate_dead_code()
        _bring_constants(module, own.loss_scale.device)
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


def _bring_constants(module: GraphModule, device: torch.device) -> None:
    """Keep a graph's constants on a card, which parts make on the host: the copy of each would cut a CUDA graph."""
    if not accelerator_of(device).is_card:
        return
    for name in {str(node.target) for node in module.graph.find_nodes(op="get_attr")}:
        if isinstance(constant := getattr(module, name), Tensor):
            setattr(module, name, constant.to(device))


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


INDUCTOR = "inductor"
"""Torch's own compiler to kernels."""
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
MANY_GRAPHS = 4
"""Of one phase under one plan: two sizes of micro-batch, and once more where memory ran out, are to be expected."""

Compiler = Callable[[GraphModule, list[Tensor]], Operations]

Key = tuple[Mapping[str, tuple[object, ...]], float]
"""What a graph is made for: shapes of its inputs, and the factor of the loss."""


@dataclass
class _Compiled:
    """What has become of one phase under the plan in force."""

    graphs: list[tuple[Key, PhaseGraph]] = field(default_factory=list)  # one for each key
    as_written: bool = False  # whether the plan has it run as it is written

    def find(self, key: Key) -> PhaseGraph | None:
        """The graph that was made for such inputs."""
        return next((graph for known, graph in self.graphs if known == key), None)


@dataclass
class CompiledPhases:
    """Runs `forward_and_backward` of each phase as a compiled graph; the same results up to rounding.

    A graph is made when a micro-batch of its size first comes, and kept. What is compiled is the work on a micro-batch
    (`phase_graph`); preparing weights, carrying gradients, judging and committing stay as they are. A phase that cannot
    be compiled runs as it is written, and that is said once: under one plan, where the plan is the reason, and planned
    for as well; else from then on, once there was a chance to make another plan.
    """

    say: Callable[[str], None]  # is given a line before and after each phase is compiled
    warn: Callable[[str], None]  # is given a line where one is not, or again and again
    cache: Path | None = None  # folder of compiled kernels, unless the environment names one; None: torch's own choice
    # of torch.compile: "inductor", or "aot_eager", which runs the graph's operations one by one; or a function that
    # makes of a graph and examples of its inputs what runs it
    backend: str | Compiler = INDUCTOR
    _plan: Plan | None = None
    _phases: dict[str, _Compiled] = field(default_factory=dict)
    _as_written: set[str] = field(default_factory=set)  # phases that are compiled under no plan any more

    def __call__(
        self, phase: Phase, networks: Networks, micro: MicroBatch, own: PhaseState, factor: float, plan: Plan
    ) -> Terms:
        """As `forward_and_backward`.

        Raises:
            NotCompiled: it cannot be compiled; called again, it runs as it is written.
            RuntimeError: memory ran out.
        """
        if plan != self._plan:  # graphs of a plan that took too much shall not be kept
            self._plan = plan
            self._phases.clear()
        known = self._phases.setdefault(phase.name, _Compiled())
        if known.as_written or phase.name in self._as_written:
            return forward_and_backward(phase, networks, micro, own, factor, plan)
        given = PhaseInputs.of(phase, networks, micro, own)
        key = (given.shapes(), factor)
        graph = known.find(key)
        if graph is not None:
            return graph(given, own)
        if (reason := refused(phase, plan, shared=micro.shared is not None)) is not None:
            known.as_written = True
            self._warn(phase, reason)
            return forward_and_backward(phase, networks, micro, own, factor, plan)
        if (reason := self._too_many(known, key)) is None:
            try:
                graph = self._compile(phase, networks, micro, own, factor, plan, given, key)
                terms = graph(given, own)
            except Exception as error:  # a compiler fails in many ways; nothing has moved yet
                if ran_out_of_memory(error):
                    raise
                reason = f"compiling failed ({_in_a_line(error)})"
            else:
                known.graphs.append((key, graph))
                return terms
        known.graphs.clear()
        self._as_written.add(phase.name)
        self._warn(phase, reason)
        raise NotCompiled(phase.name, reason)

    def graphs(self, phase: str) -> tuple[PhaseGraph, ...]:
        """Made of a phase under the plan in force."""
        return tuple(graph for _, graph in self._phases.get(phase, _Compiled()).graphs)

    def forget(self) -> None:
        """Let go of all graphs, and of the memory that CUDA graphs run in."""
        self._phases.clear()
        trees = sys.modules.get("torch._inductor.cudagraph_trees")  # not there: none was made
        if trees is not None:
            trees.reset_cudagraph_trees()

    def _warn(self, phase: Phase, reason: str) -> None:
        self.warn(f"phase {phase.name} is not compiled and runs as it is written: {reason}")

    def _too_many(self, known: _Compiled, key: Key) -> str | None:
        if len(known.graphs) < MANY_GRAPHS:
            return None
        return f"{MANY_GRAPHS} graphs of it were made already, the last one because of {_change(known, key)}"

    def _compile(
        self,
        phase: Phase,
        networks: Networks,
        micro: MicroBatch,
        own: PhaseState,
        factor: float,
        plan: Plan,
        given: PhaseInputs,
        key: Key,
    ) -> PhaseGraph:
        known = self._phases[phase.name]
        again = f" again, graph {len(known.graphs) + 1} of it: {_change(known, key)}" if known.graphs else ""
        self.say(f"compiling phase {phase.name}{again} ...")
        began = time.perf_counter()
        graph = PhaseGraph.trace(phase, networks, micro, own, factor, plan)
        traced = time.perf_counter()
        as_cuda_graph = starts_graphs(plan, own.loss_scale.device)
        with torch.no_grad(), self._settings(as_cuda_graph):
            from torch._dynamo import lookup_backend  # noqa: PLC0415  (seconds to import)
            from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: PLC0415  (sympy with it)

            # torch keeps no kernels of graphs that come without a shape environment, though all shapes are fixed here
            fake = FakeTensorMode(shape_env=ShapeEnv())
            examples: list[Tensor] = [
                fake.from_tensor(given.tensors[name].detach(), static_shapes=True) for name in graph.inputs
            ]
            with tracing(TracingContext(fake)):
                make = lookup_backend(self.backend) if isinstance(self.backend, str) else self.backend
                made = make(graph.module, examples)
                graph.run = replayed(made) if as_cuda_graph else made
        seconds = time.perf_counter() - began
        self.say(
            f"compiled phase {phase.name}: {graph.operations:,} operations in {seconds:.0f} s, {traced - began:.0f} of "
            "them for tracing"
        )
        return graph

    @contextmanager
    def _settings(self, as_cuda_graph: bool) -> Iterator[None]:
        """While a graph is compiled: where kernels are kept, that they follow the number of threads, how they start."""
        with ExitStack() as stack:
            if self.backend == INDUCTOR:
                from torch._inductor import config  # noqa: PLC0415  (seconds to import)
                from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # noqa: PLC0415

                stack.enter_context(config.patch({"cpp.dynamic_threads": True, "triton.cudagraphs": as_cuda_graph}))
                # torch notes its own choice there as soon as it is imported: only another one is a person's
                if self.cache is not None and os.environ.get(CACHE_VARIABLE) in (None, default_cache_dir()):
                    stack.enter_context(_set_for_now(CACHE_VARIABLE, str(self.cache)))
            yield


def starts_graphs(plan: Plan, device: torch.device) -> bool:
    """Whether phases are started as CUDA graphs."""
    return plan.cuda_graphs and accelerator_of(device).has_graphs


def replayed(run: Operations) -> Operations:
    """Let a CUDA graph give results of their own: each run writes its results where the last one's were.

    Its inputs torch copies to where the graph reads them.
    """

    def run_and_copy(*tensors: Tensor) -> list[Tensor]:
        torch.compiler.cudagraph_mark_step_begin()  # what the last run gave is not looked at any more
        return [result.clone() for result in run(*tensors)]

    return run_and_copy


def refused(phase: Phase, plan: Plan, *, shared: bool) -> str | None:
    """Why a phase cannot be compiled under a plan; None: it can.

    Args:
        shared: its micro-batches are parts of groups that ranks share.
    """
    if shared:
        return "ranks share its normalisation groups, and exchange sums in the middle of a forward"
    if any(plan.in_slices.get(name) for name in phase.uses):
        return "the plan works dense layers slice by slice, each slice into one sum"
    if any(plan.recompute.get(name) for name in phase.uses):
        return (
            "the plan recomputes blocks, and torch's compiler moves what is recomputed to where it takes memory again"
        )
    return None


def _change(known: _Compiled, key: Key) -> str:
    """What of a new graph's inputs is not as the last one's."""
    (before, factor), _ = known.graphs[-1]
    for name, now in key[0].items():
        was = before.get(name)
        if was != now:
            return f"{name} is {_described(now)} instead of {_described(was)}"
    return f"the factor of the loss is {key[1]:g} instead of {factor:g}"


def _described(shape: tuple[Any, ...] | None) -> str:
    if shape is None:
        return "none"
    sizes, strides, dtype, gradient = shape
    return f"{list(sizes)} with strides {list(strides)}, {dtype}{', learning' if gradient else ''}"


def _in_a_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


@contextmanager
def _set_for_now(variable: str, value: str) -> Iterator[None]:
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


BACKEND = INDUCTOR
"""What a run's phases are compiled by."""


def backward_of(asked: bool, device: torch.device, say: Callable[[str], None], warn: Callable[[str], None]) -> Backward:
    """What runs forward and backward of each micro-batch.

    Args:
        asked: whether phases are to be compiled, where they can be.
        say: is given a line for each phase that is compiled.
        warn: is given a line where something is not.
    """
    if not asked:
        return forward_and_backward
    if (missing := missing_compiler(device)) is not None:
        warn(f"training.compile is ignored, steps run without it: {missing}")
        return forward_and_backward
    return CompiledPhases(say, warn, Folders.from_environment().cache / "inductor", BACKEND)


def compiles(asked: bool, device: torch.device) -> bool:
    """Whether phases are compiled on a device where that is asked for, and are to be planned so."""
    return asked and missing_compiler(device) is None


def _missing_for_launchers() -> str | None:
    """What Triton would need to build what starts its kernels, at the first of them; None: nothing."""
    asked = os.environ.get("CC")
    if not any(shutil.which(name) for name in ([asked] if asked else ["cc", "gcc", "clang"])):
        return f"Triton starts its kernels by programs in C, and found no compiler ({asked or 'cc, gcc or clang'})"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "Triton starts its kernels by programs in C, and Python.h is missing: install this Python's headers"
    return None


def missing_triton(device: torch.device) -> str | None:
    """What Triton would need to make and start kernels on a card, and is not here; None: nothing."""
    from torch.utils._triton import has_triton_package  # noqa: PLC0415

    if not has_triton_package():
        package = "triton-windows" if os.name == "nt" else "'frugan[kernels]'"
        return f"a card's kernels are made with Triton, which is not installed: pip install {package}"
    if torch.version.cuda is not None and (capability := accelerator_of(device).capability or (0, 0)) < (7, 0):
        return "Triton needs a card of compute capability 7.0 or newer, not {}.{}".format(*capability)
    return None if os.name == "nt" else _missing_for_launchers()  # Triton brings a compiler for Windows


def missing_compiler(device: torch.device) -> str | None:
    """What torch.compile would need for a device and is not here; None: nothing."""
    if accelerator_of(device).is_card:
        return missing_triton(device)
    from torch._inductor.cpp_builder import get_cpp_compiler  # noqa: PLC0415  (seconds to import)

    try:
        get_cpp_compiler()
    except (RuntimeError, OSError) as error:  # none is found, or it does not answer
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"torch.compile makes a processor's kernels with a C++ compiler, and found none ({reason})"
    return None
