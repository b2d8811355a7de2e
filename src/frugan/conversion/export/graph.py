"""An ONNX graph while it is made: tensors that are known now, those that a run makes, and nodes between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frugan.errors import BadInput, optional_module
from frugan.wording import GIB, MIB

OPSET = 17
"""Opset of 2022: browsers' runtimes (onnxruntime-web 1.13 and newer) take it, and nothing here needs a newer one."""
IR_VERSION = 8
"""Version of the file format that belongs to `OPSET`."""
MOST_BYTES = 2 * GIB - MIB
"""Protobuf's limit for one message, less the nodes."""


@dataclass(frozen=True)
class Samples:
    """A side that goes with the number of samples."""

    times: int  # so many for each


Side = int | Samples


@dataclass(frozen=True)
class Made:
    """Type of an operation's result."""

    dtype: torch.dtype
    size: tuple[Side, ...]


@dataclass(frozen=True)
class Value:
    """A tensor of the network while it is translated."""

    name: str
    dtype: torch.dtype
    size: tuple[Side, ...]
    constant: Tensor | None = None  # None: it is made when the graph is run


class Graph:
    """Nodes and constants in the order in which they are made.

    Raises:
        BadInput: onnx is missing.
    """

    def __init__(self) -> None:
        self.onnx = optional_module("onnx", "writing an ONNX model needs onnx", "export")
        self.inputs: list[Value] = []
        self._documents: dict[str, str] = {}
        self._nodes: list[Any] = []
        self._constants: dict[str, NDArray[Any]] = {}
        self._shapes: dict[tuple[Side, ...], str] = {}
        self._casts: dict[tuple[str, torch.dtype], Value] = {}

    def input(self, name: str, size: Sequence[Side], document: str) -> None:
        """Take an input, fp32; the first one's first side counts the samples."""
        self.inputs.append(Value(name, torch.float32, tuple(size)))
        self._documents[name] = document

    def add(self, operator: str, operands: Sequence[Value | str], result: Made, **attributes: Any) -> Value:
        """Make a node with one result; operands are values, or names of constants."""
        (value,) = self.add_several(operator, operands, [result], **attributes)
        return value

    def add_several(
        self, operator: str, operands: Sequence[Value | str], results: Sequence[Made], **attributes: Any
    ) -> list[Value]:
        """Make a node with several results."""
        name = f"{operator.lower()}_{len(self._nodes)}"
        names = [name] if len(results) == 1 else [f"{name}_{place}" for place in range(len(results))]
        inputs = [operand if isinstance(operand, str) else self._name_of(operand) for operand in operands]
        self._nodes.append(self.onnx.helper.make_node(operator, inputs, names, name=name, **attributes))
        return [Value(name, of.dtype, of.size) for name, of in zip(names, results, strict=True)]

    def _name_of(self, value: Value) -> str:
        if value.constant is None:
            return value.name
        array = value.constant.detach().contiguous().numpy()
        kept = self._constants.setdefault(value.name, array)
        if kept is not array and (kept.dtype != array.dtype or not np.array_equal(kept, array, equal_nan=True)):
            raise AssertionError(f"two constants of the name {value.name}")
        return value.name

    def constant(self, array: NDArray[Any]) -> str:
        """Name of a constant that no tensor of the network is."""
        name = f"constant_{len(self._constants)}"
        self._constants[name] = array
        return name

    def number(self, value: float, dtype: torch.dtype) -> Value:
        """A number as a constant."""
        text = f"{value:.9g}_{str(dtype).removeprefix('torch.')}"
        return Value(text, dtype, (), torch.tensor(value, dtype=dtype))

    def cast(self, value: Value | float, dtype: torch.dtype) -> Value:
        """Return the value converted to a dtype."""
        if not isinstance(value, Value):
            return self.number(value, dtype)
        if value.dtype == dtype:
            return value
        if value.constant is not None:
            name = f"{value.name}.{str(dtype).removeprefix('torch.')}"
            return Value(name, dtype, value.size, value.constant.to(dtype))
        if (value.name, dtype) not in self._casts:
            to = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(str(dtype).removeprefix("torch.")))
            self._casts[value.name, dtype] = self.add("Cast", [value], Made(dtype, value.size), to=to)
        return self._casts[value.name, dtype]

    def shape(self, size: tuple[Side, ...]) -> str:
        """Name of a size as a tensor."""
        if size not in self._shapes:
            self._shapes[size] = self._make_shape(size)
        return self._shapes[size]

    def _make_shape(self, size: tuple[Side, ...]) -> str:
        if not any(isinstance(side, Samples) for side in size):
            return self.constant(np.array(size, np.int64))
        index = Made(torch.int64, (1,))
        counted = self.add("Shape", [self.inputs[0]], index, start=0, end=1).name
        parts = []
        for side in size:
            if isinstance(side, int):
                parts.append(self.constant(np.array([side], np.int64)))
            elif side.times == 1:
                parts.append(counted)
            else:
                times = self.constant(np.array([side.times], np.int64))
                parts.append(self.add("Mul", [counted, times], index).name)
        return self.add("Concat", parts, Made(torch.int64, (len(size),)), axis=0).name

    def reshaped(self, value: Value, size: tuple[Side, ...]) -> Value:
        """Return the value in another shape; the only side that varies with the samples is inferred."""
        if size == value.size:
            return value
        counted = [side for side in size if isinstance(side, Samples)]
        fixed = math.prod(side for side in size if isinstance(side, int))
        if len(counted) == 1 and fixed:
            named = self.shape(tuple(-1 if isinstance(side, Samples) else side for side in size))
        else:
            named = self.shape(size)
        return self.add("Reshape", [value, named], Made(value.dtype, size))

    def finish(self, output: str, value: Value, document: str, about: Mapping[str, str]) -> bytes:
        """The whole model.

        Args:
            output: name of what it makes.
            value: that is made.
            about: notes that are kept with it.

        Raises:
            BadInput: it is too large for one file.
        """
        self._nodes.append(self.onnx.helper.make_node("Identity", [self._name_of(value)], [output], name=output))
        if (size := sum(array.nbytes for array in self._constants.values())) > MOST_BYTES:
            raise BadInput(f"{size:,} bytes of weights: one ONNX file holds {MOST_BYTES:,}; --fp16 takes half of them")
        helper = self.onnx.helper
        described = [
            self._described(graph_input.name, graph_input.size, self._documents[graph_input.name])
            for graph_input in self.inputs
        ]
        result = self._described(output, value.size, document)
        graph = helper.make_graph(self._nodes, "generator", described, [result])
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="frugan"
        )
        helper.set_model_props(model, dict(about))
        for name, array in self._constants.items():  # now: make_graph and make_model would copy them once more each
            model.graph.initializer.add().CopyFrom(self.onnx.numpy_helper.from_array(array, name))
        self.onnx.checker.check_model(model)
        return cast(bytes, model.SerializeToString())

    def _described(self, name: str, size: tuple[Side, ...], document: str) -> Any:
        sides = ["n" if isinstance(side, Samples) else side for side in size]
        return self.onnx.helper.make_tensor_value_info(name, self.onnx.TensorProto.FLOAT, sides, document)
