"""Phases that run compiled: one graph each, made when a micro-batch of its size first comes, and kept.

What is compiled is the work on a micro-batch (`phase_graph`); preparing weights, carrying gradients, judging and
committing stay as they are. A phase that cannot be compiled runs as it is written, and that is said once.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule

from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.engine.backward import forward_and_backward
from frugan.engine.out_of_memory import ran_out_of_memory
from frugan.engine.phase_graph import Operations, PhaseGraph, PhaseInputs
from frugan.engine.plan import Plan

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
    """What has become of one phase under the plan in force.

    Attributes:
        graphs: one for each key.
        eager: why it runs as it is written; None: it does not.
    """

    graphs: list[tuple[Key, PhaseGraph]] = field(default_factory=list)
    eager: str | None = None

    def find(self, key: Key) -> PhaseGraph | None:
        """The graph that was made for such inputs."""
        return next((graph for known, graph in self.graphs if known == key), None)


@dataclass
class CompiledPhases:
    """Runs `forward_and_backward` of each phase as a compiled graph; the same results up to rounding.

    Attributes:
        say: is given a line before and after each phase is compiled.
        warn: is given a line where one is not, or again and again.
        cache: folder of compiled kernels, unless the environment names one; None: torch's own choice.
        backend: of torch.compile: "inductor", or "aot_eager", which runs the graph's operations one by one; or a
            function that makes of a graph and examples of its inputs what runs it.
    """

    say: Callable[[str], None]
    warn: Callable[[str], None]
    cache: Path | None = None
    backend: str | Compiler = INDUCTOR
    _plan: Plan | None = None
    _phases: dict[str, _Compiled] = field(default_factory=dict)

    def __call__(
        self, phase: Phase, networks: Networks, micro: MicroBatch, own: PhaseState, factor: float, plan: Plan
    ) -> Terms:
        """As `forward_and_backward`.

        Raises:
            RuntimeError: memory ran out.
        """
        if plan != self._plan:  # graphs of a plan that took too much shall not be kept
            self._plan = plan
            self._phases.clear()
        known = self._phases.setdefault(phase.name, _Compiled())
        if known.eager is not None:
            return forward_and_backward(phase, networks, micro, own, factor, plan)
        given = PhaseInputs.of(phase, networks, micro, own)
        key = (given.shapes(), factor)
        graph = known.find(key)
        if graph is not None:
            return graph(given, own)
        if (reason := refused(phase, plan, shared=micro.shared is not None) or self._too_many(known, key)) is None:
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
        known.eager = reason
        self.warn(f"phase {phase.name} is not compiled and runs as it is written: {reason}")
        return forward_and_backward(phase, networks, micro, own, factor, plan)

    def graphs(self, phase: str) -> tuple[PhaseGraph, ...]:
        """Made of a phase under the plan in force."""
        return tuple(graph for _, graph in self._phases.get(phase, _Compiled()).graphs)

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
        as_cuda_graph = is_cuda_graph(plan, own.loss_scale.device)
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


def is_cuda_graph(plan: Plan, device: torch.device) -> bool:
    """Whether phases are started as CUDA graphs."""
    return plan.cuda_graphs and device.type == "cuda"


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
