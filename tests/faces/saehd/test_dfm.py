"""DFM files compute what the networks do, and what the original's do."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from frugan.errors import BadInput
from frugan.faces.saehd.config import Archi, SAEHDNetworks
from frugan.faces.saehd.dfm import check_dfm, write_dfm
from frugan.faces.saehd.family import SAEHDFamily
from frugan.faces.saehd.networks import code_of, decode, encode, network_names, swap_code
from limits import Limit
from parity.saehd import weights
from parity.saehd.weights import Array

GOLDEN = Path(__file__).parents[2] / "golden" / "saehd"
ARCHIS = ("df", "df-u", "df-d", "df-ud", "df-udt", "df-udtc", "liae", "liae-ud", "liae-udt")
ODD_ARCHIS = ("df-c", "df-t", "df-dc", "liae-d", "liae-td", "liae-utc", "liae-udtc")
DIMS = {"ae_dims": 10, "e_dims": 4, "d_dims": 6, "d_mask_dims": 2}  # small, and all different


IN_SHORT = ("df-udtc", "liae-udt")


def in_short(*archis: str) -> list[Any]:
    """Architectures as parameters; all but two with every letter between them are `long`."""
    return [pytest.param(archi, marks=[] if archi in IN_SHORT else pytest.mark.long) for archi in archis]


def config(archi: str, resolution: int = 64, dims: Mapping[str, int] = DIMS) -> SAEHDNetworks:
    """Smaller networks than a recipe may ask for."""
    options: dict[str, Any] = {"archi": archi, "resolution": resolution, "gan_patch_size": 8, "gan_dims": 4, **dims}
    return SAEHDNetworks.model_construct(**options)


def networks(archi: str, resolution: int = 64, dims: Mapping[str, int] = DIMS, seed: int = 5) -> dict[str, nn.Module]:
    """The autoencoder with random weights, by the rule that the recordings' follow."""
    chosen = config(archi, resolution, dims)
    built = SAEHDFamily().build(chosen)
    chosen_networks = {name: built[name] for name in network_names(chosen.letters)}
    for name, network in chosen_networks.items():
        weights.fill(network, name, seed)
    return chosen_networks


def parameters(built: Mapping[str, nn.Module]) -> dict[str, Array]:
    return {f"{name}.{key}": w.detach().numpy() for name, net in built.items() for key, w in net.named_parameters()}


@torch.no_grad()
def swapped(archi: Archi, built: dict[str, nn.Module], pictures: Array) -> list[Array]:
    """Mask of the faces, swapped faces and their masks, as our networks make them."""
    vectors = encode(built, torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous())
    face, face_mask = decode(archi, built, swap_code(archi, built, vectors), "src")
    _, mask = decode(archi, built, code_of(archi, built, vectors, "dst"), "dst")
    return [value.permute(0, 2, 3, 1).numpy() for value in (mask, face, face_mask)]


def pictures(count: int, resolution: int = 64) -> Array:
    return np.random.default_rng(3).random((count, resolution, resolution, 3), np.float32)


def difference(outputs: Any, expected: Any) -> float:
    for one, other in zip(outputs, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == np.float32
    return max(float(np.abs(one - other).max()) for one, other in zip(outputs, expected, strict=True))


def original(archi: str) -> tuple[SAEHDNetworks, dict[str, Array]]:
    """What one of the original's recordings was made with."""
    case = json.loads((GOLDEN / "archi" / archi / "case.json").read_text())
    dims = {name: case[name] for name in DIMS}
    built = networks(archi, case["resolution"], dims, case["seed"])
    return config(archi, case["resolution"], dims), parameters(built)


def from_files(folder: Path) -> dict[str, Array]:
    """Weights in the original's files, in torch's layout."""
    return {
        f"{path.stem.removeprefix('golden_SAEHD_')}.{weights.parameter_name(key)}": weights.from_file(value).numpy()
        for path in folder.glob("golden_SAEHD_*.npy")
        for key, value in weights.read(path).items()
    }


def recorded_swap(archi: str) -> tuple[Array, list[Array]]:
    """Pictures of the original's recordings, and what its merging makes of them, in a DFM's order."""
    with np.load(GOLDEN / "archi" / archi / "io.npz") as file:
        return file["x_dst"], [file[f"merge__{name}"] for name in ("dst_mask", "src_dst_img", "src_mask")]


@pytest.mark.parametrize("archi", in_short(*ARCHIS, *ODD_ARCHIS))
def test_the_graph_computes_what_the_networks_do(tmp_path: Path, archi: str) -> None:
    built = networks(archi)
    write_dfm(tmp_path / "x.dfm", config(archi), parameters(built), half=False, note={})
    onnx.checker.check_model(onnx.load(tmp_path / "x.dfm"), full_check=True)
    for batch in (1, 3):
        faces = pictures(batch)
        expected = swapped(Archi.parse(archi), built, faces)
        assert min(value.std() for value in expected) > 2e-3, "too flat to compare"
        assert difference(check_dfm(tmp_path / "x.dfm", faces), expected) < 1e-5


def test_other_resolutions(tmp_path: Path) -> None:
    built = networks("liae-udt", 96)
    write_dfm(tmp_path / "x.dfm", config("liae-udt", 96), parameters(built), half=False, note={})
    expected = swapped(Archi.parse("liae-udt"), built, pictures(2, 96))
    assert difference(check_dfm(tmp_path / "x.dfm", pictures(2, 96)), expected) < 1e-5


@pytest.mark.parametrize("archi", in_short(*ARCHIS))
def test_the_originals_weights_give_its_recorded_swap(tmp_path: Path, archi: str) -> None:
    faces, expected = recorded_swap(archi)
    write_dfm(tmp_path / "x.dfm", *original(archi), half=False, note={})
    assert difference(check_dfm(tmp_path / "x.dfm", faces), expected) < 1e-5


def test_the_originals_own_dfm_gives_the_same(tmp_path: Path) -> None:
    tensors = from_files(GOLDEN / "archi" / "df-d")
    write_dfm(tmp_path / "x.dfm", original("df-ud")[0], tensors, half=False, note={})
    faces = np.concatenate([recorded_swap("df-ud")[0], pictures(2)])
    expected = check_dfm(GOLDEN / "dfm" / "df-ud.dfm", faces)
    assert difference(check_dfm(tmp_path / "x.dfm", faces), expected) < 1e-5


@pytest.mark.parametrize("archi", in_short("df-ud", "df-udtc", "liae-udt"))
def test_half_precision_is_close(tmp_path: Path, archi: str) -> None:
    faces, expected = recorded_swap(archi)
    write_dfm(tmp_path / "x.dfm", *original(archi), half=True, note={})
    model = onnx.load(tmp_path / "x.dfm")
    onnx.checker.check_model(model, full_check=True)
    assert 1e-5 < difference(check_dfm(tmp_path / "x.dfm", faces), expected) < 2e-3
    kinds = {
        array.name: array.data_type for array in model.graph.initializer if array.data_type != onnx.TensorProto.INT64
    }
    exact = {name for name, kind in kinds.items() if kind == onnx.TensorProto.FLOAT}
    assert exact == {name for name in kinds if "dense" in name or name == "epsilon"}


@pytest.mark.parametrize(("half", "recorded"), [(False, "df-ud"), (True, "df-ud_fp16")])
def test_inputs_and_outputs_are_the_originals(tmp_path: Path, half: bool, recorded: str) -> None:
    expected = json.loads((GOLDEN / "dfm" / "dfm.json").read_text())[recorded]
    path = tmp_path / "x.dfm"
    write_dfm(path, *original("df-ud"), half=half, note={})
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for kind, values in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        assert [(v.name, v.type) for v in values] == [(name, form) for name, _, form in expected[kind]]
        assert [v.shape[1:] for v in values] == [[int(side) for side in shape[1:]] for _, shape, _ in expected[kind]]
        assert [v.shape[0] for v in values] == ["batch"] * len(values)
    model = onnx.load(path)
    assert model.ir_version == expected["ir"]
    assert [[opset.domain, opset.version] for opset in model.opset_import] == expected["opset"][:1]


def test_the_note_is_kept(tmp_path: Path) -> None:
    note = {"recipe": "faces", "iteration": "1200", "synthetic": "yes"}
    write_dfm(tmp_path / "x.dfm", config("df"), parameters(networks("df")), half=False, note=note)
    session = onnxruntime.InferenceSession(str(tmp_path / "x.dfm"), providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map == note


FIRST, HEAD, DENSE = "encoder.down1.downs.0.conv1.weight", "decoder_src.out_conv2.bias", "inter.dense1.weight"


@pytest.mark.parametrize(
    ("name", "value", "half", "message"),
    [
        (FIRST, None, False, rf"{FIRST} is missing; expected \[4, 3, 5, 5\] for df-ud at 64 pixels"),
        (HEAD, None, False, rf"{HEAD} is missing; expected \[3\]"),
        (DENSE, np.zeros((512, 10), np.float32), False, rf"{DENSE} has shape \[512, 10\]; expected \[10, 512\]"),
        (HEAD, np.array([0, np.nan, 0], np.float32), False, f"{HEAD} holds NaN or infinity"),
        (FIRST, np.full((4, 3, 5, 5), 7e4, np.float32), True, f"{FIRST} holds 70,000; .* without half precision"),
    ],
)
def test_unfit_weights_are_named(tmp_path: Path, name: str, value: Array | None, half: bool, message: str) -> None:
    given: dict[str, Any] = parameters(networks("df-ud")) | {name: value}
    with pytest.raises(BadInput, match=message):
        write_dfm(tmp_path / "x.dfm", config("df-ud"), given, half=half, note={})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("most", "cure"), [(500_000, r"Export in half precision \(0.0 GB\)"), (1000, "Train networks with smaller ae_dims")]
)
def test_what_exceeds_the_format_is_refused(tmp_path: Path, limit: Limit, most: int, cure: str) -> None:
    limit("bytes of a DFM file", most)
    with pytest.raises(BadInput, match=f"at most 2.1 GB. {cure}"):
        write_dfm(tmp_path / "x.dfm", config("df"), parameters(networks("df")), half=False, note={})


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.dfm").write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_dfm(tmp_path / "x.dfm", config("df"), parameters(networks("df")), half=False, note={})
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_missing_packages_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def use() -> None:
        if missing == "onnx":
            write_dfm(tmp_path / "x.dfm", config("df"), {}, half=False, note={})
        else:
            check_dfm(GOLDEN / "dfm" / "df-ud.dfm", pictures(1))

    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(BadInput, match=rf"a DFM needs {missing}: pip install 'frugan\[export\]'"):
        use()
