"""Translations of the torch operations that generators use to ONNX.

A translation takes the graph, what is made (as torch says: dtype and size of each result) and torch's arguments, in
which tensors are `Value`s. Operands are cast to the result's dtype, as torch promotes them.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch

from frugan.conversion.export.graph import Graph, Made, Value
from frugan.errors import BadInput

Operand = Value | float
Translation = Callable[..., Value | Sequence[Value | None]]

VIEWS = frozenset({"view", "_unsafe_view", "unsqueeze", "squeeze", "reshape", "flatten", "unflatten"})
"""These change the size alone."""
SAME = frozenset({"clone", "alias", "detach", "contiguous", "lift_fresh_copy"})
"""These change nothing that ONNX knows."""


def _on_each(operator: str) -> Translation:
    def translate(graph: Graph, results: Sequence[Made], *operands: Operand, alpha: float = 1) -> Value:
        dtype = results[0].dtype
        cast = [graph.cast(operand, dtype) for operand in operands]
        if alpha != 1:
            cast[1] = graph.add("Mul", [cast[1], graph.number(alpha, dtype)], Made(dtype, cast[1].size))
        return graph.add(operator, cast, results[0])

    return translate


def _axes(operator: str) -> Translation:
    """A reduction whose axes are an attribute."""

    def translate(
        graph: Graph, results: Sequence[Made], x: Value, axes: Sequence[int], keepdim: bool = False, **_: object
    ) -> Value:
        operand = graph.cast(x, results[0].dtype)
        return graph.add(
            operator, [operand], results[0], axes=[axis % len(x.size) for axis in axes], keepdims=int(keepdim)
        )

    return translate


def _total(
    graph: Graph, results: Sequence[Made], x: Value, axes: Sequence[int], keepdim: bool = False, **_: object
) -> Value:
    named = graph.constant(np.array([axis % len(x.size) for axis in axes], np.int64))
    return graph.add("ReduceSum", [graph.cast(x, results[0].dtype), named], results[0], keepdims=int(keepdim))


def _length(
    graph: Graph,
    results: Sequence[Made],
    x: Value,
    order: float = 2,
    axes: Sequence[int] | None = None,
    keepdim: bool = False,
    **_: object,
) -> Value:
    if order != 2:
        raise BadInput(f"a norm of the order {order:g} has no translation to ONNX")
    axes = range(len(x.size)) if axes is None else axes
    return cast(Value, _axes("ReduceL2")(graph, results, x, axes, keepdim))


def _square(graph: Graph, results: Sequence[Made], x: Value) -> Value:
    return graph.add("Mul", [x, x], results[0])


def _subtracted(graph: Graph, results: Sequence[Made], x: Operand, other: Operand, alpha: float = 1) -> Value:
    """Translate other - alpha·x."""
    return cast(Value, _on_each("Sub")(graph, results, other, x, alpha=alpha))


def _reciprocal_root(graph: Graph, results: Sequence[Made], x: Value) -> Value:
    here = Made(x.dtype, x.size)
    return graph.cast(graph.add("Reciprocal", [graph.add("Sqrt", [x], here)], here), results[0].dtype)


def _leaky_relu(graph: Graph, results: Sequence[Made], x: Value, slope: float = 0.01) -> Value:
    return graph.add("LeakyRelu", [x], results[0], alpha=slope)


def _clamp(
    graph: Graph, results: Sequence[Made], x: Value, least: float | None = None, most: float | None = None
) -> Value:
    limits = ["" if limit is None else graph.number(limit, x.dtype) for limit in (least, most)]
    return graph.add("Clip", [x, *limits], results[0])


def _plus_product(graph: Graph, results: Sequence[Made], x: Operand, a: Operand, b: Operand, value: float = 1) -> Value:
    """Translate x + value·a·b."""
    product = _on_each("Mul")(graph, results, a, b)
    return cast(Value, _on_each("Add")(graph, results, x, product, alpha=value))


def _lerp(graph: Graph, results: Sequence[Made], start: Value, end: Value, weight: Operand) -> Value:
    """start + weight·(end - start)."""
    way = _on_each("Sub")(graph, results, end, start)
    return _plus_product(graph, results, start, cast(Value, way), weight)


def _matmul(graph: Graph, results: Sequence[Made], a: Value, b: Value) -> Value:
    return graph.add("MatMul", [a, b], results[0])


def _plus_matmul(
    graph: Graph, results: Sequence[Made], x: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1
) -> Value:
    if not beta == alpha == 1:
        raise BadInput(f"a product times {alpha:g} and a summand times {beta:g} have no translation to ONNX")
    return graph.add("Add", [_matmul(graph, results, a, b), x], results[0])


def _convolution(
    graph: Graph,
    results: Sequence[Made],
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    geometry: dict[str, Any] = {
        "strides": list(stride),
        "pads": [*padding, *padding],
        "dilations": list(dilation),
        "group": groups,
    }
    if transposed:
        geometry["output_padding"] = list(output_padding)
    operands = [x, weight, *([] if bias is None else [bias])]
    return graph.add("ConvTranspose" if transposed else "Conv", operands, results[0], **geometry)


def _batch_norm(
    graph: Graph,
    results: Sequence[Made],
    x: Value,
    gain: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Value | None]:
    """By running statistics, and without a gain: a factor and a summand of each channel, fp32 as on a card."""
    if gain is not None or bias is not None or training or mean.constant is None or variance.constant is None:
        raise BadInput("batch normalisation by a batch's own statistics has no translation to ONNX")
    factors = (variance.constant.double() + eps).rsqrt()
    summands = -mean.constant.double() * factors
    wide = Made(torch.float32, x.size)
    channels = (len(factors), 1, 1)
    named = [
        Value(f"{of.name}.{kind}", torch.float32, channels, values.float().view(channels))
        for of, kind, values in ((variance, "factors", factors), (mean, "summands", summands))
    ]
    scaled = graph.add("Mul", [graph.cast(x, torch.float32), named[0]], wide)
    return [graph.cast(graph.add("Add", [scaled, named[1]], wide), x.dtype), None, None]


def _softmax(graph: Graph, results: Sequence[Made], x: Value, axis: int, *_: object) -> Value:
    """In fp32, as on a card."""
    wide = Made(torch.float32, x.size)
    return graph.cast(
        graph.add("Softmax", [graph.cast(x, wide.dtype)], wide, axis=axis % len(x.size)), results[0].dtype
    )


def _max_pool(
    graph: Graph,
    results: Sequence[Made],
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
) -> list[Value | None]:
    sides = {"kernel_shape": list(kernel), "strides": list(stride or kernel)}
    return [graph.add("MaxPool", [x], results[0], **sides), None]


def _nearest(graph: Graph, results: Sequence[Made], x: Value, size: Sequence[int], *_: object) -> Value:
    """Larger by nearest neighbours."""
    scales = [large // small for large, small in zip(size, cast(Any, x.size[2:]), strict=True)]
    named = graph.constant(np.array([1, 1, *scales], np.float32))
    how = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    return graph.add("Resize", [x, "", named], results[0], **how)


def _padded(graph: Graph, results: Sequence[Made], x: Value, padding: Sequence[int], value: float = 0) -> Value:
    """Torch counts the sides from the last one on, ONNX from the first; negative: cut off."""
    if value != 0:
        raise BadInput(f"padding with {value:g} has no translation to ONNX")
    rest = [0] * (len(x.size) - len(padding) // 2)
    named = graph.constant(np.array([*rest, *padding[-2::-2], *rest, *padding[-1::-2]], np.int64))
    return graph.add("Pad", [x, named], results[0])


def _joined(graph: Graph, results: Sequence[Made], values: Sequence[Value], axis: int = 0) -> Value:
    return graph.add("Concat", [graph.cast(value, results[0].dtype) for value in values], results[0], axis=axis)


def _stacked(graph: Graph, results: Sequence[Made], values: Sequence[Value], axis: int = 0) -> Value:
    size = list(results[0].size)
    size[axis] = 1
    return _joined(graph, results, [graph.reshaped(value, tuple(size)) for value in values], axis)


def _expanded(graph: Graph, results: Sequence[Made], x: Value, *_: object) -> Value:
    if x.size == results[0].size:
        return x
    return graph.add("Expand", [x, graph.shape(results[0].size)], results[0])


def _permuted(graph: Graph, results: Sequence[Made], x: Value, order: Sequence[int]) -> Value:
    return graph.add("Transpose", [x], results[0], perm=[axis % len(x.size) for axis in order])


def _transposed(graph: Graph, results: Sequence[Made], x: Value, a: int = 0, b: int = 1) -> Value:
    order = list(range(len(x.size)))
    order[a], order[b] = order[b], order[a]
    return _permuted(graph, results, x, order)


def _sliced(
    graph: Graph,
    results: Sequence[Made],
    x: Value,
    axis: int = 0,
    start: int | None = 0,
    end: int | None = None,
    step: int = 1,
) -> Value:
    if x.size == results[0].size:
        return x
    last = np.iinfo(np.int64).max
    bounds = [graph.constant(np.array([n], np.int64)) for n in (start or 0, last if end is None else end, axis, step)]
    return graph.add("Slice", [x, *bounds], results[0])


def _selected(graph: Graph, results: Sequence[Made], x: Value, axis: int, place: int) -> Value:
    return graph.add("Gather", [x, graph.constant(np.array(place, np.int64))], results[0], axis=axis)


def _split(graph: Graph, results: Sequence[Made], x: Value, sizes: Sequence[int], axis: int = 0) -> list[Value]:
    return graph.add_several("Split", [x, graph.constant(np.array(sizes, np.int64))], results, axis=axis)


def _unbound(graph: Graph, results: Sequence[Made], x: Value, axis: int = 0) -> list[Value]:
    return [_selected(graph, [result], x, axis, place) for place, result in enumerate(results)]


def _unwritten(_: Graph, results: Sequence[Made], *__: object, **___: object) -> Value:
    """Room that an operation writes to, whose result then counts: nothing reads this."""
    return Value("unwritten", results[0].dtype, results[0].size)


def _filled(value: float) -> Translation:
    def translate(graph: Graph, results: Sequence[Made], *_: object, **__: object) -> Value:
        number = graph.number(value, results[0].dtype)
        return graph.add("Expand", [number, graph.shape(results[0].size)], results[0])

    return translate


def _copied(graph: Graph, results: Sequence[Made], x: Value, **_: object) -> Value:
    return graph.cast(x, results[0].dtype)


OPERATIONS: Mapping[str, Translation] = MappingProxyType(
    {
        "add": _on_each("Add"),
        "sub": _on_each("Sub"),
        "rsub": _subtracted,
        "mul": _on_each("Mul"),
        "div": _on_each("Div"),
        "tanh": _on_each("Tanh"),
        "relu": _on_each("Relu"),
        "abs": _on_each("Abs"),
        "sqrt": _on_each("Sqrt"),
        "sin": _on_each("Sin"),
        "neg": _on_each("Neg"),
        "pow": _on_each("Pow"),
        "rsqrt": _reciprocal_root,
        "square": _square,
        "leaky_relu": _leaky_relu,
        "clamp": _clamp,
        "clamp_min": _clamp,
        "hardtanh": _clamp,
        "addcmul": _plus_product,
        "lerp": _lerp,
        "mm": _matmul,
        "bmm": _matmul,
        "addmm": _plus_matmul,
        "baddbmm": _plus_matmul,
        "convolution": _convolution,
        "native_batch_norm": _batch_norm,
        "_softmax": _softmax,
        "_safe_softmax": _softmax,
        "max_pool2d_with_indices": _max_pool,
        "upsample_nearest2d": _nearest,
        "constant_pad_nd": _padded,
        "mean": _axes("ReduceMean"),
        "amax": _axes("ReduceMax"),
        "sum": _total,
        "linalg_vector_norm": _length,
        "cat": _joined,
        "stack": _stacked,
        "expand": _expanded,
        "permute": _permuted,
        "transpose": _transposed,
        "t": _transposed,
        "slice": _sliced,
        "select": _selected,
        "split_with_sizes": _split,
        "unbind": _unbound,
        "zeros_like": _filled(0),
        "ones_like": _filled(1),
        "empty": _unwritten,
        "empty_like": _unwritten,
        "_to_copy": _copied,
    }
)
