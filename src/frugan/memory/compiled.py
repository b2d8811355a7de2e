"""Stands in for compiled phases where a step is run without data: takes memory and work as their graphs would.

The rest of the step is the step itself, and a phase that would not be compiled runs as it is written here too.

A phase's work on a micro-batch is recorded as one list of operations, as a compiler is given it. Forward, penalties and
backward alike are operations on values by then. A value is what one operation made: what works in place makes a new
one, and views are their base. Recording takes about as long as running the phase without data does; torch's own tracer
takes ten times that.

What becomes of it when a compiler makes kernels of it, which values are stored at all and for how long, is a model of
torch's own compiler, in two of its rules. What is pointwise is not stored but made within whatever reads it, unless a
kernel of a library reads it, or too much goes into it for making it twice. What is stored lives from its own place in
the graph to its last reader. Torch then joins more kernels and moves them about, and lets some write over what dies in
them; that is left out. `benchmarks/compiled_peaks.py` holds this to torch's own compiler.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.engine.compiled_phases import PhaseInputs, PhaseWork, Results, refused
from frugan.engine.plan import Plan
from frugan.engine.step.update import forward_and_backward
from frugan.stepmemory.dataless import META, Dataless
from frugan.stepmemory.shapes import prefers_channels_last
from frugan.stepmemory.tracker import Tracker
from frugan.stepmemory.work import FILLS, WorkCounter, tensors_in, written_in_place

aten = torch.ops.aten
_POINTWISE_TOO = frozenset(
    {
        aten._to_copy,
        aten.copy_,
        aten.fill_,
        aten.zero_,
        aten.full,
        aten.full_like,
        aten.zeros,
        aten.zeros_like,
        aten.new_zeros,
        aten.new_full,
        aten.ones,
        aten.ones_like,
        aten.scalar_tensor,
        aten.arange,
        aten.leaky_relu_backward,
        aten.hardtanh_backward,
    }
)
"""Besides those that torch marks so: each number of a result is made of the numbers at its place, or of none."""

_GATHERS = frozenset(
    {
        aten.upsample_nearest2d,
        aten.upsample_nearest2d_backward,
        aten.avg_pool2d,
        aten.avg_pool2d_backward,
        aten.constant_pad_nd,
        aten.index_select,
        aten._unsafe_index,
        aten.flip,
        aten.embedding,
    }
)
"""Each number of a result is made of a few numbers at other places."""
_READ_SEVERAL_TIMES = frozenset({aten.leaky_relu.default, aten.leaky_relu_.default})
"""Torch's compiler makes them of comparisons and products of their operand in fp32."""
_SHAPE_ALONE = {aten.avg_pool2d_backward: 1}
"""Place of an operand of which nothing but the shape is looked at."""
_DECOMPOSED = (aten.native_batch_norm, aten.native_batch_norm_backward)
"""Torch's compiler takes these apart before it makes kernels, into statistics and what is pointwise."""


# For a card it takes convolutions apart as well. The library is called without a bias, which is pointwise, and whose
# gradient is a sum; and an operand that lies in another order than the others is copied, once for each call. (The
# written step copies it too, inside of the library, where no plan sees it.)


def _order_of(operands: Sequence[Tensor]) -> torch.memory_format:
    """In which a convolution reads and writes: channels-last if its pictures or its weight are."""
    return torch.channels_last if any(map(prefers_channels_last, operands[-2:])) else torch.contiguous_format


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    order = _order_of((x, weight))
    x, weight = (operand.contiguous(memory_format=order) for operand in (x, weight))
    made: Tensor = aten.convolution(x, weight, None, *geometry)
    return made if bias is None else made + bias.view(-1, 1, 1)


def _convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, _: object, *rest: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    *geometry, (to_x, to_weight, to_bias) = rest
    order = _order_of((x, weight))
    ordered = [operand.contiguous(memory_format=order) for operand in (gradient, x, weight)]
    made: tuple[Tensor | None, ...] = (None, None)
    if to_x or to_weight:
        made = aten.convolution_backward(*ordered, None, *geometry, [to_x, to_weight, False])
    return made[0], made[1], gradient.sum((0, 2, 3)) if to_bias else None


_OF_CONVOLUTIONS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {aten.convolution.default: _convolution, aten.convolution_backward.default: _convolution_backward}
)


def _is_one_call(func: Any, args: Sequence[Any]) -> bool:
    """Whether nothing is left to be taken apart."""
    forward = func is aten.convolution.default
    operands, has_bias = (args[:2], args[2] is not None) if forward else (args[:3], args[10][2])
    order = _order_of(operands)
    return not has_bias and all(operand.is_contiguous(memory_format=order) for operand in operands)


class OperationKind(Enum):
    """How a compiler makes an operation."""

    POINTWISE = "within whatever reads its result"
    GATHER = "likewise; what it reads is read more than once, and stored if much goes into it"
    REDUCTION = "with what it reads made within it"
    OWN = "by a kernel of its own, of a library mostly"


@dataclass(frozen=True)
class Value:
    """What one operation made, or a graph was given."""

    size_bytes: int  # of its storage
    elements: int  # numbers in it
    forward: bool = True  # it was not made in a backward


@dataclass(frozen=True)
class Operation:
    """One operation."""

    func: Any  # torch's own
    kind: OperationKind  # how it is made
    reads: dict[int, int]  # number of a value -> bytes of it that are read
    makes: tuple[int, ...]  # numbers of values
    cost: tuple[int, int, int]  # bytes moved, multiply-accumulates, and those of them on fp32 numbers
    place: str  # where it was asked for


@dataclass
class JointGraph:
    """Operations in the order of the written step."""

    values: list[Value] = field(default_factory=list)  # by number
    operations: list[Operation] = field(default_factory=list)  # on them
    results: tuple[int, ...] = ()  # numbers of the values that the work gives, in order
    tensors: Sequence[Tensor] = ()  # the results, without data

    def needed(self) -> list[Operation]:
        """Without those that nothing comes of."""
        wanted, kept = {*self.results}, list[Operation]()
        for operation in reversed(self.operations):
            if not wanted.isdisjoint(operation.makes):
                wanted.update(operation.reads)
                kept.append(operation)
        return kept[::-1]


def record(
    work: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor], dataless: Dataless, place: Callable[[], str]
) -> JointGraph:
    """Record what a function of tensors without data does.

    Args:
        place: says where operations are asked for now.
    """
    with _disable_current_modes():  # who watches memory is shown what the compiled graph takes, and not this
        recorder = _Recorder(dataless, place)
        for tensor in examples:
            recorder.number(tensor)
        with recorder:
            tensors = work(*examples)
        recorder.graph.tensors = [tensor.detach() for tensor in tensors]
    recorder.graph.results = tuple(recorder.number(tensor) for tensor in tensors)
    return recorder.graph


class _Recorder(TorchDispatchMode):
    """Notes operations while they run without data."""

    def __init__(self, dataless: Dataless, place: Callable[[], str]) -> None:
        super().__init__()
        self.graph = JointGraph()
        self._dataless = dataless
        self._place = place
        self._work = WorkCounter()
        self._parts: dict[Any, Callable[..., Any] | None] = {**get_decompositions(_DECOMPOSED)}
        self._numbers: dict[int, int] = {}
        self._storages: list[torch.UntypedStorage] = []  # alive, so that no other takes their identity

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; torch would import its compiler to make sure

    def number(self, tensor: Tensor) -> int:
        """Of the value that lies in a tensor now."""
        key = tensor.untyped_storage()._cdata
        if key not in self._numbers:
            self._make(tensor)
        return self._numbers[key]

    def _make(self, tensor: Tensor) -> int:
        """A new value in a tensor's storage."""
        storage, values = tensor.untyped_storage(), self.graph.values
        self._storages.append(storage)
        self._numbers[storage._cdata] = len(values)
        forward = torch._C._current_autograd_node() is None
        values.append(Value(storage.nbytes(), storage.nbytes() // tensor.element_size(), forward))
        return len(values) - 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note it."""
        kwargs = kwargs or {}
        if (parts := self._parts_of(func, args)) is not None:
            with self:
                return parts(*args, **kwargs)
        written = written_in_place(func, (args, kwargs)) if func._schema.is_mutable else []
        reads = self._reads(func, tensors_in((args, kwargs)), written)
        out, known = self._dataless.run(func, args, kwargs)
        if known is None:
            return out  # a view
        new = [x for x in tensors_in(out) if x.untyped_storage()._cdata not in self._numbers]
        made = (*(self._make(tensor) for tensor in written), *(self._make(tensor) for tensor in new))
        if known.cost is None:
            known.cost = self._work.cost_of(func, args, kwargs, out)
        kind = _kind(func, [*written, *new])
        self.graph.operations.append(Operation(func, kind, reads, made, known.cost, self._place()))
        return out

    def _parts_of(self, func: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
        """What an operation is made of, where it is made of others."""
        if func in _OF_CONVOLUTIONS:
            return None if _is_one_call(func, args) else _OF_CONVOLUTIONS[func]
        if func not in self._parts:
            self._parts[func] = func.decompose if func._can_decompose() else None
        return self._parts[func]

    def _reads(self, func: Any, operands: Sequence[Tensor], written: Sequence[Tensor]) -> dict[int, int]:
        """Number of each value that an operation reads -> bytes of it."""
        only_written = {id(x) for x in written if _fills(func, x)}
        shape_alone = _SHAPE_ALONE.get(func.overloadpacket)
        reads: dict[int, int] = {}
        for at, tensor in enumerate(operands):
            number = self.number(tensor)
            if id(tensor) not in only_written and at != shape_alone:
                in_memory = min(tensor.nbytes, tensor.untyped_storage().nbytes())  # what is expanded lies there once
                reads[number] = max(reads.get(number, 0), in_memory)
        return reads


def _kind(func: Any, made: Sequence[Tensor]) -> OperationKind:
    """How an operation is made; what writes into a part of its memory is left by itself."""
    if torch.Tag.reduction in func.tags:
        return OperationKind.REDUCTION
    if len(made) != 1 or not _is_whole(made[0]):
        return OperationKind.OWN
    if func.overloadpacket in _GATHERS:
        return OperationKind.GATHER
    return (
        OperationKind.POINTWISE
        if torch.Tag.pointwise in func.tags or func.overloadpacket in _POINTWISE_TOO
        else OperationKind.OWN
    )


def _is_whole(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _fills(func: Any, tensor: Tensor) -> bool:
    """Whether nothing of what a tensor held before is left or looked at."""
    return func.overloadpacket in FILLS and _is_whole(tensor)


MOST_READ = 8
"""Values that one pointwise expression may read before it is stored (`realize_acc_reads_threshold`)."""
MOST_READ_TWICE = 4
"""The same where several read it (`realize_reads_threshold`)."""
MOST_OPERATIONS_TWICE = 30
"""Operations of an expression that is made again in each of several readers (`realize_opcount_threshold`)."""


@dataclass(frozen=True)
class Kernel:
    """One kernel."""

    makes: tuple[int, ...]  # numbers of the values that it stores
    reads: dict[int, int]  # number of a value -> bytes
    # macs, fp32_macs: multiply-accumulates, and those of them on fp32 numbers
    macs: int
    fp32_macs: int
    bytes_moved: int  # by it
    place: str  # where the last of its operations was asked for
    pointwise: bool  # each number is made of numbers at its place, or of a few at others


@dataclass(frozen=True)
class _Expression:
    """A pointwise value that is not stored: what it reads, and how many operations make it."""

    reads: dict[int, int]
    operations: int


def kernels_of(graph: JointGraph) -> list[Kernel]:
    """Group a graph's operations into kernels, in order."""
    operations = graph.needed()
    readers: defaultdict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        for number in operation.reads:
            readers[number].append(operation)
    results = {*graph.results}
    inside: dict[int, _Expression] = {}
    kernels: list[Kernel] = []
    for operation in operations:
        expression = (
            _Expression(operation.reads, 1) if operation.kind is OperationKind.OWN else _expression(operation, inside)
        )
        if operation.kind in (OperationKind.POINTWISE, OperationKind.GATHER):
            (number,) = operation.makes
            if number not in results and _is_inside(expression, readers[number]):
                if not _is_stored_precisely(expression, readers[number]):
                    inside[number] = expression
                    continue
                value = graph.values[number]
                graph.values[number] = replace(value, size_bytes=max(value.size_bytes, 4 * value.elements))
        kernels.append(_kernel(operation, expression, graph))
    return _forward_first(_joined(kernels, graph), graph)


def _forward_first(kernels: Sequence[Kernel], graph: JointGraph) -> list[Kernel]:
    """Forwards of all parts come before the first backward, as torch puts them, whatever order they were asked for in.

    A gradient that a forward is made of, as a penalty is, counts as forward.
    """
    wanted: set[int] = set()
    early: list[Kernel] = []
    late: list[Kernel] = []
    for kernel in reversed(kernels):
        if graph.values[kernel.makes[0]].forward or not wanted.isdisjoint(kernel.makes):
            wanted.update(kernel.reads)
            early.append(kernel)
        else:
            late.append(kernel)
    return [*early[::-1], *late[::-1]]


def _joined(kernels: Sequence[Kernel], graph: JointGraph) -> list[Kernel]:
    """Have what is pointwise done by the kernel that makes what it reads, where nothing that it needs comes later."""
    joined: list[Kernel] = []
    maker: dict[int, int] = {}
    for kernel in kernels:
        at = max((maker[number] for number in kernel.reads if number in maker), default=None)
        if at is not None and _can_join(joined[at], kernel, graph):
            joined[at] = _both(joined[at], kernel)
        else:
            at = len(joined)
            joined.append(kernel)
        maker |= dict.fromkeys(kernel.makes, at)
    read = {number for kernel in joined for number in kernel.reads} | {*graph.results}
    return [_without(kernel, {*kernel.makes} - read, graph) for kernel in joined]


def _can_join(first: Kernel, second: Kernel, graph: JointGraph) -> bool:
    one, other = graph.values[first.makes[0]], graph.values[second.makes[0]]
    return first.pointwise and second.pointwise and one.elements == other.elements


def _both(first: Kernel, second: Kernel) -> Kernel:
    """One kernel for two; what the second reads of the first, or as it does, is read no more."""
    here = {*first.makes, *first.reads}
    spared = sum(size_bytes for number, size_bytes in second.reads.items() if number in here)
    return replace(
        first,
        makes=(*first.makes, *second.makes),
        reads={**first.reads, **{n: b for n, b in second.reads.items() if n not in here}},
        bytes_moved=first.bytes_moved + second.bytes_moved - spared,
    )


def _without(kernel: Kernel, numbers: set[int], graph: JointGraph) -> Kernel:
    """The same kernel, which does not store what is read by nobody else."""
    if not kernel.pointwise or not numbers:
        return kernel
    written = sum(graph.values[number].size_bytes for number in numbers)
    makes = tuple(number for number in kernel.makes if number not in numbers)
    return replace(kernel, makes=makes, bytes_moved=kernel.bytes_moved - written)


def last_readers(kernels: Sequence[Kernel]) -> dict[int, int]:
    """Number of a stored value -> place of the last kernel that reads it, or that makes it where none does."""
    return {number: at for at, kernel in enumerate(kernels) for number in (*kernel.makes, *kernel.reads)}


def peak_bytes(graph: JointGraph, kernels: Sequence[Kernel]) -> int:
    """Most that lives at once of what a graph stores; its results live to the end."""
    last, results = last_readers(kernels), {*graph.results}
    live = most = 0
    held: set[int] = set()
    for at, kernel in enumerate(kernels):
        held.update(kernel.makes)
        live += sum(graph.values[number].size_bytes for number in kernel.makes)
        most = max(most, live)
        gone = {n for n in (*kernel.makes, *kernel.reads) if n in held and last[n] == at and n not in results}
        live -= sum(graph.values[number].size_bytes for number in gone)
        held -= gone
    return most


def kept_bytes(graph: JointGraph, kernels: Sequence[Kernel]) -> int:
    """Of what a forward stores and a backward reads last."""
    last = last_readers(kernels)
    return sum(
        graph.values[number].size_bytes
        for kernel in kernels
        for number in kernel.makes
        if _is_for_backward(graph, kernels, number, last[number])
    )


def _is_for_backward(graph: JointGraph, kernels: Sequence[Kernel], number: int, last: int) -> bool:
    """Whether a value is made in a forward, and read last, by kernel number `last`, in a backward."""
    return graph.values[number].forward and not graph.values[kernels[last].makes[0]].forward


def _expression(operation: Operation, inside: dict[int, _Expression]) -> _Expression:
    """What is read for an operation once all that is not stored is made within it."""
    reads: dict[int, int] = {}
    count = 1
    for number, size_bytes in operation.reads.items():
        inner = inside.get(number)
        for source, read_bytes in ({number: size_bytes} if inner is None else inner.reads).items():
            reads[source] = max(reads.get(source, 0), read_bytes)
        count += 0 if inner is None else inner.operations
    return _Expression(reads, count)


def _is_inside(expression: _Expression, readers: Iterable[Operation]) -> bool:
    """Whether a pointwise value is made within what reads it."""
    readers = list(readers)
    if any(reader.kind is OperationKind.OWN for reader in readers) or len(expression.reads) > MOST_READ:
        return False
    if len(expression.reads) > 1 and any(reader.kind is OperationKind.GATHER for reader in readers):
        return False
    return len(readers) < 2 or (
        len(expression.reads) <= MOST_READ_TWICE and expression.operations <= MOST_OPERATIONS_TWICE
    )


def _is_stored_precisely(expression: _Expression, readers: Iterable[Operation]) -> bool:
    """Whether a value is stored in fp32, before it is rounded, because one function of it reads it several times."""
    return len(expression.reads) > MOST_READ_TWICE and any(reader.func in _READ_SEVERAL_TIMES for reader in readers)


def _kernel(operation: Operation, expression: _Expression, graph: JointGraph) -> Kernel:
    moved, macs, fp32_macs = operation.cost
    if operation.kind is not OperationKind.OWN:
        written = sum(graph.values[number].size_bytes for number in operation.makes)
        moved = sum(expression.reads.values()) + written
    pointwise = operation.kind in (OperationKind.POINTWISE, OperationKind.GATHER)
    return Kernel(operation.makes, expression.reads, macs, fp32_macs, moved, operation.place, pointwise)


@dataclass(frozen=True)
class _Recorded:
    """A phase's work on micro-batches of one size."""

    # graph, kernels: what is done
    graph: JointGraph
    kernels: list[Kernel]
    results: Results  # what it gives
    given_bytes: int  # of what it is given

    def run(self, tracker: Tracker) -> list[Tensor]:
        """Make what is stored, free it after its last reader, and count each kernel; gives the results."""
        kept, last = {*self.graph.results}, last_readers(self.kernels)
        held: dict[int, Tensor] = {}
        for at, kernel in enumerate(self.kernels):
            tracker.place = kernel.place
            for number in kernel.makes:
                held[number] = self._storage(number)
                if _is_for_backward(self.graph, self.kernels, number, last[number]):
                    tracker.mark("saved activations", [held[number]])
            tracker.count((kernel.bytes_moved, kernel.macs, kernel.fp32_macs))
            for number in (*kernel.makes, *kernel.reads):
                if last[number] == at and number not in kept:
                    held.pop(number, None)
        return [
            # an input that is handed through is not made by any kernel
            _like(tensor, held[number] if number in held else self._storage(number))
            for number, tensor in zip(self.graph.results, self.graph.tensors, strict=True)
        ]

    def pool(self) -> Tensor:
        """Memory of a CUDA graph, which nothing else may use: what it works in, and copies of what it is given."""
        size_bytes = peak_bytes(self.graph, self.kernels) + self.given_bytes
        return torch.empty(size_bytes, dtype=torch.uint8, device=META)

    def replay(self, tracker: Tracker) -> list[Tensor]:
        """Start all kernels at once, in memory that is there, and copy what they give."""
        results = {number: self._storage(number) for number in self.graph.results}
        copied = 2 * (self.given_bytes + sum(storage.nbytes for storage in results.values()))
        moved, macs, fp32_macs = (
            sum(getattr(kernel, name) for kernel in self.kernels) for name in ("bytes_moved", "macs", "fp32_macs")
        )
        tracker.count((moved + copied, macs, fp32_macs))
        return [
            _like(tensor, results[number])
            for number, tensor in zip(self.graph.results, self.graph.tensors, strict=True)
        ]

    def _storage(self, number: int) -> Tensor:
        return torch.empty(self.graph.values[number].size_bytes, dtype=torch.uint8, device=META)


@dataclass
class DatalessCompiledPhases:
    """Forward and backward of micro-batches, as `forward_and_backward`: what they would take if they were compiled."""

    tracker: Tracker  # notes what is made and freed
    dataless: Dataless  # runs operations without data
    _known: dict[object, _Recorded] = field(default_factory=dict)
    _pools: dict[object, Tensor] = field(default_factory=dict)

    def __call__(
        self, phase: Phase, networks: Networks, micro: MicroBatch, own: PhaseState, factor: float, plan: Plan
    ) -> Terms:
        """Take what the compiled phase takes; terms and gradients without data."""
        if refused(phase, plan, shared=micro.shared is not None) is not None:
            return forward_and_backward(phase, networks, micro, own, factor, plan)
        given = PhaseInputs.of(phase, networks, micro, own)
        key = (phase.name, tuple(given.shapes().items()))
        if key not in self._known:
            work = PhaseWork(phase, networks, micro, own, factor, plan)
            graph = record(work, work.examples(), self.dataless, lambda: self.tracker.place)
            given_bytes = sum(tensor.nbytes for tensor in given.tensors.values())
            self._known[key] = _Recorded(graph, kernels_of(graph), work.results, given_bytes)
        recorded = self._known[key]
        with torch.no_grad():
            if plan.cuda_graphs and key not in self._pools:
                self._pools[key] = recorded.pool()
            values = recorded.replay(self.tracker) if plan.cuda_graphs else recorded.run(self.tracker)
            return recorded.results.hand_over(values, given, own)


def _like(tensor: Tensor, storage: Tensor) -> Tensor:
    """A tensor like another one, in a storage of bytes."""
    return storage.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
