"""DFM files: what DeepFaceLive swaps faces with. Source: the behaviour of DeepFaceLab's export."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frugan.contract.formats import Conversion, Converted, FileFormat, OurSide, Trained
from frugan.contract.phase import Networks
from frugan.errors import BadInput, optional_module
from frugan.faces.saehd.autoencoder import AutoencoderNetworks, autoencoder
from frugan.faces.saehd.config import Archi
from frugan.faces.saehd.leras_options import check_agreement, other_family, say_pretraining
from frugan.faces.saehd.networks import code_of, decode, encode, swap_code
from frugan.files import atomic_file, refuse_existing, write_flushed
from frugan.wording import GIB, MIB

# SAEHD's networks as an ONNX graph: a destination's face in, the swapped face and two masks out.

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
        weight = self._weights.get(name)
        if weight is None or weight.shape != shape:
            has = "is missing" if weight is None else f"has shape {list(weight.shape)}"
            raise BadInput(
                f"{name} {has}; expected {list(shape)} for {self._trained_as}. "
                "Export with the recipe that the networks were trained with."
            )
        if not np.isfinite(weight).all():
            raise BadInput(f"{name} holds NaN or infinity; expected finite numbers. Export an earlier checkpoint.")
        return np.ascontiguousarray(weight, np.float32)

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


INPUT = "in_face:0"
FACE_MASK, CELEB_FACE, CELEB_FACE_MASK = OUTPUTS = ("out_face_mask:0", "out_celeb_face:0", "out_celeb_face_mask:0")
"""Names and order are the original's; DeepFaceLive asks for the input by name and takes the outputs by position."""


class FaceGraph:
    """Adds nodes of an encoder and of decoders.

    Args:
        nodes: where they are added.
        config: a recipe's section `networks`, with the sizes of SAEHD.
        archi: which parts there are.
    """

    title: str
    """Name of the graph."""
    more_inputs: Mapping[str, Sequence[int]] = MappingProxyType({})
    """Name -> shape, of inputs beside the face."""

    def __init__(self, nodes: Nodes, config: Any, archi: Archi) -> None:
        self.nodes = nodes
        self.config = config
        self.archi = archi
        self.decoder_widths = (8, 8, 4, 2) if self.archi.deeper else (8, 4, 2)
        """Channels of the decoder's levels, in units of d_dims or d_mask_dims."""

    def build(self) -> None:
        """[B, R, R, 3] in [0, 1] -> masks [B, R, R, 1] and the face [B, R, R, 3], in [0, 1]."""
        raise NotImplementedError(f"{type(self).__name__} must define build")

    def _encoder(self) -> str:
        """[B, R, R, 3] -> vectors [B, features] in float32."""
        e = self.config.e_dims
        x = self.nodes.working(self.nodes.add("Transpose", INPUT, perm=[0, 3, 1, 2]))
        if self.archi.deeper:
            x = self._downscale(x, "encoder.down1", 3, e)
            x = self._residual(x, "encoder.res1", e)
            for i, (before, after) in enumerate(((e, 2 * e), (2 * e, 4 * e), (4 * e, 8 * e), (8 * e, 8 * e)), 2):
                x = self._downscale(x, f"encoder.down{i}", before, after)
            x = self._residual(x, "encoder.res5", 8 * e)
        else:
            for i, (before, after) in enumerate(((3, e), (e, 2 * e), (2 * e, 4 * e), (4 * e, 8 * e))):
                x = self._downscale(x, f"encoder.down1.downs.{i}", before, after)
        flat = self.nodes.exact(self.nodes.reshape(x, [self._features]))
        return self._pixel_norm(flat) if self.archi.normalised else flat

    @property
    def _features(self) -> int:
        return int(8 * self.config.e_dims * self.archi.encoded_side(self.config.resolution) ** 2)

    def _pixel_norm(self, x: str) -> str:
        """Scale each vector to unit root mean square; in float32, as in training. [B, features]."""
        mean = self.nodes.add("ReduceMean", self.nodes.add("Mul", x, x), axes=[1], keepdims=1)
        epsilon = self.nodes.constant("epsilon", np.array(1e-6, np.float32))
        return self.nodes.add("Div", x, self.nodes.add("Sqrt", self.nodes.add("Add", mean, epsilon)))

    def _narrow(self, network: str, vector: str) -> str:
        """Vectors [B, features] -> [B, ae_dims]."""
        return self.nodes.dense(vector, f"{network}.dense1", (self._features, self.config.ae_dims))

    def _code(self, network: str, narrow: str, channels: int) -> str:
        """[B, ae_dims] -> [B, channels, S, S] in float32."""
        side = self.archi.dense_side(self.config.resolution)
        wide = self.nodes.dense(narrow, f"{network}.dense2", (self.config.ae_dims, channels * side**2))
        return self.nodes.reshape(wide, [channels, side, side])

    def _face(self, decoder: str, code: str, width: int, output: str) -> None:
        """Codes [B, width, S, S] -> faces [B, R, R, 3]."""
        x = code
        for i, multiplier in enumerate(self.decoder_widths):
            after = multiplier * self.config.d_dims
            x = self._upscale(x, f"{decoder}.upscale{i}", width, after)
            x = self._residual(x, f"{decoder}.res{i}", after)
            width = after
        logits = self._heads(x, decoder, width) if self.archi.doubled else self._head(x, decoder, width)
        # half precision has no values between 0.9995 and 1
        face = self.nodes.add("Sigmoid", self.nodes.exact(logits))
        self.nodes.add("Transpose", face, perm=[0, 2, 3, 1], output=output)

    def _head(self, x: str, decoder: str, width: int) -> str:
        return self.nodes.conv(x, f"{decoder}.out_conv", (width, 3), 1)

    def _heads(self, x: str, decoder: str, width: int) -> str:
        """[B, width, R/2, R/2] -> [B, 3, R, R].

        The four heads read the same map: one convolution, the 1x1 kernel standing in the middle of a 3x3 one, which
        adds products with zero only. Takes 1 % off the whole at 128 pixels, 9 % off a tiny one.
        """
        sides = {"out_conv": 1, "out_conv1": 3, "out_conv2": 3, "out_conv3": 3}
        weights = [self.nodes.parameter(f"{decoder}.{name}.weight", 3, width, k, k) for name, k in sides.items()]
        weights[0] = np.pad(weights[0], ((0, 0), (0, 0), (1, 1), (1, 1)))
        biases = [self.nodes.parameter(f"{decoder}.{name}.bias", 3) for name in sides]
        fused = self.nodes.convolve(x, f"{decoder}.out_convs", np.concatenate(weights), np.concatenate(biases))
        return self.nodes.depth_to_space(fused)

    def _mask(self, decoder: str, code: str, width: int, output: str) -> None:
        """Codes [B, width, S, S] -> masks [B, R, R, 1]."""
        x, resolution = code, self.config.resolution
        for i, multiplier in enumerate((*self.decoder_widths, *([1] if self.archi.doubled else []))):
            after = multiplier * self.config.d_mask_dims
            x = self._upscale(x, f"{decoder}.upscalem{i}", width, after)
            width = after
        logits = self.nodes.conv(x, f"{decoder}.out_convm", (width, 1), 1)
        # with one channel, only the shape tells NCHW from NHWC
        mask = self.nodes.add("Sigmoid", self.nodes.exact(logits))
        self.nodes.reshape(mask, [resolution, resolution, 1], output=output)

    def _downscale(self, x: str, layer: str, before: int, after: int) -> str:
        return self._activation(self.nodes.conv(x, f"{layer}.conv1", (before, after), 5, stride=2), 0.1)

    def _upscale(self, x: str, layer: str, before: int, after: int) -> str:
        wide = self._activation(self.nodes.conv(x, f"{layer}.conv1", (before, 4 * after), 3), 0.1)
        return self.nodes.depth_to_space(wide)

    def _residual(self, x: str, layer: str, channels: int) -> str:
        inner = self._activation(self.nodes.conv(x, f"{layer}.conv1", (channels, channels), 3), 0.2)
        inner = self.nodes.conv(inner, f"{layer}.conv2", (channels, channels), 3)
        return self._activation(self.nodes.add("Add", inner, x), 0.2)

    def _activation(self, x: str, slope: float) -> str:
        if self.archi.cosine:
            return self.nodes.add("Mul", x, self.nodes.add("Cos", x))
        return self.nodes.add("LeakyRelu", x, alpha=slope)


class SwapGraph(FaceGraph):
    """Adds SAEHD's nodes from the input to the three outputs."""

    title = "SAEHD"

    def __init__(self, nodes: Nodes, config: AutoencoderNetworks) -> None:
        super().__init__(nodes, config, config.letters)
        self.code_channels = config.ae_dims * (1 if self.archi.kind == "df" else 2)
        """Channels of an inter network's output."""

    def build(self) -> None:
        """See `FaceGraph`."""
        vector = self._encoder()
        if self.archi.kind == "df":
            swap = code = self._inter("inter", vector)
            swap_decoder, own_decoder, width = "decoder_src", "decoder_dst", self.code_channels
        else:
            shared = self._inter("inter_AB", vector)
            code = self.nodes.add("Concat", self._inter("inter_B", vector), shared, axis=1)
            swap = self.nodes.add("Concat", shared, shared, axis=1)
            swap_decoder = own_decoder = "decoder"
            width = 2 * self.code_channels
        self._mask(own_decoder, code, width, FACE_MASK)
        self._face(swap_decoder, swap, width, CELEB_FACE)
        self._mask(swap_decoder, swap, width, CELEB_FACE_MASK)

    def _inter(self, network: str, vector: str) -> str:
        """Vectors [B, features] -> codes [B, code_channels, S, S]."""
        channels = self.code_channels
        x = self.nodes.working(self._code(network, self._narrow(network, vector), channels))
        return x if self.archi.deeper else self._upscale(x, f"{network}.upscale1", channels, channels)


# The file: written, and run to compare it with the networks.

TOLERANCE, HALF_TOLERANCE = 1e-4, 2e-2
"""Largest difference of a colour or a mask, of a range of 1, in float32 and in half precision."""

OPSET, IR_VERSION = 12, 7  # the original's
MOST_BYTES = 2 * GIB - MIB  # protobuf's limit for one message, less the nodes

Array = NDArray[Any]
Swap = tuple[Tensor, Tensor, Tensor]
"""Mask of the face that went in, swapped face and its mask [n, C, R, R]."""


def write_dfm(
    path: Path,
    config: Any,
    weights: Mapping[str, Array],
    *,
    half: bool,
    note: Mapping[str, str],
    graph: Callable[[Nodes, Any], FaceGraph] = SwapGraph,
) -> None:
    """Write the networks that turn a destination's face into the swapped one; whole or not at all.

    Args:
        path: the file, usually "..._model.dfm"; replaced if it is there.
        config: what the networks are made of, a recipe's section.
        weights: "network.parameter" -> array in torch's layout, "inter.dense1.weight"; what is not needed is ignored.
        half: convolutions in float16; dense layers, input and outputs stay float32.
        note: kept with the model, to tell where it came from.
        graph: makes the nodes of it.

    Raises:
        BadInput: onnx is missing, a weight is missing, misshapen or not finite, or the file would be too large.
        OSError: the disk is full or the path cannot be written.
    """
    module = optional_module("onnx", "writing a DFM needs onnx", "export")
    archi = getattr(config, "letters", "the networks")
    nodes = Nodes(module, weights, f"{archi} at {config.resolution} pixels", half=half)
    built = graph(nodes, config)
    built.build()
    _check_size(path, nodes.arrays)
    content = _model(module, built, config.resolution, note).SerializeToString()
    with atomic_file(path) as beside:
        write_flushed(beside, content)


def check_dfm(path: Path, pictures: Array, more: Mapping[str, Array] | None = None) -> tuple[Array, Array, Array]:
    """Run a DFM on the CPU.

    Args:
        path: the file.
        pictures: [n, R, R, 3], BGR in [0, 1].
        more: other inputs by name; None: it has none.

    Returns:
        Mask of the face that went in [n, R, R, 1], swapped face [n, R, R, 3] and its mask [n, R, R, 1], in [0, 1].

    Raises:
        BadInput: onnxruntime is missing.
    """
    runtime = optional_module("onnxruntime", "checking a DFM needs onnxruntime", "export")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = {INPUT: np.ascontiguousarray(pictures, np.float32), **(more or {})}
    mask, face, face_mask = session.run(list(OUTPUTS), inputs)
    return mask, face, face_mask


def _model(onnx: Any, built: FaceGraph, resolution: int, note: Mapping[str, str]) -> Any:
    nodes = built.nodes

    def value(name: str, channels: int) -> Any:
        return tensor(name, ["batch", resolution, resolution, channels])

    def tensor(name: str, shape: Sequence[int | str]) -> Any:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    outputs = [value(name, 3 if name == CELEB_FACE else 1) for name in OUTPUTS]
    inputs = [value(INPUT, 3), *(tensor(name, shape) for name, shape in built.more_inputs.items())]
    graph = onnx.helper.make_graph(nodes.nodes, built.title, inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="frugan")
    onnx.helper.set_model_props(model, dict(note))
    for name, array in nodes.arrays.items():  # now: make_graph and make_model would copy them once more each
        model.graph.initializer.add().CopyFrom(onnx.numpy_helper.from_array(array, name))
    return model


def _check_size(path: Path, arrays: Mapping[str, Array]) -> None:
    size = sum(array.nbytes for array in arrays.values())
    if size <= MOST_BYTES:
        return
    # convolutions' weights have four dimensions; the rest stays as it is
    halved = sum(array.size * 2 if array.ndim == 4 else array.nbytes for array in arrays.values())
    cure = (
        f"Export in half precision ({halved / 1e9:.1f} GB)."
        if halved <= MOST_BYTES
        else "Train networks with smaller ae_dims, e_dims, d_dims or resolution."
    )
    raise BadInput(f"{path.name} would take {size / 1e9:.1f} GB; a DFM file holds at most 2.1 GB. {cure}")


class Dfm(FileFormat):
    """DeepFaceLive's: one ONNX file that swaps faces; there is no way back."""

    program = "a file for DeepFaceLive"
    writes = frozenset({"data", "replace", "half"})
    takes: type[Any] = AutoencoderNetworks
    """Section `networks` of the families that it holds."""
    families = "SAEHD and Quick96"
    graph: type[FaceGraph] = SwapGraph

    def write(self, conversion: Conversion, ours: OurSide) -> Converted:
        """Write a run as a DFM file, and compare what it computes with the networks; see `frugan.to_dfm`."""
        path = conversion.out
        if path.suffix != ".dfm":
            raise BadInput(f"{path}: expected a name that ends in .dfm")
        refuse_existing(path, replace=conversion.replace)
        trained = ours.checkpoint()
        if not isinstance(trained.recipe.networks, self.takes):
            raise other_family(conversion, trained.recipe.values["family"], self.families)
        say_pretraining(trained, conversion)
        if conversion.data:
            check_agreement(trained, ours, conversion.say)
        networks = self._autoencoder(trained, ours)
        weights = {
            f"{name}.{key}": w.detach().numpy() for name, n in networks.items() for key, w in n.named_parameters()
        }
        note = {**trained.note, "Iteration": str(trained.step)}
        unchecked = path.with_name(f".unchecked-{path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_dfm(unchecked, trained.recipe.networks, weights, half=conversion.half, note=note, graph=self.graph)
            difference = self._difference(unchecked, trained.recipe.networks, networks)
            if not difference <= (HALF_TOLERANCE if conversion.half else TOLERANCE):
                cure = "export without --half" if conversion.half else "please report this, with the recipe"
                raise BadInput(
                    f"{path}: not written; it would differ by {difference:.2g} from the networks. Next: {cure}"
                )
            unchecked.replace(path)
        finally:
            unchecked.unlink(missing_ok=True)
        facts = {"file": str(path), "iteration": trained.step, "difference": difference}
        away = f"at most {difference:.1g} of 1 away from the networks' pictures"
        lines = [f"{path}: iteration {trained.step:,}; {away}"]
        return Converted(path, facts, lines, step=trained.step, difference=difference)

    def swaps(self, config: Any, networks: Networks, faces: Tensor) -> Iterator[tuple[Mapping[str, Array], Swap]]:
        """Other inputs, and what the networks make of faces [n, 3, R, R] with them: its outputs in their order."""
        archi, vectors = config.letters, encode(networks, faces)
        face, face_mask = decode(archi, networks, swap_code(archi, networks, vectors), "src")
        _, mask = decode(archi, networks, code_of(archi, networks, vectors, "dst"), "dst")
        yield {}, (mask, face, face_mask)

    def build(self, config: Any) -> Networks:
        """Make the networks that go into the file."""
        return autoencoder(config)

    def _autoencoder(self, trained: Trained, ours: OurSide) -> Networks:
        """Return the networks of the autoencoder."""
        networks = {name: network.eval() for name, network in self.build(trained.recipe.networks).items()}
        tensors = {key: value for key, value in trained.networks.items() if key.partition(".")[0] in networks}
        ours.load(networks, tensors, str(trained.path))
        return networks

    @torch.no_grad()
    def _difference(self, path: Path, config: Any, networks: Networks) -> float:
        """The largest one on test pictures. NaN if either makes one."""
        pictures = _pictures(config.resolution)
        faces = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()
        differences = [
            np.abs(drawn - value.permute(0, 2, 3, 1).numpy()).max()
            for more, expected in self.swaps(config, networks, faces)
            for drawn, value in zip(check_dfm(path, pictures, more), expected, strict=True)
        ]
        return float(np.max(differences))


def _pictures(resolution: int) -> NDArray[Any]:
    """One of noise and two smooth ones. [3, R, R, 3]."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[0 : 1 : resolution * 1j, 0 : 1 : resolution * 1j]
    phases = random.random((2, 1, 1, 3)) * 6
    smooth = 0.5 + 0.5 * np.sin(phases + 4 * rows[..., None] + 7 * columns[..., None] * phases / 6)
    return np.concatenate([random.random((1, resolution, resolution, 3)), smooth]).astype(np.float32)
