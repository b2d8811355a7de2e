"""DFM files: what DeepFaceLive swaps faces with. Source: the behaviour of DeepFaceLab's export."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from frugan.contract.formats import Conversion, Converted, FileFormat, OurSide, Trained
from frugan.contract.phase import Networks
from frugan.errors import BadInput
from frugan.families.saehd.config import SAEHDNetworks
from frugan.families.saehd.dfm_graph import CELEB_FACE, INPUT, OUTPUTS, Nodes, SwapGraph
from frugan.families.saehd.face_agreement import check_agreement, open_faces
from frugan.families.saehd.family import SAEHDFamily
from frugan.families.saehd.networks import code_of, decode, encode, network_names, swap_code
from frugan.files import atomic_file, refuse_existing
from frugan.wording import GIB, MIB

CURE = "pip install 'frugan[export]'"


def onnx() -> Any:
    """Return the module `onnx`.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import onnx as found  # noqa: PLC0415  (optional extra)
    except ImportError as error:
        raise BadInput(f"writing a DFM needs onnx: {CURE}") from error
    return found


def onnxruntime() -> Any:
    """Return the module `onnxruntime`.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import onnxruntime as found  # noqa: PLC0415  (optional extra)
    except ImportError as error:
        raise BadInput(f"checking a DFM needs onnxruntime: {CURE}") from error
    return found


TOLERANCE, HALF_TOLERANCE = 1e-4, 2e-2
"""Largest difference of a colour or a mask, of a range of 1, in float32 and in half precision."""

OPSET, IR_VERSION = 12, 7  # the original's
MOST_BYTES = 2 * GIB - MIB  # protobuf's limit for one message, less the nodes

Array = NDArray[Any]


def write_dfm(
    path: Path, config: SAEHDNetworks, weights: Mapping[str, Array], *, half: bool, note: Mapping[str, str]
) -> None:
    """Write the networks that turn a destination's face into the swapped one; whole or not at all.

    Args:
        path: the file, usually "..._model.dfm"; replaced if it is there.
        config: what the networks are made of.
        weights: "network.parameter" -> array in torch's layout, "inter.dense1.weight"; what is not needed is ignored.
        half: convolutions in float16; dense layers, input and outputs stay float32.
        note: kept with the model, to tell where it came from.

    Raises:
        BadInput: onnx is missing, a weight is missing, misshapen or not finite, or the file would be too large.
        OSError: the disk is full or the path cannot be written.
    """
    module = onnx()
    nodes = Nodes(module, weights, f"{config.archi} at {config.resolution} pixels", half=half)
    SwapGraph(nodes, config).build()
    _check_size(path, nodes.arrays)
    content = _model(module, nodes, config.resolution, note).SerializeToString()
    with atomic_file(path) as beside, beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def check_dfm(path: Path, pictures: Array) -> tuple[Array, Array, Array]:
    """Run a DFM on the CPU.

    Args:
        path: the file.
        pictures: [n, R, R, 3], BGR in [0, 1].

    Returns:
        Mask of the face that went in [n, R, R, 1], swapped face [n, R, R, 3] and its mask [n, R, R, 1], in [0, 1].

    Raises:
        BadInput: onnxruntime is missing.
    """
    session = onnxruntime().InferenceSession(str(path), providers=["CPUExecutionProvider"])
    mask, face, face_mask = session.run(list(OUTPUTS), {INPUT: np.ascontiguousarray(pictures, np.float32)})
    return mask, face, face_mask


def _model(onnx: Any, nodes: Nodes, resolution: int, note: Mapping[str, str]) -> Any:
    def value(name: str, channels: int) -> Any:
        shape = ["batch", resolution, resolution, channels]
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    outputs = [value(name, 3 if name == CELEB_FACE else 1) for name in OUTPUTS]
    graph = onnx.helper.make_graph(nodes.nodes, "SAEHD", [value(INPUT, 3)], outputs)
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

    def write(self, asked: Conversion, ours: OurSide) -> Converted:
        """Write a run as a DFM file, and compare what it computes with the networks; see `frugan.to_dfm`."""
        path = asked.out
        if path.suffix != ".dfm":
            raise BadInput(f"{path}: expected a name that ends in .dfm")
        refuse_existing(path, replace=asked.replace)
        trained = open_faces(asked, ours)
        if asked.data:
            check_agreement(trained, ours, asked.say)
        networks = _autoencoder(trained, ours)
        weights = {
            f"{name}.{key}": w.detach().numpy() for name, n in networks.items() for key, w in n.named_parameters()
        }
        note = {**trained.note, "Iteration": str(trained.step)}
        unchecked = path.with_name(f".unchecked-{path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_dfm(unchecked, trained.recipe.networks, weights, half=asked.half, note=note)
            difference = _difference(unchecked, trained.recipe.networks, networks)
            if not difference <= (HALF_TOLERANCE if asked.half else TOLERANCE):
                cure = "export without --half" if asked.half else "please report this, with the recipe"
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


def _autoencoder(trained: Trained, ours: OurSide) -> Networks:
    """Its networks."""
    names = network_names(trained.recipe.networks.letters)
    built = SAEHDFamily().build(trained.recipe.networks)
    networks = {name: built[name].eval() for name in names}
    tensors = {key: value for key, value in trained.networks.items() if key.partition(".")[0] in names}
    ours.load(networks, tensors, str(trained.path))
    return networks


@torch.no_grad()
def _difference(path: Path, config: SAEHDNetworks, networks: Networks) -> float:
    """The largest one on test pictures. NaN if either makes one."""
    archi, pictures = config.letters, _pictures(config.resolution)
    vectors = encode(networks, torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous())
    face, face_mask = decode(archi, networks, swap_code(archi, networks, vectors), "src")
    _, mask = decode(archi, networks, code_of(archi, networks, vectors, "dst"), "dst")
    expected = [value.permute(0, 2, 3, 1).numpy() for value in (mask, face, face_mask)]
    drawn = check_dfm(path, pictures)
    return float(max(np.abs(a - b).max() for a, b in zip(drawn, expected, strict=True)))


def _pictures(resolution: int) -> NDArray[Any]:
    """One of noise and two smooth ones. [3, R, R, 3]."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[0 : 1 : resolution * 1j, 0 : 1 : resolution * 1j]
    phases = random.random((2, 1, 1, 3)) * 6
    smooth = 0.5 + 0.5 * np.sin(phases + 4 * rows[..., None] + 7 * columns[..., None] * phases / 6)
    return np.concatenate([random.random((1, resolution, resolution, 3)), smooth]).astype(np.float32)
