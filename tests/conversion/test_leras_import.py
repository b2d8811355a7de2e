"""DeepFaceLab models that are taken in: what is missing, misshapen, left out or told."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conversion.leras_models import change, model_of, write
from conversion.leras_runs import EVERY_PHASE, back, there
from frugan.conversion.convert import from_leras, to_leras
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe

pytestmark = pytest.mark.usefixtures("narrow_faces")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "my face_SAEHD_inter.npy").unlink(), r"my face_SAEHD_inter\.npy: missing\. Copy it"),
        (
            lambda f: change(f, "inter", {"dense2/bias:0": None}),
            r"my face_SAEHD_inter\.npy: dense2/bias:0: missing, expected \[64\]",
        ),
        (
            lambda f: change(f, "encoder", {"down1/downs_1/conv1/bias:0": np.zeros((2, 5), np.float32)}),
            r"encoder\.npy: down1/downs_1/conv1/bias:0: \[2, 5\], expected \[8\]",
        ),
        (
            lambda f: change(f, "src_dst_opt", {"vs_inter/dense1/bias_0:0": None}),
            r"src_dst_opt\.npy: vs_inter/dense1/bias_0:0: missing, expected \[16\]",
        ),
        (
            lambda f: change(f, "src_dst_opt", {"iters:0": None}),
            r"src_dst_opt\.npy: iters:0: missing",
        ),
        (
            lambda f: change(f, "GAN", {"in_conv/weight:0": np.zeros((1, 1, 3, 6), np.float32)}),
            r"gan_dims is 4, but GAN\.npy is of gan_dims 6\n.*in_conv/weight:0: \[1, 1, 3, 6\]",
        ),
    ],
)
def test_missing_and_misshapen_arrays_are_named(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(write(tmp_path / "model", model_of(**EVERY_PHASE)))
    with pytest.raises(BadInput, match=message):
        there(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"e_dims": 6}, r"do not agree:\n  e_dims is 6, but encoder\.npy is of e_dims 4"),
        ({"archi": "df-udt"}, r"archi is df-udt, but encoder\.npy is of an archi without the letter t"),
        ({"archi": "liae-ud"}, "archi is liae-ud, but the files are those of df"),
        ({"archi": "dfhd"}, "archi 'dfhd': expected df or liae"),
        ({"resolution": 100}, "resolution 100: .*the nearest is 96"),
        ({"resolution": 65}, "resolution 65: .*the nearest is 64"),
        ({"resolution": "big"}, "networks.resolution: .*whole number"),
        ({"batch_size": 0}, "training.batch"),
        ({"ae_dims": ...}, "my face_SAEHD_data.dat: option ae_dims is missing"),
    ],
)
def test_options_that_do_not_fit_are_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    model = model_of(discriminators=False)
    options = {**model.options, **options}
    model.options = {name: value for name, value in options.items() if value is not ...}
    with pytest.raises(BadInput, match=message):
        there(tmp_path, model)


def test_recipe_fields_beside_it_are_checked(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"training\.sead: unknown key \(did you mean training\.seed\?\)"):
        there(tmp_path, None, "training.sead=1")
    with pytest.raises(BadInput, match=r"recipe of .*my face_SAEHD_data\.dat:\ntraining\.batch: "):
        there(tmp_path, None, "training.batch=0")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_users_delete_on_purpose_starts_fresh(tmp_path: Path) -> None:
    model = model_of(**EVERY_PHASE)
    del model.optimizers["src_dst_opt"], model.networks["GAN"]
    run, said = there(tmp_path, model)
    assert "optimizer autoencoder: my face_SAEHD_src_dst_opt.npy is not there; its statistics start afresh" in said
    assert "patch_discriminator: my face_SAEHD_GAN.npy is not there; it starts with fresh weights" in said
    exported, _ = back(run, tmp_path / "again")
    assert {*exported.optimizers} == {"src_dst_opt", "D_code_opt", "GAN_opt"}
    assert not any(values.any() for values in exported.optimizers["src_dst_opt"].values())
    assert exported.networks["GAN"]["in_conv/weight:0"].any()


def test_an_optimizer_of_another_kind_starts_fresh(tmp_path: Path) -> None:
    model = model_of()
    model.options["adabelief"] = False
    _, said = there(tmp_path, model)
    assert "src_dst_opt.npy is not of rmsprop, as the options say; its statistics start afresh" in said


def test_a_discriminator_of_other_options_is_left_out_while_it_is_off(tmp_path: Path) -> None:
    model = model_of(gan_dims=6)
    model.options["gan_dims"] = 8
    run, said = there(tmp_path, model)
    assert "patch_discriminator: left out, because it would start afresh when it is switched on: gan_dims is 8" in said
    exported, _ = back(run, tmp_path / "again")
    assert ("GAN" in exported.networks, "GAN_opt" in exported.optimizers) == (False, False)


def test_files_and_keys_that_do_not_belong_are_told(tmp_path: Path) -> None:
    model = model_of()
    model.networks["inter_B"] = {"dense1/weight:0": np.zeros((2, 2), np.float32)}
    model.networks["encoder"]["extra/weight:0"] = np.zeros(2, np.float32)
    _, said = there(tmp_path, model)
    assert "inter_B: not part of df-ud; left out" in said
    assert "my face_SAEHD_encoder.npy: extra/weight:0: unknown here; left out" in said


def test_options_that_are_taken_otherwise_are_told(tmp_path: Path) -> None:
    model = model_of(discriminators=False, archi="liae-ud")
    model.options |= {"true_face_power": 0.01, "gan_patch_size": 640}
    _, said = there(tmp_path, model)
    assert "option true_face_power=0.01: 0, as the original takes it for liae" in said
    assert re.search(r"option gan_patch_size=640: \d+, the nearest that divides the resolution", said)


@pytest.mark.parametrize(
    ("option", "value", "taken"),
    [
        ("ct_mode", "fs-aug", "none"),
        ("gan_power", 9.0, 5.0),
        ("random_hsv_power", -1.0, 0.0),
        ("random_warp", "sometimes", True),
        ("uniform_yaw", [1], False),
    ],
)
def test_values_that_forks_alone_know_come_to_the_nearest(tmp_path: Path, option: str, value: Any, taken: Any) -> None:
    run, said = there(tmp_path, model_of(discriminators=False, **{option: value}))
    assert re.search(rf"option {option}=.*: unknown here; taken as {taken} ", said)
    assert getattr(load_recipe(str(run)).objective, option) == taken
    assert back(run, tmp_path / "again")[0].options[option] == value


def test_values_that_cannot_be_read_may_be_given_otherwise(tmp_path: Path) -> None:
    model = model_of(discriminators=False, batch_size=0, ct_mode="fs-aug")
    run, _ = there(tmp_path, model, "training.batch=4", "objective.ct_mode=rct")
    recipe = load_recipe(str(run))
    assert (recipe.training.batch, recipe.objective.model_dump()["ct_mode"]) == (4, "rct")


def test_half_precision_and_flat_arrays_are_read_as_the_original_does(tmp_path: Path) -> None:
    model = model_of(discriminators=False)
    whole = {stem: dict(arrays) for stem, arrays in model.networks.items()}
    folder = write(tmp_path / "model", model)
    change(folder, "encoder", {key: array.astype(np.float16) for key, array in whole["encoder"].items()})
    change(folder, "inter", {key: array.reshape(-1) for key, array in whole["inter"].items()})
    slot = model.optimizers["src_dst_opt"]["ms_inter/dense1/weight_0:0"]
    change(folder, "src_dst_opt", {"ms_inter/dense1/weight_0:0": slot.reshape(-1, 1)})
    run, said = there(tmp_path)
    assert "my face_SAEHD_encoder.npy: in half precision; training goes on in fp32 from there" in said
    assert re.search(r"my face_SAEHD_inter\.npy: \d arrays of other shapes, reshaped as in the original", said)
    again, _ = back(run, tmp_path / "again")
    for key, array in whole["encoder"].items():
        np.testing.assert_array_equal(again.networks["encoder"][key], array.astype(np.float16).astype(np.float32))
    for key, array in whole["inter"].items():
        np.testing.assert_array_equal(again.networks["inter"][key], array)
    np.testing.assert_array_equal(again.optimizers["src_dst_opt"]["ms_inter/dense1/weight_0:0"], slot)


@pytest.mark.parametrize("backed_up", [True, False])
@pytest.mark.parametrize("spoil", ["zeros", "empty", "nan"])
def test_broken_files_are_called_so_and_name_the_backups(tmp_path: Path, spoil: str, backed_up: bool) -> None:
    folder = write(tmp_path / "model", model_of(discriminators=False))
    backups = folder / "my face_SAEHD_autobackups"
    for number in ("01", "02") if backed_up else ():
        (backups / number).mkdir(parents=True)
    file = folder / "my face_SAEHD_inter.npy"
    if spoil == "nan":
        change(folder, "inter", {"dense1/bias:0": np.full(16, np.nan, np.float32)})
    else:
        file.write_bytes(bytes(file.stat().st_size if spoil == "zeros" else 0))
    words = {"zeros": "nothing but zeros, as a power loss", "empty": "empty, as a power loss", "nan": "holds NaN"}[
        spoil
    ]
    way = f"newest backup is {backups / '01'}" if backed_up else "NAME_SAEHD_autobackups beside it is not there"
    with pytest.raises(BadInput, match=rf"{file}: .*{words}.*{way}"):
        there(tmp_path)


def test_a_run_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "model", model_of(discriminators=False))
    (tmp_path / "run").mkdir()

    write_text = Path.write_text

    def full(path: Path, *given: Any, **more: Any) -> int:
        if path.suffix == ".json" and "recipe" in path.name:  # written last
            raise OSError(28, "No space left on device")
        return write_text(path, *given, **more)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            there(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "run"]
    run, _ = there(tmp_path)  # an empty folder will do
    assert {path.name for path in run.iterdir()} == {"recipe.json", "recipe.toml", "events.jsonl", "checkpoints"}
    with pytest.raises(BadInput, match="is there already"):
        there(tmp_path)


def test_a_loss_scale_is_found_anew(tmp_path: Path) -> None:
    run, _ = there(tmp_path, model_of(discriminators=False))
    saved = json.loads((run / "checkpoints" / "step-000001234" / "state.json").read_text("utf-8"))
    assert (saved["loss_scales"], saved["plan"]["precision"], saved["seconds"]) == ({}, "auto", 0)


def test_what_the_functions_give(tmp_path: Path) -> None:
    write(tmp_path / "model", model_of())
    made = from_leras(tmp_path / "model", tmp_path / "run", say=lambda line: None)
    assert (made.run, made.recipe) == (tmp_path / "run", tmp_path / "run" / "recipe.toml")
    assert made.recipe.is_file()
    written = to_leras(made.run, tmp_path / "back", say=lambda line: None)
    assert (written.folder, written.name, written.backup) == (tmp_path / "back", made.name, None)
    assert made.step == written.iteration > 0
