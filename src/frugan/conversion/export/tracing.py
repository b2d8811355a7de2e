"""A generator's forward as an ONNX graph: recorded on tensors without data, and translated operation by operation.

Recorded is what a card would run, with working weights as inputs: what depends on them alone (kernels turned around,
tables joined) is computed at once and becomes a constant. Samples may be any number: the forward is recorded with two
and with three, and a side that differs is a multiple of their number.

torch.onnx.export is not used: torch 2.13's gives BigGAN pictures that are 0.7 off, in a range of 2, takes 4 to 7
seconds of a CPU for the smallest networks, and needs onnxscript.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from frugan.contract.filtered_nonlinearity import Nonlinearity, at_once
from frugan.contract.ops import Ops
from frugan.conversion.export.graph import Graph, Made, Samples, Side, Value
from frugan.conversion.export.operations import OPERATIONS, SAME, VIEWS
from frugan.errors import BadInput
from frugan.torch_internals import OpOverload, TorchDispatchMode

COUNTS = (2, 3)
"""Samples in the two records."""

Slot = tuple[str, dict[str, Any], str]
"""Name of a tensor of a network, the table that it is kept in, and its key there."""


def translate(graph: Graph, network: nn.Module, call: Callable[..., Tensor]) -> Value:
    """Translate what a network does, which is prepared (see `engine.weights`), in its working weights' precision.

    Args:
        graph: has the inputs, and gets the nodes.
        network: whose tensors become constants.
        call: runs it on the inputs, in their order.

    Returns:
        What it makes.

    Raises:
        BadInput: it does what has no translation.
    """
    slots = list(_slots(network))
    few, more = (_record(slots, call, graph.inputs, count) for count in COUNTS)
    known = [*(_constant(table[key], name) for name, table, key in slots), *graph.inputs]
    values = {id(tensor): value for tensor, value in zip(few.inputs, known, strict=True)}
    for operation, other in zip(few.operations, more.operations, strict=True):
        if operation.target != other.target:
            raise BadInput(f"{operation.target}, {other.target}: what the network does goes by the number of samples")
        results = [_made(*pair) for pair in zip(operation.results, other.results, strict=True)]
        for tensor, value in zip(operation.results, _translated(graph, operation, results, values), strict=True):
            if value is not None:
                values[id(tensor)] = value
    return values[id(few.result)]


# The record.


class WholeMaps(Ops):
    """Operations that write to no part of a map, which values of a graph cannot take."""

    def filtered_nonlinearity(
        self, x: Tensor, bias: Tensor, up_taps: Tensor | None, down_taps: Tensor | None, of: Nonlinearity
    ) -> Tensor:
        """See `Ops.filtered_nonlinearity`."""
        return at_once(x, bias, up_taps, down_taps, of)


@dataclass(frozen=True)
class Operation:
    """A call of one of torch's operations."""

    target: OpOverload
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    results: list[Tensor]


@dataclass(frozen=True)
class Record:
    """A forward. It holds all its tensors, so that each has an identity of its own."""

    inputs: list[Tensor]  # the network's tensors, then the inputs
    operations: list[Operation]
    result: Tensor


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(
        self, target: OpOverload, types: object, args: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        returned = target(*args, **(options or {}))
        results = [tensor for tensor in pytree.tree_leaves(returned) if isinstance(tensor, Tensor)]
        if results:  # some only look something up
            self.operations.append(Operation(target, args, options or {}, results))
        return returned


def _slots(network: nn.Module) -> Iterator[Slot]:
    for path, module in network.named_modules():
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    yield f"{path}.{key}".lstrip("."), cast(dict[str, Any], table), key


def _record(slots: Sequence[Slot], call: Callable[..., Tensor], inputs: Sequence[Value], count: int) -> Record:
    tensors = [torch.empty_like(table[key], device="meta", requires_grad=False) for _, table, key in slots]
    described = [_described(tensor, count) for tensor in inputs]
    recorder = _Recorder()
    with torch.no_grad(), _in_place(slots, tensors), recorder:
        result = call(*described)
    return Record([*tensors, *described], recorder.operations, result)


def _described(value: Value, count: int) -> Tensor:
    sides = [side.times * count if isinstance(side, Samples) else side for side in value.size]
    return torch.empty(sides, dtype=value.dtype, device="meta")


@contextmanager
def _in_place(slots: Sequence[Slot], tensors: Sequence[Tensor]) -> Iterator[None]:
    kept = [table[key] for _, table, key in slots]
    try:
        for (_, table, key), tensor in zip(slots, tensors, strict=True):
            table[key] = tensor
        yield
    finally:
        for (_, table, key), tensor in zip(slots, kept, strict=True):
            table[key] = tensor


# The translation.


def _constant(tensor: Tensor, name: str) -> Value:
    return Value(name, tensor.dtype, tuple(tensor.shape), tensor.detach())


def _translated(
    graph: Graph, operation: Operation, results: Sequence[Made], values: Mapping[int, Value]
) -> Sequence[Value | None]:
    """Return the values that an operation makes; None: one that nothing can use."""

    def known(argument: Any) -> Any:
        return values[id(argument)] if isinstance(argument, Tensor) else argument

    args, options = pytree.tree_map(known, (operation.args, operation.options))
    options = {key: value for key, value in options.items() if key != "out"}
    name = operation.target._schema.name.removeprefix("aten::").removesuffix("_")
    operands = [value for value in pytree.tree_leaves((args, options)) if isinstance(value, Value)]
    counted = any(isinstance(side, Samples) for result in results for side in result.size)
    if not counted and all(value.constant is not None for value in operands):
        return _computed(operation, results, args, options, f"constant.{name}.{len(values)}")
    if name in SAME:
        return [args[0]]
    if name in VIEWS:
        return [graph.reshaped(args[0], results[0].size)]
    if name not in OPERATIONS:
        raise BadInput(f"{operation.target}: the network does what has no translation to ONNX")
    done = OPERATIONS[name](graph, results, *args, **options)
    return [done] if isinstance(done, Value) else done


def _made(few: Tensor, more: Tensor) -> Made:
    return Made(few.dtype, tuple(_side(a, b) for a, b in zip(few.shape, more.shape, strict=True)))


def _side(few: int, more: int) -> Side:
    """Return the side that fits the sizes of both records."""
    times, rest = divmod(few, COUNTS[0])
    if few == more:
        return few
    if rest or times * COUNTS[1] != more:
        raise BadInput(
            f"a side of {few} with {COUNTS[0]} samples and {more} with {COUNTS[1]} has no translation to ONNX"
        )
    return Samples(times)


def _computed(operation: Operation, results: Sequence[Made], args: Any, options: Any, name: str) -> Sequence[Value]:
    """Compute an operation whose operands are all constants."""

    def tensor(argument: Any) -> Any:
        if not isinstance(argument, Value):
            return argument
        assert argument.constant is not None
        # what writes to a tensor shall not write to the network's
        return argument.constant.clone() if operation.target._schema.is_mutable else argument.constant

    args, options = pytree.tree_map(tensor, (args, options))
    if "device" in options:
        options["device"] = "cpu"
    if "out" in operation.options:
        options["out"] = torch.empty(cast(Any, results[0].size), dtype=results[0].dtype)
    done = pytree.tree_leaves(operation.target(*args, **options))
    return [_constant(constant, f"{name}.{place}") for place, constant in enumerate(done)]
