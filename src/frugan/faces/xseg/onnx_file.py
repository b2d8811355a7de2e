"""XSeg as an ONNX file, with the inputs and outputs of DeepFaceLab's export. Source: its behaviour."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from frugan.contract.formats import Conversion, Converted, FileFormat, OurSide
from frugan.errors import BadInput, optional_module
from frugan.faces.saehd.dfm import Nodes
from frugan.faces.xseg.config import XSegNetworks
from frugan.faces.xseg.family import XSegFamily
from frugan.faces.xseg.networks import CODE, LEVELS, RISES, XSeg
from frugan.faces.xseg.phases import NETWORK
from frugan.files import refuse_existing, write_flushed

INPUT, OUTPUT = "in_face:0", "out_mask:0"
OPSET, IR_VERSION = 13, 7  # the original's
TOLERANCE = 1e-4
"""Largest difference of a mask, of a range of 1, between the file and the network."""


class MaskGraph:
    """Adds the network's nodes, from faces [B, R, R, 3] to masks [B, R, R, 1], both in [0, 1].

    Args:
        nodes: where they are added.
        config: which network.
    """

    def __init__(self, nodes: Nodes, config: XSegNetworks) -> None:
        self._nodes = nodes
        self._base, self._side = config.base, config.resolution

    def build(self) -> None:
        """Add them all."""
        nodes, base, side = self._nodes, self._base, self._side // 2 ** len(LEVELS)
        x, channels = nodes.add("Transpose", INPUT, perm=[0, 3, 1, 2]), 3
        kept: list[str] = []
        for level, (count, width, taps) in enumerate(LEVELS):
            for i in range(1, count + 1):
                x = self._block(x, f"{NETWORK}.conv{level}{i}", (channels, base * width))
                channels = base * width
            kept.append(x)
            x = self._halve(x, channels, taps)
        flat = channels * side**2
        x = nodes.dense(nodes.reshape(x, [flat]), f"{NETWORK}.dense1", (flat, CODE))
        x = nodes.reshape(nodes.dense(x, f"{NETWORK}.dense2", (CODE, flat)), [channels, side, side])
        for level, (up, widths) in RISES.items():
            x = self._double(x, f"{NETWORK}.up{level}", (channels, base * up))
            x, channels = nodes.add("Concat", x, kept.pop(), axis=1), base * (up + LEVELS[level][1])
            for i, width in zip(range(len(widths), 0, -1), widths, strict=True):
                x = self._block(x, f"{NETWORK}.uconv{level}{i}", (channels, base * width))
                channels = base * width
        logits = nodes.conv(x, f"{NETWORK}.out_conv", (channels, 1), 3)
        # with one channel, only the shape tells NCHW from NHWC
        nodes.reshape(nodes.add("Sigmoid", logits), [self._side, self._side, 1], output=OUTPUT)

    def _block(self, x: str, layer: str, channels: tuple[int, int]) -> str:
        return self._normalised(self._nodes.conv(x, f"{layer}.conv", channels, 3), layer, channels[1])

    def _double(self, x: str, layer: str, channels: tuple[int, int]) -> str:
        nodes, (before, after) = self._nodes, channels
        weight = nodes.constant(f"{layer}.weight", nodes.parameter(f"{layer}.conv.weight", before, after, 3, 3))
        bias = nodes.constant(f"{layer}.bias", nodes.parameter(f"{layer}.conv.bias", after))
        # the last row and column are dropped
        doubled = nodes.add("ConvTranspose", x, weight, bias, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
        return self._normalised(doubled, layer, after)

    def _halve(self, x: str, channels: int, taps: tuple[float, ...]) -> str:
        size = len(taps)
        if size == 2:
            return self._nodes.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
        one = np.array(taps, np.float32) / np.float32(sum(taps))
        kernel = np.tile(np.outer(one, one), (channels, 1, 1, 1)).astype(np.float32)
        before, after = (size - 1) // 2, size // 2
        return self._nodes.add(
            "Conv",
            x,
            self._nodes.constant(f"blur{size}.{channels}", kernel),
            kernel_shape=[size, size],
            group=channels,
            strides=[2, 2],
            pads=[before, before, after, after],
        )

    def _normalised(self, x: str, layer: str, channels: int) -> str:
        """Filter response normalisation and threshold; in two steps the mean loses less than onnxruntime's in one."""
        nodes = self._nodes

        def per_channel(name: str, value: NDArray[np.float32]) -> str:
            return nodes.constant(f"{layer}.{name}", value.reshape(-1, 1, 1))

        square = nodes.add("ReduceMean", nodes.add("Mul", x, x), axes=[3], keepdims=1)
        mean = nodes.add("ReduceMean", square, axes=[2], keepdims=1)
        eps = per_channel("frn.eps", np.abs(nodes.parameter(f"{layer}.frn.eps", 1)))
        scaled = nodes.add("Div", x, nodes.add("Sqrt", nodes.add("Add", mean, eps)))
        weight, bias, tau = (
            per_channel(name, nodes.parameter(f"{layer}.{name}", channels))
            for name in ("frn.weight", "frn.bias", "tlu.tau")
        )
        return nodes.add("Max", nodes.add("Add", nodes.add("Mul", scaled, weight), bias), tau)


class XSegOnnx(FileFormat):
    """One ONNX file that finds masks; there is no way back."""

    program = "the original's ONNX file of XSeg"
    writes = frozenset({"replace"})

    def write(self, conversion: Conversion, ours: OurSide) -> Converted:
        """Write a run's network, and compare what the file computes with it."""
        path = conversion.out
        if path.suffix != ".onnx":
            raise BadInput(f"{path}: expected a name that ends in .onnx")
        refuse_existing(path, replace=conversion.replace)
        trained = ours.weights(XSegFamily.name)
        config: XSegNetworks = trained.recipe.networks
        network = XSeg(config.resolution, config.base).eval()
        ours.load({NETWORK: network}, trained.networks, str(trained.path))
        unchecked = path.with_name(f".unchecked-{path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_flushed(unchecked, _model(network, config, trained.note))
            difference = _difference(unchecked, network, config.resolution)
            if not difference <= TOLERANCE:
                raise BadInput(
                    f"{path}: not written; it would differ by {difference:.2g} from the network; please report this"
                )
            unchecked.replace(path)
        finally:
            unchecked.unlink(missing_ok=True)
        facts = {"file": str(path), "iteration": trained.step, "difference": difference}
        lines = [f"{path}: iteration {trained.step:,}; at most {difference:.1g} of 1 away from the network's masks"]
        return Converted(path, facts, lines, step=trained.step, difference=difference)


def _model(network: XSeg, config: XSegNetworks, note: Mapping[str, str]) -> bytes:
    onnx = optional_module("onnx", "writing ONNX needs onnx", "export")
    weights = {f"{NETWORK}.{key}": value.detach().numpy() for key, value in network.named_parameters()}
    nodes = Nodes(onnx, weights, f"XSeg at {config.resolution} pixels", half=False)
    MaskGraph(nodes, config).build()

    def value(name: str, channels: int) -> Any:
        shape = ["batch", config.resolution, config.resolution, channels]
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    graph = onnx.helper.make_graph(nodes.nodes, "XSeg", [value(INPUT, 3)], [value(OUTPUT, 1)])
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="frugan")
    onnx.helper.set_model_props(model, dict(note))
    for name, array in nodes.arrays.items():
        model.graph.initializer.add().CopyFrom(onnx.numpy_helper.from_array(array, name))
    return bytes(model.SerializeToString())


def check_onnx(path: Path, pictures: NDArray[np.float32]) -> NDArray[np.float32]:
    """Run the file on the CPU: pictures [n, R, R, 3], BGR -> masks [n, R, R, 1].

    Raises:
        BadInput: onnxruntime is missing.
    """
    runtime = optional_module("onnxruntime", "checking an ONNX file needs onnxruntime", "export")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    masks: NDArray[np.float32] = session.run([OUTPUT], {INPUT: pictures})[0]
    return masks


@torch.no_grad()
def _difference(path: Path, network: XSeg, side: int) -> float:
    """The largest one on test pictures, a smooth one and noise. NaN if either makes one."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:side, :side] / side
    smooth = np.stack([rows, columns, (rows + columns) / 2], axis=-1)
    pictures = np.stack([smooth, random.random((side, side, 3))]).astype(np.float32)
    expected = torch.sigmoid(network(torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()))
    return float(np.abs(check_onnx(path, pictures) - expected.permute(0, 2, 3, 1).numpy()).max())
