"""Runs that become DFM files, and what cannot be exported at all."""

import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnxruntime import InferenceSession

from conversion.leras_runs import back
from frugan.contract.formats import Conversion
from frugan.conversion.convert import convert, to_dfm, to_leras
from frugan.errors import BadInput
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import write_pictures, write_recipe

pytestmark = pytest.mark.usefixtures("narrow_faces")


@pytest.mark.parametrize("half", [pytest.param(False, marks=pytest.mark.long), True])
def test_dfm_files_compute_what_the_networks_do(tmp_path: Path, trained: Path, half: bool) -> None:
    made = to_dfm(trained, tmp_path / "new" / "swap.dfm", half=half, say=print)
    assert made.path == tmp_path / "new" / "swap.dfm"
    assert made.difference is not None
    assert 0 <= made.difference < (2e-3 if half else 1e-5)
    assert (made.difference > 1e-7) == half
    assert [path.name for path in made.path.parent.iterdir()] == ["swap.dfm"]
    noted = {entry.key: entry.value for entry in onnx.load(made.path).metadata_props}
    assert noted["Iteration"] == "2"
    assert "synthetic" in noted["Description"]
    with pytest.raises(BadInput, match=r"is there already; .*--replace"):
        to_dfm(trained, made.path, say=print)
    to_dfm(trained, made.path, replace=True, say=print)


def test_a_dfm_that_computes_something_else_is_not_written(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.dfm").write_bytes(b"old")

    run = InferenceSession.run

    def run_another(session: InferenceSession, *given: Any) -> list[Any]:
        return [each + 0.1 for each in run(session, *given)]

    monkeypatch.setattr(InferenceSession, "run", run_another)
    with pytest.raises(BadInput, match=r"not written; it would differ by .* from the networks"):
        to_dfm(trained, tmp_path / "x.dfm", replace=True, say=print)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x.dfm", b"old")]


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="expected a run folder, or one of its checkpoints"):
        back(tmp_path, tmp_path / "out")
    with pytest.raises(BadInput, match=r"expected a name that ends in \.dfm"):
        to_dfm(tmp_path, tmp_path / "x.onnx", say=print)
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    words = ["training.duration=1 steps"]
    train(recipe, str(pictures), tmp_path / "run", overrides=words, options=TrainingOptions(device="cpu"))
    for export in (lambda: back(tmp_path / "run", tmp_path / "out"), lambda: to_dfm(tmp_path / "run", "x.dfm")):
        with pytest.raises(BadInput, match="weights of BigGAN, and this format takes those of SAEHD alone"):
            export()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(BadInput, match="has no checkpoint yet"):
        back(tmp_path / "run", tmp_path / "out")


def test_a_model_of_deepfacelabs_becomes_a_dfm_in_one_step(tmp_path: Path, trained: Path) -> None:
    model = to_leras(trained, tmp_path / "model", say=lambda _: None).path
    expected = to_dfm(trained, tmp_path / "expected.dfm", say=lambda _: None)
    conversion = Conversion(model, tmp_path / "new" / "swap.dfm", say=lambda _: None, overrides=("batch_size=2",))
    made = convert(conversion, "leras", "dfm")
    graphs = [onnx.load(path).graph.initializer for path in (made.path, expected.path)]
    assert [array.raw_data for array in graphs[0]] == [array.raw_data for array in graphs[1]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected.dfm", "model", "new"]
    with pytest.raises(BadInput, match=r"is there already; .*--replace"):
        convert(conversion, "leras", "dfm")
