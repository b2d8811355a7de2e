"""A run of AMP: its sheets at any morphs, and the file that DeepFaceLive plays."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from cli.calling import Frugan
from faces.face_runs import CPU, DATA
from frugan.contract.formats import Conversion
from frugan.conversion.convert import convert, to_dfm
from frugan.errors import BadInput
from frugan.faces.amp.dfm import MORPH, MorphGraph
from frugan.faces.amp.family import COLUMNS, AMPFamily
from frugan.faces.saehd.dfm import INPUT, OUTPUTS, check_dfm, write_dfm
from frugan.sampling.requests import DrawRequest
from frugan.sampling.sampling import sample
from frugan.training.training import train
from parity.amp.golden import arrays, built, networks_of, record

SMALL = (
    *("networks.face_type=f", "networks.ae_dims=32", "networks.inter_dims=32", "training.precision=fp32"),
    *("training.batch=2", "training.duration=1 steps", "saving.snapshot_every=100 steps"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("amp") / "run"
    train("amp-small-64", DATA, folder, overrides=SMALL, options=CPU, say=_quiet)
    return folder


def _quiet(line: str) -> None:
    del line


def test_sheets_have_a_column_for_each_morph(run: Path, tmp_path: Path, frugan: Frugan) -> None:
    data = [f"{side}={path}" for side, path in DATA.items()]
    words = ["--data", data[0], "--data", data[1], "--out", str(tmp_path), "--rows", "2", "--device", "cpu"]
    result = frugan("sample", str(run), *words, "--morph", "0,0.25,1")
    assert result.returncode == 0, result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"preview.png", "preview-masked.png"}
    with Image.open(tmp_path / "preview.png") as sheet:
        assert sheet.width // 64 == len(COLUMNS) + 3  # with black lines between them
        assert sheet.info["Command"].split("--morph ")[1].startswith("0,0.25,1 ")


@pytest.mark.parametrize(
    ("morph", "message"),
    [
        ("0,1.2", "from 0"),
        ("nan", "from 0"),
        ("a", "expected shares of the source's face"),
        ("0.5,", "expected shares"),
    ],
)
def test_morphs_that_are_none_are_refused(run: Path, tmp_path: Path, frugan: Frugan, morph: str, message: str) -> None:
    result = frugan("sample", str(run), "--data", f"src={DATA['src']}", "--out", str(tmp_path), "--morph", morph)
    assert result.returncode == 2
    assert message in result.stderr.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_single_faces_take_no_morph(run: Path, tmp_path: Path, frugan: Frugan) -> None:
    result = frugan("sample", str(run), "--out", str(tmp_path), "--morph", "0.5", "--pngs", "2")
    assert result.returncode == 2
    assert "single faces of --pngs are swapped at 0.75" in result.stderr.replace("\n", " ")


def test_other_families_mix_no_faces(run: Path, tmp_path: Path) -> None:
    words = [*SMALL[:2], *SMALL[3:]]
    train("saehd-demo-64", DATA, tmp_path / "other", overrides=words, options=CPU, say=_quiet)
    with pytest.raises(BadInput, match=r"--morph 0\.5: saehd mixes no two faces; that takes AMP"):
        sample(tmp_path / "other", tmp_path / "out", DrawRequest(morphs=(0.5,)), data=DATA, device="cpu", say=_quiet)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the recordings' networks."""
    case, path = record("case.json"), tmp_path_factory.mktemp("dfm") / "amp.dfm"
    networks = built(case["options"], case["seed"])
    weights = {
        f"{n}.{key}": value.detach().numpy() for n, net in networks.items() for key, value in net.named_parameters()
    }
    write_dfm(path, networks_of(case["options"]), weights, half=False, note={}, graph=MorphGraph)
    return path


@pytest.mark.parametrize("morph", [0.0, 0.3, 0.5, 0.75, 1.0])
def test_dfm_computes_what_the_original_does(recorded: Path, morph: float) -> None:
    of = arrays("forward.npz")
    drawn = check_dfm(recorded, of["x_dst"], {MORPH: np.array([morph], np.float32)})
    expected = (of["merge_dst_mask"], of[f"merge_{morph}_img"], of[f"merge_{morph}_swap_mask"])
    for ours, original in zip(drawn, expected, strict=True):
        assert np.abs(ours - original).max() <= 1e-6  # measured: 7.2e-7


def test_dfm_is_what_deepfacelive_takes_for_a_morph_model(recorded: Path) -> None:
    graph = onnx.load(recorded).graph
    assert [(value.name, [d.dim_value for d in value.type.tensor_type.shape.dim]) for value in graph.input] == [
        (INPUT, [0, 64, 64, 3]),
        (MORPH, [1]),
    ]
    assert tuple(value.name for value in graph.output) == OUTPUTS


def test_a_slider_beyond_its_ends_stays_there(recorded: Path) -> None:
    face = arrays("forward.npz")["x_dst"]
    for beyond, end in ((-0.1, 0.0), (1.2, 1.0)):
        outside, inside = (check_dfm(recorded, face, {MORPH: np.array([m], np.float32)})[1] for m in (beyond, end))
        np.testing.assert_array_equal(outside, inside)


@pytest.mark.parametrize("half", [False, True])
def test_a_run_becomes_a_dfm(run: Path, tmp_path: Path, half: bool) -> None:
    made = convert(Conversion(run, tmp_path / "swap.dfm", _quiet, half=half), to="dfm-amp")
    assert made.difference is not None
    assert made.difference <= (2e-3 if half else 1e-6)


def test_the_other_format_says_that_there_is_one(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"weights of AMP, .* SAEHD and Quick96 alone; .*formats of their own"):
        to_dfm(run, tmp_path / "swap.dfm", say=_quiet)


def test_frames_get_the_originals_face_at_three_quarters() -> None:
    case, of = record("case.json"), arrays("forward.npz")
    swap = AMPFamily().face_swap(networks_of(case["options"]), built(case["options"], case["seed"]))
    assert (swap.resolution, swap.face_type) == (64, case["options"]["face_type"])
    drawn = swap.call(torch.from_numpy(of["x_dst"]).permute(0, 3, 1, 2))
    expected = (of["merge_0.75_img"], of["merge_0.75_swap_mask"], of["merge_dst_mask"])
    for ours, original in zip(drawn, expected, strict=True):
        assert np.abs(ours.permute(0, 2, 3, 1).numpy() - original).max() <= 1e-6
