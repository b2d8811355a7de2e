"""An ONNX graph under construction: its nodes in the order in which they run, and the weights that they use."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frugan.errors import BadInput

MOST_IN_HALF = float(np.finfo(np.float16).max)


class Nodes:
    """Adds nodes one by one; values go by the names that the methods return.

    Args:
        onnx: the module.
        weights: "network.parameter" -> array in torch's layout.
        trained_as: what the weights belong to, for messages: "df-ud at 128 pixels".
        half: convolutions, and what lies between them, in float16.

    Attributes:
        nodes: NodeProto.
        arrays: name -> weights and constants that the nodes use.
    """

    def __init__(self, onnx: Any, weights: Mapping[str, NDArray[Any]], trained_as: str, *, half: bool) -> None:
        self.nodes: list[Any] = []
        self.arrays: dict[str, NDArray[Any]] = {}
        self._onnx = onnx
        self._weights = weights
        self._trained_as = trained_as
        self._half = half

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node of any kind; return its output."""
        name = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """Keep an array for the nodes; return its name."""
        self.arrays[name] = array
        return name

    def parameter(self, name: str, *shape: int) -> NDArray[np.float32]:
        """Return one of the weights.

        Raises:
            BadInput: not there, of another shape, or not finite.
        """
        found = self._weights.get(name)
        if found is None or found.shape != shape:
            has = "is missing" if found is None else f"has shape {list(found.shape)}"
            raise BadInput(
                f"{name} {has}; expected {list(shape)} for {self._trained_as}. "
                "Export with the recipe that the networks were trained with."
            )
        if not np.isfinite(found).all():
            raise BadInput(f"{name} holds NaN or infinity; expected finite numbers. Export an earlier checkpoint.")
        return np.ascontiguousarray(found, np.float32)

    def conv(self, x: str, layer: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
        """Convolve. [B, in, H, W] -> [B, out, H/stride, W/stride].

        Args:
            x: the input.
            layer: name of its parameters, without ".weight".
            channels: in, out.
            kernel: side in pixels, odd; padding keeps the middle in place.
            stride: in pixels.
        """
        before, after = channels
        weight = self.parameter(f"{layer}.weight", after, before, kernel, kernel)
        return self.convolve(x, layer, weight, self.parameter(f"{layer}.bias", after), stride)

    def convolve(
        self, x: str, layer: str, weight: NDArray[np.float32], bias: NDArray[np.float32], stride: int = 1
    ) -> str:
        """Convolve with arrays at hand: weight [out, in, k, k], bias [out]."""
        kernel = weight.shape[-1]
        return self.add(
            "Conv",
            x,
            self.constant(f"{layer}.weight", self._working(f"{layer}.weight", weight)),
            self.constant(f"{layer}.bias", self._working(f"{layer}.bias", bias)),
            kernel_shape=[kernel] * 2,
            pads=[kernel // 2] * 4,
            strides=[stride] * 2,
        )

    def dense(self, x: str, layer: str, features: tuple[int, int]) -> str:
        """x @ weight.T + bias in float32, whatever the precision. [B, in] -> [B, out]."""
        before, after = features
        weight = self.constant(f"{layer}.weight", self.parameter(f"{layer}.weight", after, before))
        return self.add(
            "Gemm", x, weight, self.constant(f"{layer}.bias", self.parameter(f"{layer}.bias", after)), transB=1
        )

    def reshape(self, x: str, sizes: Sequence[int], output: str | None = None) -> str:
        """[B, ...] -> [B, *sizes]."""
        shape = "shape_" + "x".join(map(str, sizes))
        # 0 keeps the dimension as it is: the batch
        return self.add("Reshape", x, self.constant(shape, np.array([0, *sizes], np.int64)), output=output)

    def depth_to_space(self, x: str) -> str:
        """[B, 4·C, H, W] -> [B, C, 2H, 2W], channel (dy·2 + dx)·C + c to place (dy, dx).

        One operator, where TensorFlow's exporter has Reshape, Transpose in six dimensions and Reshape: the same values,
        and onnxruntime's CPU takes 3 % less time for df-ud at 128 pixels, 20 % less for a tiny one. Its CPU, CUDA and
        DirectML providers all have DCR for opset 11 and later; where float16 is missing (CPU) it casts by itself.
        """
        return self.add("DepthToSpace", x, blocksize=2, mode="DCR")

    def working(self, x: str) -> str:
        """Cast from float32 to what convolutions take."""
        return self.add("Cast", x, to=self._onnx.TensorProto.FLOAT16) if self._half else x

    def exact(self, x: str) -> str:
        """Cast from what convolutions give to float32."""
        return self.add("Cast", x, to=self._onnx.TensorProto.FLOAT) if self._half else x

    def _working(self, name: str, array: NDArray[np.float32]) -> NDArray[Any]:
        if not self._half:
            return array
        largest = float(np.abs(array).max())
        if largest > MOST_IN_HALF:
            raise BadInput(
                f"{name} holds {largest:,.0f}; float16 ends at {MOST_IN_HALF:,.0f}. Export without half precision."
            )
        return array.astype(np.float16)
