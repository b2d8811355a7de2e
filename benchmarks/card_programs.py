"""What torch's compiler writes for a described card, and what Triton makes of it. See described_card.py."""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._dynamo import lookup_backend
from torch._guards import TracingContext, tracing
from torch._inductor import config, graph, ir, scheduler
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import PythonKeyTracer
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_aggregate

from described_card import CARD
from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState
from frugan.engine.compiled_phases import INDUCTOR, PhaseGraph, PhaseInputs
from frugan.engine.plan import Plan

BACKWARD = "backward"
"""Notes of an operation that autograd's engine asked for it."""


@dataclass(frozen=True)
class Copy:
    """A buffer that holds what another one holds, in another order."""

    size_bytes: int  # of the buffer
    shape: tuple[int, ...]
    source_strides: tuple[int, ...]  # of what is copied
    strides: tuple[int, ...]  # of the copy
    own_kernel: bool  # nothing else is done in its kernel
    backward: bool  # made in a backward
    operations: tuple[str, ...]  # that it was written for
    readers: tuple[str, ...]  # of the copy


@dataclass(frozen=True)
class Program:
    """What is written for one phase's work on a micro-batch."""

    source: str  # the program
    operations: int  # of the traced graph, views included
    triton_launches: int  # of Triton kernels
    library_calls: Mapping[str, int]  # name -> how often it is called
    bytes_moved: int  # by all of them
    peak_bytes: int  # most that lives at once of what is stored
    kept_bytes: int  # stored in a forward and read last in a backward
    copies: tuple[Copy, ...] = ()  # between layouts
    kept: tuple[tuple[int, str], ...] = ()  # bytes and operations of each buffer that is kept, the largest first


def traced(
    phase: Phase, networks: Networks, micro: MicroBatch, own: PhaseState, factor: float, plan: Plan
) -> tuple[PhaseGraph, list[Tensor]]:
    """A phase's graph with everything on the card, and stand-ins of its inputs.

    It is traced on tensors without data, which go a card's way wherever the step does.
    """
    create = PythonKeyTracer.create_node

    def noted(self: PythonKeyTracer, *args: Any, **kwargs: Any) -> Node:
        node = create(self, *args, **kwargs)
        node.meta["custom"] = {BACKWARD: torch._C._current_autograd_node() is not None}
        return node

    with patch.object(PythonKeyTracer, "create_node", noted):
        made = PhaseGraph.trace(phase, networks, micro, own, factor, plan)
    for node in made.module.graph.nodes:
        node.args = map_aggregate(node.args, _on_card)
        node.kwargs = map_aggregate(node.kwargs, _on_card)
    made.module.recompile()
    given = PhaseInputs.of(phase, networks, micro, own).tensors
    return made, [given[name] for name in made.inputs]


def _on_card(argument: Any) -> Any:
    return CARD if isinstance(argument, torch.device) else argument


def written(module: GraphModule, given: Sequence[Tensor]) -> Program:
    """The program of a graph for the card.

    Raises:
        RuntimeError: the compiler wrote none, or several.
    """
    programs: list[Program] = []
    operations = sum(node.op == "call_function" for node in module.graph.nodes)

    def keep(self: graph.GraphLowering, code: Any) -> Any:
        programs.append(_read(self, code.value, operations))
        return _NotLoaded()

    fake = FakeTensorMode(shape_env=ShapeEnv())
    with fake:
        examples: list[Tensor] = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=CARD) for t in given]
    with (
        patch.object(graph.GraphLowering, "_compile_to_module_lines", keep),
        # nothing is measured: what torch would choose by running it (wider matrices) stays as it is
        config.patch(compile_threads=1, force_disable_caches=True, shape_padding=False),
        torch.no_grad(),
        tracing(TracingContext(fake)),
    ):
        lookup_backend(INDUCTOR)(module, examples)
    if len(programs) != 1:
        raise RuntimeError(f"torch's compiler wrote {len(programs)} programs for one graph; expected 1")
    return programs[0]


class _NotLoaded:
    """Stands for the program's module."""

    __file__ = "described"

    def call(self, *_: object) -> None:
        raise RuntimeError("a program for a described card cannot run")


def _read(lowered: graph.GraphLowering, source: str, operations: int) -> Program:
    made = lowered.scheduler
    body = source[source.index("def call(") :]
    lives = _lives(made)
    kept = [life for life in lives if life.forward and life.ends_backward]
    return Program(
        source=source,
        operations=operations,
        triton_launches=len(re.findall(r"\btriton_\w+\.run\(", body)),
        library_calls=Counter(re.findall(r"\b(?:extern_kernels\.|torch\.ops\.\w+\.)(\w+)(?:\.\w+)?\(", body)),
        bytes_moved=int(V.graph.count_bytes()[0]),
        peak_bytes=_most_alive(lives),
        kept_bytes=sum(life.size_bytes for life in kept),
        copies=tuple(_copies(made)),
        kept=tuple(sorted(((life.size_bytes, ", ".join(life.operations)) for life in kept), reverse=True)),
    )


@dataclass
class _Life:
    """Of what has memory of its own, by the numbers of kernels."""

    size_bytes: int
    begins: int
    ends: int
    forward: bool  # made in a forward
    ends_backward: bool  # read last in a backward
    operations: tuple[str, ...]  # that it was written for


def _lives(made: scheduler.Scheduler) -> list[_Life]:
    """What is made as a part of a larger buffer belongs to that one."""
    places = {node.get_name(): at for at, fused in enumerate(made.nodes) for node in fused.get_nodes()}
    results = set(V.graph.get_output_names())
    lives: dict[str, _Life] = {}
    parts: list[tuple[str, _Life]] = []
    for at, _, buffer in _buffers(made):
        inner: Any = buffer.node
        readers: list[Any] = [use.node for use in buffer.users if use.get_name() in places and not use.is_weak]
        last = max(readers, key=lambda node: places[node.get_name()], default=None)
        is_result = buffer.get_name() in results
        life = _Life(
            size_bytes=_size_bytes(inner),
            begins=at,
            ends=len(made.nodes) if is_result else at if last is None else places[last.get_name()],
            forward=not _is_backward(inner),
            ends_backward=not is_result and last is not None and _is_backward(last.node),
            operations=_operations(inner),
        )
        if isinstance(inner.get_layout(), ir.NonOwningLayout):
            parts.append((inner.get_layout().view.get_name(), life))
        else:
            lives[buffer.get_name()] = life
    for name, part in parts:
        whole = lives[name]
        whole.begins = min(whole.begins, part.begins)
        if part.ends > whole.ends:
            whole.ends, whole.ends_backward = part.ends, part.ends_backward
    return list(lives.values())


def _most_alive(lives: Sequence[_Life]) -> int:
    """Bytes."""
    moments = Counter[int]()
    for life in lives:
        moments[life.begins] += life.size_bytes
        moments[life.ends + 1] -= life.size_bytes
    return max(accumulate(moments[at] for at in sorted(moments)), default=0)


def _buffers(made: scheduler.Scheduler) -> list[tuple[int, scheduler.BaseSchedulerNode, scheduler.SchedulerBuffer]]:
    """Number of its kernel, node and buffer of all that is in memory."""
    left_out = (ir.MultiOutputLayout, ir.NoneLayout, ir.MutationLayoutSHOULDREMOVE)
    return [
        (at, node, buffer)
        for at, fused in enumerate(made.nodes)
        for node in fused.get_nodes()
        for buffer in node.get_outputs()
        if buffer.get_name() not in V.graph.removed_buffers
        and isinstance(buffer.node, ir.Buffer)
        and not isinstance(buffer.node.get_output_spec(), left_out)
    ]


def _size_bytes(buffer: ir.Buffer) -> int:
    return int(V.graph.sizevars.optimization_hint(buffer.get_numel())) * buffer.get_dtype().itemsize


def _is_backward(buffer: Any) -> bool:
    return any(node.meta.get("custom", {}).get(BACKWARD, False) for node in buffer.get_origins())


def _operations(buffer: Any) -> tuple[str, ...]:
    return tuple(sorted({str(node.target).removeprefix("aten.") for node in buffer.get_origins()}))


_MOVES = {"load", "store", "output", "get_index", "to_dtype"}
"""Of a loop that makes no new numbers."""


def _copies(made: scheduler.Scheduler) -> list[Copy]:
    copies: list[Copy] = []
    for at, node, buffer in _buffers(made):
        if not isinstance(node, scheduler.SchedulerNode) or not {*node._body.op_counts} <= _MOVES:
            continue
        (read,), (write,) = node._body.get_read_exprs(), node._body.get_write_exprs()
        (dependency,) = node.read_writes.reads
        if read == write or dependency.get_numel() != buffer.node.get_numel():
            continue
        source: Any = V.graph.try_get_buffer(dependency.name)
        layout, before = buffer.node.get_layout(), source.get_layout()
        if isinstance(layout, ir.NonOwningLayout):  # a part of what is joined
            continue
        copies.append(
            Copy(
                size_bytes=_size_bytes(buffer.node),
                shape=tuple(map(int, layout.size)),
                source_strides=tuple(map(int, before.stride)),
                strides=tuple(map(int, layout.stride)),
                own_kernel=len(made.nodes[at].get_nodes()) == 1,
                backward=_is_backward(buffer.node),
                operations=_operations(buffer.node),
                readers=tuple(sorted({_reader(use.node) for use in buffer.users})),
            )
        )
    return copies


def _reader(node: Any) -> str:
    inner = getattr(node, "node", None)
    if isinstance(inner, ir.ExternKernel):
        return str(getattr(inner, "python_kernel_name", None) or type(inner).__name__)
    return "a result" if inner is None else "Triton"


# Machine code.


@dataclass(frozen=True)
class KernelCode:
    """Machine code of one Triton kernel, made in the first of the ways among which torch would choose by timing."""

    registers: int = 0  # of a thread
    shared_bytes: int = 0  # of a block
    spilt_bytes: int = 0  # that a thread stores and loads because registers do not suffice
    error: str | None = None  # why there is none


@dataclass
class Assembler:
    """Makes machine code of the Triton kernels of programs, once of those that are alike."""

    target: str  # as ptxas calls the card
    _known: dict[str, KernelCode] = field(default_factory=dict)

    def kernels(self, source: str) -> dict[str, KernelCode]:
        """Name -> machine code of each kernel of a program."""
        made: dict[str, KernelCode] = {}
        for name, text in re.findall(r"async_compile\.triton\('(\w+)', '''(.*?)''', device_str='cuda'\)", source, re.S):
            key = text.replace(name, "triton_")
            if key not in self._known:
                self._known[key] = self._made(name, text)
            made[name] = self._known[key]
        return made

    def _made(self, name: str, text: str) -> KernelCode:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{name}.py")
            path.write_text(text, "utf-8")
            space: dict[str, Any] = {"__file__": str(path), "__name__": name}
            try:
                exec(compile(text, str(path), "exec"), space)
                tuner = space[name]
                return self.code_of(tuner._precompile_config(tuner.configs[0]).kernel)
            except Exception as error:  # noqa: BLE001  (a compiler fails in many ways, each of which is counted)
                return KernelCode(error=f"{type(error).__name__}: {error}"[:300])

    def code_of(self, kernel: Any) -> KernelCode:
        """What becomes of a kernel that Triton has compiled."""
        with tempfile.TemporaryDirectory() as folder:
            said = self._assembled(kernel.asm["ptx"], Path(folder))
        registers = re.search(r"Used (\d+) registers", said)
        if registers is None:
            return KernelCode(error=f"ptxas named no registers: {said[:200]}")
        spilt = sum(map(int, re.findall(r"(\d+) bytes spill", said)))
        return KernelCode(int(registers[1]), int(kernel.metadata.shared), spilt)

    def _assembled(self, ptx: str, folder: Path) -> str:
        """What ptxas says of a kernel."""
        from triton.backends.nvidia.compiler import get_ptxas  # noqa: PLC0415  (an extra)

        capability = int(self.target.removeprefix("sm_"))
        ptxas = get_ptxas(capability).path
        file = folder / "kernel.ptx"
        file.write_text(ptx, "utf-8")
        architecture = f"{self.target}a" if capability >= 90 else self.target  # as Triton writes it
        words = [ptxas, "-v", f"--gpu-name={architecture}", str(file), "-o", str(folder / "kernel.cubin")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"ptxas: {done.stderr[:200]}")
        return done.stderr
