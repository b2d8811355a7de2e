"""Generators as ONNX models: they draw what torch draws, say what they take, and are written whole or not at all."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnxruntime import InferenceSession

from cli.calling import Frugan, frugan
from frugan.conversion.export.graph import OPSET
from frugan.conversion.export.onnx import export
from frugan.errors import BadInput
from frugan.families.stylegan3.networks import Generator
from frugan.recipe.loading import load_recipe
from frugan.setup.networks import save
from frugan.setup.recipe_setup import build_networks
from parity.stylegan3.golden import CASES, load
from sampling.generators import MODELS, Model, torch_pictures, write

__all__ = ["frugan"]

ALWAYS = ("biggan", "stylegan2", "stylegan3", "r3gan")
NAMES = [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.long) for name in MODELS]


def latents(path: Path, count: int) -> torch.Tensor:
    """As long as a model takes them."""
    length = InferenceSession(str(path)).get_inputs()[0].shape[1]
    return torch.randn(count, length, generator=torch.Generator().manual_seed(7))


def drawn(path: Path, model: Model, z: torch.Tensor, labels: torch.Tensor, psi: float) -> NDArray[np.float32]:
    """By onnxruntime."""
    inputs: dict[str, Any] = {"z": z.numpy()}
    if model.classes:
        inputs["classes"] = np.eye(model.classes, dtype=np.float32)[labels.numpy()]
    if model.psi:
        inputs["psi"] = np.array(psi, np.float32)
    (pictures,) = InferenceSession(str(path)).run(["pictures"], inputs)
    return np.asarray(pictures)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_it_draws_what_torch_draws(tmp_path: Path, name: str, half: bool) -> None:
    model = MODELS[name]
    weights = write(model, tmp_path / "weights.safetensors")
    made = export(weights, tmp_path / "model.onnx", half=half, say=print)
    bound = 0.02 if half else 1e-4
    assert made.difference <= bound
    assert (made.difference > 1e-4) == half
    z = latents(made.path, 5)
    labels = torch.arange(5) % max(model.classes, 1)
    for psi in (1.0, 0.6) if model.psi else (1.0,):
        expected = torch_pictures(model, weights, z, labels, psi)
        assert expected.std() > 0.1
        assert np.abs(drawn(made.path, model, z, labels, psi) - expected).max() <= bound
        assert np.abs(drawn(made.path, model, z[3:4], labels[3:4], psi) - expected[3:4]).max() <= bound


def test_it_says_what_it_is_and_takes(tmp_path: Path, frugan: Frugan) -> None:
    names = [f"digit {number}" for number in range(10)]
    weights = write(MODELS["stylegan2"], tmp_path / "weights.safetensors", names)
    result = frugan("export", str(weights), str(tmp_path / "new" / "model.onnx"), "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert list(facts["inputs"]) == ["z", "classes", "psi"]
    assert facts["bytes"] == (tmp_path / "new" / "model.onnx").stat().st_size
    model = onnx.load(tmp_path / "new" / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [opset.version for opset in model.opset_import] == [OPSET]
    assert {each.name: each.doc_string for each in model.graph.input} == facts["inputs"]
    sides = [
        [side.dim_param or side.dim_value for side in each.type.tensor_type.shape.dim] for each in model.graph.input
    ]
    assert sides == [["n", 64], ["n", 10], []]
    notes = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(notes["class_names"]) == names
    assert notes["step"] == "1234"
    assert "synthetic" in notes["description"]


def test_shares_mix_classes(tmp_path: Path) -> None:
    weights = write(MODELS["r3gan"], tmp_path / "weights.safetensors")
    path = export(weights, tmp_path / "model.onnx", say=print).path
    shares = np.zeros((3, 10), np.float32)
    shares[0, 2] = shares[1, 7] = 1
    shares[2, [2, 7]] = 0.5
    z = np.repeat(np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32), 3, 0)
    session = InferenceSession(str(path))
    first, second, mixed = np.asarray(
        session.run(None, {"z": z[:, : session.get_inputs()[0].shape[1]], "classes": shares})[0]
    )
    apart = np.abs(first - second).mean()
    assert apart > 0.01
    assert max(np.abs(mixed - first).mean(), np.abs(mixed - second).mean()) < apart


def test_it_is_the_averaged_generator_of_a_checkpoint(tmp_path: Path) -> None:
    model, checkpoint = MODELS["r3gan"], tmp_path / "step-000000003"
    checkpoint.mkdir()
    averaged = write(model, checkpoint / "ema.safetensors", seed=1)
    trained = write(model, checkpoint / "networks.safetensors", seed=2)
    path = export(checkpoint, tmp_path / "model.onnx", say=print).path
    z, labels = latents(path, 2), torch.tensor([1, 2])
    pictures = drawn(path, model, z, labels, 1.0)
    assert np.abs(pictures - torch_pictures(model, averaged, z, labels)).max() < 1e-4
    assert np.abs(pictures - torch_pictures(model, trained, z, labels)).max() > 0.1


@pytest.mark.parametrize("wrong", [0.001, float("nan")])
def test_a_model_that_draws_something_else_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    weights = write(MODELS["r3gan"], tmp_path / "weights.safetensors")
    run = InferenceSession.run

    def run_another(session: InferenceSession, *given: Any) -> list[Any]:
        return [each + wrong for each in run(session, *given)]

    monkeypatch.setattr(InferenceSession, "run", run_another)
    with pytest.raises(
        BadInput, match=r"differ from torch's by up to .* expected at most 0.0001, so nothing was written"
    ):
        export(weights, tmp_path / "model.onnx", say=print)
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]


def test_what_is_refused(tmp_path: Path, frugan: Frugan, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = write(MODELS["r3gan"], tmp_path / "weights.safetensors")
    faces = tmp_path / "faces.safetensors"
    recipe = load_recipe("saehd-demo-64")
    save(build_networks(recipe), recipe, faces)
    (tmp_path / "there.onnx").write_bytes(b"old")

    def refused(*words: object) -> str:
        result = frugan("export", *map(str, words))
        assert (result.returncode, result.stdout) == (2, "")
        return " ".join(result.stderr.split())

    assert "expected a name that ends in .onnx, or --web" in refused(weights, tmp_path / "model.pt")
    assert "is there already; choose another name" in refused(weights, tmp_path / "there.onnx")
    assert "saehd makes pictures of given ones" in refused(faces, tmp_path / "model.onnx")
    assert "--runtime x: goes with --web" in refused(weights, tmp_path / "model.onnx", "--runtime", "x")
    assert "does not exist" in refused(tmp_path / "nothing", tmp_path / "model.onnx")
    for package in ("onnx", "onnxruntime"):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, package, None)
            assert "pip install 'frugan[export]'" in refused(weights, tmp_path / "model.onnx")
    assert (tmp_path / "there.onnx").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "faces.safetensors",
        "there.onnx",
        "weights.safetensors",
    ]


@pytest.mark.parametrize("name", CASES)
def test_recorded_pictures_of_stylegan3(tmp_path: Path, name: str) -> None:
    case = load(name)
    recipe = load_recipe("stylegan3-small-64")
    generator = Generator(case.networks)
    generator.load_state_dict(case.state)
    save({"G": generator}, recipe.model_copy(update={"networks": case.networks}), tmp_path / "weights.safetensors")
    path = export(tmp_path / "weights.safetensors", tmp_path / "model.onnx", say=print).path
    inputs = {"z": case.io("z").numpy(), "psi": np.array(1, np.float32)}
    if case.classes is not None:
        inputs["classes"] = case.io("c").numpy()
    (pictures,) = InferenceSession(str(path)).run(["pictures"], inputs)
    recorded = case.io("img").clamp(-1, 1).numpy()
    assert np.abs(np.asarray(pictures) - recorded).max() <= 1e-5
