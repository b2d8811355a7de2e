"""A phase's work on a micro-batch as one list of operations, as a compiler is given it: recorded without data.

Forward, penalties and backward alike are operations on values by then. A value is what one operation made: what works
in place makes a new one, and views are their base. Recording takes about as long as running the phase without data
does; torch's own tracer takes ten times that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from frugan.memory.counting import FILLS, tensors_in, written_in_place
from frugan.memory.dataless import Dataless
from frugan.memory.work import WorkCounter

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
        aten.embedding,
    }
)
"""Each number of a result is made of a few numbers at other places."""
_SHAPE_ALONE = {aten.avg_pool2d_backward: 1}
"""Place of an operand of which nothing but the shape is looked at."""
_DECOMPOSED = (aten.native_batch_norm, aten.native_batch_norm_backward)
"""Torch's compiler takes these apart before it makes kernels, into statistics and what is pointwise."""


class OperationKind(Enum):
    """How a compiler makes an operation."""

    POINTWISE = "within whatever reads its result"
    GATHER = "likewise; what it reads is read more than once, and stored if much goes into it"
    REDUCTION = "with what it reads made within it"
    OWN = "by a kernel of its own, of a library mostly"


@dataclass(frozen=True)
class Value:
    """What one operation made, or a graph was given.

    Attributes:
        size_bytes: of its storage.
        forward: it was not made in a backward.
    """

    size_bytes: int
    forward: bool = True


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        func: torch's own.
        kind: how it is made.
        reads: number of a value -> bytes of it that are read.
        makes: numbers of values.
        cost: bytes moved, multiply-accumulates, and those of them on fp32 numbers.
        place: where it was asked for.
    """

    func: Any
    kind: OperationKind
    reads: dict[int, int]
    makes: tuple[int, ...]
    cost: tuple[int, int, int]
    place: str


@dataclass
class JointGraph:
    """Operations in the order of the written step.

    Attributes:
        values: by number.
        operations: on them.
        results: numbers of the values that the work gives, in order.
        tensors: the results, without data.
    """

    values: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    results: tuple[int, ...] = ()
    tensors: Sequence[Tensor] = ()

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
        values.append(Value(storage.nbytes(), torch._C._current_autograd_node() is None))
        return len(values) - 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note it."""
        kwargs = kwargs or {}
        if func not in self._parts:
            self._parts[func] = func.decompose if func._can_decompose() else None
        if (parts := self._parts[func]) is not None:
            with self:
                return parts(*args, **kwargs)
        written = written_in_place(func, (args, kwargs)) if func._schema.is_mutable else []
        only_written = {id(x) for x in written if _fills(func, x)}
        reads: dict[int, int] = {}
        shape_alone = _SHAPE_ALONE.get(func.overloadpacket)
        for at, tensor in enumerate(tensors_in((args, kwargs))):
            number = self.number(tensor)
            if id(tensor) not in only_written and at != shape_alone:
                reads[number] = max(reads.get(number, 0), _read_bytes(tensor))
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


def _read_bytes(tensor: Tensor) -> int:
    """Of a tensor's memory: what is expanded lies there once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
