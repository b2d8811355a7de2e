"""Runs that become DeepFaceLab models: settings, stages, checkpoints, names and faces."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from conversion.leras_models import assert_same_model, model_of
from conversion.leras_runs import DATA, FACES, back, there
from frugan.conversion.convert import to_dfm, to_leras
from frugan.engine.run.tensor_files import digest
from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import read_face_jpeg, relabelled_jpeg
from frugan.faces.data.face import Polygon
from frugan.faces.saehd.leras_files import read_model
from frugan.recipe.loading import load_recipe
from frugan.setup.networks import weights_metadata

pytestmark = pytest.mark.usefixtures("narrow_faces")


def test_statistics_that_never_moved_are_zeros(tmp_path: Path) -> None:
    run, _ = there(tmp_path, model_of(archi="liae-ud", random_warp=False, discriminators=False))
    checkpoint = run / "checkpoints" / "step-000001234"
    path = checkpoint / "optimizers.safetensors"
    kept = {key: value for key, value in load_file(path).items() if "/inter_AB." not in key}
    save_file(kept, path)
    digests = json.loads((checkpoint / "MANIFEST.json").read_text("utf-8"))
    (checkpoint / "MANIFEST.json").write_text(json.dumps({**digests, path.name: digest(path)}), "utf-8")
    model, _ = back(run, tmp_path / "again")
    arrays = model.optimizers["src_dst_opt"]
    assert arrays.keys() == model_of(archi="liae-ud", discriminators=False).optimizers["src_dst_opt"].keys()
    assert not any(array.any() for key, array in arrays.items() if "inter_AB/" in key)


def edit_recipe(run: Path, edit: Callable[[str], str]) -> None:
    """Give a run's checkpoint another recipe, as if it had been trained with it."""
    path = run / "recipe.toml"
    path.write_text(edit(path.read_text("utf-8")), "utf-8")
    checkpoint = run / "checkpoints" / "step-000001234"
    networks = checkpoint / "networks.safetensors"
    save_file(load_file(networks), networks, weights_metadata(load_recipe(str(path))))
    digests = json.loads((checkpoint / "MANIFEST.json").read_text("utf-8"))
    (checkpoint / "MANIFEST.json").write_text(json.dumps({**digests, networks.name: digest(networks)}), "utf-8")


def test_settings_that_the_original_lacks_are_told(tmp_path: Path) -> None:
    run, _ = there(tmp_path, model_of(discriminators=False), "optimizers.default.learning_rate=1e-4")
    model, said = back(run, tmp_path / "again")
    assert said == "optimizer: learning_rate is 0.0001 here; DeepFaceLab goes on with 5e-05"
    own = '\n[optimizers.patch_discriminator]\nkind = "rmsprop"\n'
    edit_recipe(run, lambda text: text + own)
    _, said = back(run, tmp_path / "own")
    assert "DeepFaceLab has one for all; the settings of patch_discriminator are lost" in said
    edit_recipe(
        run, lambda text: re.sub(r"(\[optimizers.default\]\n).*?\n\n", r"\1learning_rate = 1e-4\n\n", text, flags=re.S)
    )
    model, said = back(run, tmp_path / "adam")
    assert "DeepFaceLab has no Adam; it goes on with AdaBelief" in said
    assert model.options["adabelief"] is True


def test_options_are_those_of_the_stage(tmp_path: Path) -> None:
    run, _ = there(tmp_path, model_of(discriminators=False))
    stages = "".join(
        f'\n[[stages]]\nat = "{at} steps"\nset = {{ "objective.{key}" = {value} }}\n'
        for at, key, value in ((1000, "random_warp", "false"), (1235, "gan_power", "0.1"))
    )
    edit_recipe(run, lambda text: text + stages)
    model, said = back(run, tmp_path / "again")
    assert (model.options["random_warp"], model.options["gan_power"]) == (False, 0.0)
    assert "stages from step 1,235 on: DeepFaceLab has none" in said


def test_a_checkpoint_by_path_and_damaged_ones(tmp_path: Path) -> None:
    run, _ = there(tmp_path, model_of(discriminators=False))
    checkpoint = run / "checkpoints" / "step-000001234"
    model, _ = back(checkpoint, tmp_path / "again")
    assert (model.name, model.iteration, len(model.loss_history)) == ("my face", 1234, 4)
    later = run / "checkpoints" / "step-000002000"
    shutil.copytree(checkpoint, later)
    (later / "state.json").write_text("{}", "utf-8")
    model, said = back(run, tmp_path / "more")
    assert model.iteration == 1234
    assert "damaged checkpoint skipped" in said
    with pytest.raises(BadInput, match="take another checkpoint"):
        back(later, tmp_path / "none")


@pytest.mark.long
def test_the_name_is_the_imported_one_or_the_runs_or_a_given_one(tmp_path: Path, trained: Path) -> None:
    model = model_of(discriminators=False)
    model.name = "kept_as_it_is"
    run, _ = there(tmp_path, model)
    assert back(run, tmp_path / "a")[0].name == "kept_as_it_is"
    assert back(run, tmp_path / "b", name="new_name")[0].name == "new name"
    assert back(trained, tmp_path / "c")[0].name == "two steps"
    with pytest.raises(BadInput, match=r"--name 'a/b': expected a name that can stand in a file name"):
        back(run, tmp_path / "d", name="a/b")


def test_replacing_a_model(tmp_path: Path) -> None:
    run, _ = there(tmp_path, model_of(discriminators=False))
    with pytest.raises(BadInput, match=r"my face_SAEHD_data\.dat already"):
        back(run, tmp_path / "model")
    made = to_leras(run, tmp_path / "model", replace=True, say=print)
    assert made.backup == tmp_path / "model" / "my face_SAEHD_replaced_01"
    assert_same_model(read_model(tmp_path / "model"), read_model(made.backup))


def test_faces_are_compared_with_the_options(tmp_path: Path) -> None:
    run, _ = there(tmp_path, model_of(discriminators=False))
    _, said = back(run, tmp_path / "again", data=DATA)
    assert "src: 7 of 8 faces are whole_face, head; the model sees them cut to full_face" in said
    assert "eyebrows_expand_mod 0.75, 1" in said
    assert "these are not the faces" not in said, "the run has not been trained here"
    head, _ = there(tmp_path / "head", model_of(discriminators=False, face_type="head"))
    with pytest.raises(BadInput, match="the recipe wants head"):
        back(head, tmp_path / "none", data=DATA)
    assert not (tmp_path / "none").exists()
    with pytest.raises(BadInput, match="the recipe wants head"):
        to_dfm(head, tmp_path / "x.dfm", data=DATA, say=print)


@pytest.mark.long
def test_other_faces_than_those_of_the_run_are_told(tmp_path: Path, trained: Path) -> None:
    few = tmp_path / "few"
    shutil.copytree(FACES, few)
    (few / "00000_0.jpg").unlink()
    _, said = back(trained, tmp_path / "again", data={"src": few, "dst": FACES})
    assert "src: these are not the faces that the model was last trained on" in said
    assert "dst: these are not" not in said
    labelled = Path(shutil.copytree(FACES, tmp_path / "labelled"))
    jpeg = (labelled / "00000_0.jpg").read_bytes()
    face = read_face_jpeg(jpeg, "00000_0.jpg")
    triangle = Polygon(True, np.array([[1, 1], [60, 1], [30, 60]], np.float32))
    (labelled / "00000_0.jpg").write_bytes(relabelled_jpeg(jpeg, replace(face, polygons=(triangle,)), "polygons"))
    _, said = back(trained, tmp_path / "labels", data={"src": labelled, "dst": FACES})
    assert "src: 1 of 8 faces have new masks or labels since the model was trained" in said
    assert "these are not the faces" not in said
