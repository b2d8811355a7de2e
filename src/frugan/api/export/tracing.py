"""A generator's forward as an ONNX graph: traced on tensors without data, and translated operation by operation.

Traced is what a card would run, with working weights as inputs: what depends on them alone (kernels turned around,
tables joined) is computed at once and becomes a constant. Samples may be any number: the forward is traced with two
and with three, and a side that differs is a multiple of their number.

torch.onnx.export is not used: torch 2.13's gives BigGAN pictures that are 0.7 off, in a range of 2, takes 3 to 5
seconds of a CPU for the smallest network, and needs onnxscript.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from frugan.api.export.graph import Graph, Made, Samples, Side, Value
from frugan.api.export.operations import OPERATIONS, SAME, VIEWS
from frugan.errors import BadInput

COUNTS = (2, 3)
"""Samples in the two traces."""

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
    traces = [_trace(slots, call, [_described(each, count) for each in graph.inputs]) for count in COUNTS]
    given = iter([*(_constant(table[key], name) for name, table, key in slots), *graph.inputs])
    values: dict[str, Any] = {}
    few, more = (list(trace.graph.nodes) for trace in traces)
    for node, other in zip(few, more, strict=True):
        if node.op == "placeholder":
            values[node.name] = next(given)
        elif node.op == "get_attr":
            values[node.name] = _constant(cast(Tensor, getattr(traces[0], str(node.target))), f"constant.{node.name}")
        elif node.op == "call_function":
            values[node.name] = _translated(graph, node, other, values)
    (made,) = few[-1].all_input_nodes
    return cast(Value, values[made.name])


def _slots(network: nn.Module) -> Iterator[Slot]:
    for path, module in network.named_modules():
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    yield f"{path}.{key}".lstrip("."), cast(dict[str, Any], table), key


def _constant(tensor: Tensor, name: str) -> Value:
    return Value(name, tensor.dtype, tuple(tensor.shape), tensor.detach())


def _described(value: Value, count: int) -> Tensor:
    sides = [side.times * count if isinstance(side, Samples) else side for side in value.size]
    return torch.empty(sides, dtype=value.dtype, device="meta")


def _trace(slots: Sequence[Slot], call: Callable[..., Tensor], inputs: Sequence[Tensor]) -> fx.GraphModule:
    def run(tensors: Sequence[Tensor], *given: Tensor) -> Tensor:
        with _in_place(slots, tensors):
            return call(*given)

    with torch.no_grad():
        return make_fx(run, tracing_mode="fake")(
            [torch.empty_like(table[key], device="meta") for _, table, key in slots], *inputs
        )


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


def _translated(graph: Graph, node: fx.Node, other: fx.Node, values: Mapping[str, Any]) -> Any:
    """What a node makes: values, or several of them."""
    assert node.target == other.target
    args, options = fx.map_arg((node.args, node.kwargs), lambda given: values[given.name])
    if not isinstance(node.target, torch._ops.OpOverload):
        return args[0][args[1]]  # one of several results
    name = node.target._schema.name.removeprefix("aten::").removesuffix("_")
    made = [_made(*each) for each in zip(_results(node), _results(other), strict=True)]
    options = {key: value for key, value in options.items() if key != "out"}
    given = [value for value in pytree.tree_leaves((args, options)) if isinstance(value, Value)]
    counted = any(isinstance(side, Samples) for each in made for side in each.size)
    if not counted and all(value.constant is not None for value in given):
        return _computed(node, name, made, args, options)
    if name in SAME:
        return args[0]
    if name in VIEWS:
        return graph.reshaped(args[0], made[0].size)
    if name not in OPERATIONS:
        raise BadInput(f"{node.target}: the network does what has no translation to ONNX")
    return OPERATIONS[name](graph, made, *args, **options)


def _results(node: fx.Node) -> list[Any]:
    made = node.meta["val"]
    return [made] if isinstance(made, Tensor) else list(made)


def _made(few: Any, more: Any) -> Made:
    return Made(few.dtype, tuple(_side(a, b) for a, b in zip(few.shape, more.shape, strict=True)))


def _side(few: int, more: int) -> Side:
    """Of a size in both traces."""
    times, rest = divmod(few, COUNTS[0])
    if few == more:
        return few
    if rest or times * COUNTS[1] != more:
        raise BadInput(
            f"a side of {few} with {COUNTS[0]} samples and {more} with {COUNTS[1]} has no translation to ONNX"
        )
    return Samples(times)


def _computed(node: fx.Node, name: str, made: Sequence[Made], args: Any, options: Any) -> Any:
    """What depends on constants alone."""
    tensors, options = pytree.tree_map(lambda of: of.constant if isinstance(of, Value) else of, (args, options))
    if "device" in options:
        options["device"] = "cpu"
    target = cast(Any, node.target)
    if "out" in node.kwargs:
        target = getattr(getattr(torch.ops.aten, name), "default" if name != "mul" else "Tensor")
    done = target(*tensors, **options)
    several = [done] if isinstance(done, Tensor) else list(done)
    constants = [
        _constant(each.to(of.dtype), f"constant.{node.name}.{place}")
        for place, (each, of) in enumerate(zip(several, made, strict=True))
    ]
    return constants[0] if isinstance(done, Tensor) else constants
