"""DeepFaceLab models become runs and runs become models, array for array; and DFM files."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file

from api.leras_models import GROUPS, NARROW, OPTIONS, allow_narrow, assert_same_model, change, model_of, write
from api.pictures import write_pictures, write_recipe
from frugan.api.convert.deepfacelab import export_dfm as to_dfm_module
from frugan.api.convert.deepfacelab.export_dfm import to_dfm
from frugan.api.convert.deepfacelab.export_leras import to_leras
from frugan.api.convert.deepfacelab.import_leras import from_leras
from frugan.api.networks import networks_from, read_weights, weights_metadata
from frugan.api.train.options import TrainingOptions
from frugan.api.train.training import train
from frugan.engine.events import EventLog, read_events
from frugan.engine.tensor_files import digest
from frugan.errors import BadInput
from frugan.families.saehd import flows
from frugan.families.saehd.archi import Archi
from frugan.families.saehd.config import SAEHDNetworks
from frugan.families.saehd.files.dfm import check_dfm, write_dfm
from frugan.families.saehd.files.leras import LerasModel, read_model
from frugan.families.saehd.files.leras_writer import write_model
from frugan.recipe_loading import load_recipe
from parity.saehd.golden import ARCHIS, FOLDER, record

FACES = FOLDER / "faceset" / "aligned"
DATA = {"src": FACES, "dst": FACES}
CPU = TrainingOptions(device="cpu", workers=0)
EVERY_PHASE: dict[str, Any] = {"true_face_power": 0.01, "gan_power": 0.1}


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_narrow(monkeypatch)


def there(tmp_path: Path, model: LerasModel | None = None, *words: str) -> tuple[Path, str]:
    """A run made of a model, and what was said."""
    lines: list[str] = []
    if not (tmp_path / "model").exists():
        write(tmp_path / "model", model or model_of())
    from_leras(tmp_path / "model", tmp_path / "run", overrides=words, say=lines.append)
    return tmp_path / "run", "\n".join(lines)


def back(run: Path, folder: Path, **more: Any) -> tuple[LerasModel, str]:
    """The model made of a run, and what was said."""
    lines: list[str] = []
    made = to_leras(run, folder, say=lines.append, **more)
    return read_model(folder, made.name), "\n".join(lines)


def tensors(run: Path, file: str = "networks") -> dict[str, torch.Tensor]:
    return load_file(sorted((run / "checkpoints").iterdir())[-1] / f"{file}.safetensors")


def assert_same_checkpoint(a: Path, b: Path) -> None:
    for file in ("networks", "optimizers"):
        mine, other = tensors(a, file), tensors(b, file)
        assert mine.keys() == other.keys()
        assert [key for key in mine if not torch.equal(mine[key], other[key])] == []


def record_steps(run: Path, losses: dict[int, tuple[float, float]]) -> None:
    """Note steps in a run's events, as the loop does."""
    with EventLog(run / "events.jsonl") as log:
        for step, (src, dst) in losses.items():
            terms = {"src/dssim": src / 2, "src/mse": src / 2, "dst/mask": dst, "gan": 9.0}
            log.write("step", step=step, phases={"autoencoder": {"terms": terms, "skipped": 0}})


@pytest.mark.parametrize("archi", ARCHIS)
def test_every_archi_there_and_back(tmp_path: Path, archi: str) -> None:
    case = record(f"archi/{archi}/case.json")
    dims = {name: case[name] for name in ("resolution", "ae_dims", "e_dims", "d_dims", "d_mask_dims")}
    on: dict[str, Any] = EVERY_PHASE if archi.startswith("df") else {"gan_power": 0.1}

    def model() -> LerasModel:
        return model_of(archi=archi, adabelief=archi != "df-ud", seed=case["seed"], **dims, **on)

    run, _ = there(tmp_path, model())
    assert_same_model(back(run, tmp_path / "again")[0], model())


def test_recorded_files_make_the_recorded_pictures_and_come_back(tmp_path: Path) -> None:
    case = record("train/df-ud_rmsprop/case.json")
    (tmp_path / "model").mkdir()
    for path in (FOLDER / "archi" / "df-d").glob("*.npy"):
        shutil.copy(path, tmp_path / "model")
    shutil.copy(FOLDER / "model_dir" / "step20" / "golden_SAEHD_src_dst_opt.npy", tmp_path / "model")
    shutil.copy(FOLDER / "train" / "d_nets" / "golden_SAEHD_GAN.npy", tmp_path / "model")
    options = {**OPTIONS, **case["options"], "gan_dims": 4, "batch_size": 2}
    write_model(tmp_path / "data", LerasModel("golden", 20, options, []))
    shutil.copy(tmp_path / "data" / "golden_SAEHD_data.dat", tmp_path / "model")
    run, said = there(tmp_path)
    assert "patch_discriminator: not used at present; kept as it is" in said
    assert tensors(run, "optimizers")["autoencoder/updates"] == 20
    with np.load(FOLDER / "archi" / "df-ud" / "io.npz") as file:
        faces, expected = file["x_dst"], [file[f"merge__{n}"] for n in ("dst_mask", "src_dst_img", "src_mask")]
    networks = networks_from(read_weights(run / "checkpoints" / "step-000000020" / "networks.safetensors"))
    with torch.no_grad():
        vectors = flows.encode(networks, torch.from_numpy(faces).permute(0, 3, 1, 2).contiguous())
        face, _ = networks["decoder_src"](flows.swap_code(Archi.parse("df-ud"), networks, vectors))
    assert np.abs(face.permute(0, 2, 3, 1).numpy() - expected[1]).max() < 1e-5
    made = to_dfm(run, tmp_path / "swap.dfm", say=print)
    assert (made.step, made.difference < 1e-5) == (20, True)
    for mine, other in zip(check_dfm(made.path, faces), expected, strict=True):
        assert np.abs(mine - other).max() < 1e-5
    found, said = back(run, tmp_path / "again")
    assert said == ""
    assert_same_model(found, read_model(tmp_path / "model"))


SMALL = """
family = "saehd"
[networks]
archi = "df-ud"
resolution = 64
face_type = "f"
ae_dims = 32
e_dims = 16
d_dims = 16
d_mask_dims = 16
gan_dims = 4
[objective]
true_face_power = 0.01
gan_power = 0.1
eyes_mouth_prio = true
[training]
batch = 2
duration = "2 steps"
precision = "fp32"
[optimizers.default]
kind = "adabelief"
"""


def train_small(run: Path, steps: int) -> None:
    """Train a run as the original would, every phase on."""
    recipe = run.parent / "small.toml"
    recipe.write_text(SMALL, "utf-8")
    train(str(recipe), DATA, run, overrides=[f"training.duration={steps} steps"], options=CPU)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two real steps."""
    run = tmp_path_factory.mktemp("trained") / "two_steps"
    train_small(run, 2)
    return run


def test_a_trained_run_comes_back_and_goes_on_as_if_nothing_had_been(tmp_path: Path, trained: Path) -> None:
    model, said = back(trained, tmp_path / "model")
    assert said == "target_iter 2 is reached: DeepFaceLab trains no further until it is raised there"
    assert (model.name, model.iteration, len(model.loss_history)) == ("two steps", 2, 2)
    events = list(read_events(trained / "events.jsonl"))
    terms = [event["phases"]["autoencoder"]["terms"] for event in events if event["event"] == "step"]
    for found, of in zip(model.loss_history, terms, strict=True):
        assert found == [sum(v for k, v in of.items() if k.startswith(side)) for side in ("src/", "dst/")]
    assert {*model.networks} == {"encoder", "inter", "decoder_src", "decoder_dst", "code_discriminator", "GAN"}
    assert {file: int(arrays["iters:0"]) for file, arrays in model.optimizers.items()} == dict.fromkeys(GROUPS, 2)
    run, said = there(tmp_path, None, "training.precision=fp32")
    assert "target_iter 2 is reached" in said
    assert_same_checkpoint(trained, run)
    assert_same_model(back(run, tmp_path / "again")[0], model)
    whole = tmp_path / "whole"
    shutil.copytree(trained, whole)
    train_small(whole, 3)
    train(str(run / "recipe.toml"), DATA, run, overrides=["training.duration=3 steps"], options=CPU)
    assert_same_checkpoint(whole, run)
    assert_same_model(back(run, tmp_path / "more", name="x")[0], back(whole, tmp_path / "same", name="x")[0])


@pytest.mark.parametrize(
    ("archi", "options"),
    [
        ("df-ud", {"gan_power": 0.1}),
        ("df-ud", {"true_face_power": 0.01, "adabelief": False}),
        ("liae-ud", {"random_warp": False}),
        ("df-ud", {"pretrain": True, "gan_power": 0.1, "true_face_power": 0.01}),
    ],
)
def test_what_is_not_used_at_present_is_kept(tmp_path: Path, archi: str, options: dict[str, Any]) -> None:
    run, said = there(tmp_path, model_of(archi=archi, **options))
    unused = [name for name in ("code", "patch") if f"{name}_discriminator: not used at present; kept" in said]
    expected = {"code": "true_face_power", "patch": "gan_power"}
    if archi == "liae-ud":
        del expected["code"]
    pretrain = bool(options.get("pretrain"))
    assert unused == [n for n, power in expected.items() if not options.get(power) or (pretrain and n == "patch")]
    found, _ = back(run, tmp_path / "again")
    assert_same_model(found, model_of(archi=archi, **options))
    assert load_recipe(str(run / "recipe.toml")).objective.model_dump()["pretrain"] is pretrain


def test_a_parked_discriminator_is_taken_up_again(tmp_path: Path) -> None:
    run, _ = there(tmp_path, model_of(batch_size=2), "training.precision=fp32")
    before, updates = tensors(run), int(tensors(run, "optimizers")["patch_discriminator/updates"])
    lines: list[str] = []
    words = ["objective.gan_power=0.1", "training.duration=1235 steps"]
    train(str(run / "recipe.toml"), DATA, run, overrides=words, options=CPU, say=lines.append)
    assert not [line for line in lines if "fresh" in line]
    after, moved = tensors(run), tensors(run, "optimizers")
    assert int(moved["patch_discriminator/updates"]) == updates + 1
    assert before.keys() == after.keys()
    distances = {key: float((before[key] - after[key]).abs().mean()) for key in before}
    assert all(0 < far < 1e-3 for key, far in distances.items() if not key.startswith("code_")), distances
    assert not any(far for key, far in distances.items() if key.startswith("code_"))


def test_options_that_nothing_here_knows_are_kept(tmp_path: Path) -> None:
    odd: dict[str, Any] = {
        "lr_dropout": "cpu",
        "models_opt_on_gpu": False,
        "use_fp16": True,
        "list": [1, "a"],
        "target_iter": 0,
    }
    run, said = there(tmp_path, model_of(**odd, eyes_prio=True))
    assert "option list: unknown here; kept for the way back\noption use_fp16: unknown here" in said
    assert "target_iter 0: no end, which is training.duration = endless here" in said
    assert "eyes_prio" not in said
    found, _ = back(run, tmp_path / "again")
    assert found.options == {**OPTIONS, **NARROW, **odd}
    optimizer = load_recipe(str(run / "recipe.toml")).optimizer_settings()["autoencoder"].model_dump()
    assert (optimizer["dropout"], optimizer["period"]) == (0.3, 500)


def test_history_goes_on_and_skipped_steps_leave_no_hole(tmp_path: Path) -> None:
    model = model_of()
    run, _ = there(tmp_path, model)
    record_steps(run, {1235: (1.0, 2.0), 1236: (float("nan"), 3.0), 1238: (0.5, 0.25)})
    found, said = back(run, tmp_path / "again")
    assert found.loss_history == model_of().loss_history, "steps after the checkpoint do not count"
    checkpoint = run / "checkpoints" / "step-000001234"
    checkpoint.rename(run / "checkpoints" / "step-000001238")
    found, said = back(run, tmp_path / "later")
    assert found.loss_history == [*model_of().loss_history, [1.0, 2.0], [1.0, 2.0], [0.5, 0.25]]
    assert found.iteration == 1238
    assert said == "loss history: 1 of 4 steps made here are not in the run's events"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "my face_SAEHD_inter.npy").unlink(), r"my face_SAEHD_inter\.npy: missing\. Copy it"),
        (
            lambda f: change(f, "inter", {"dense2/bias:0": None}),
            r"my face_SAEHD_inter\.npy: dense2/bias:0: missing, expected \[64\]",
        ),
        (
            lambda f: change(f, "encoder", {"down1/downs_1/conv1/bias:0": np.zeros((2, 4), np.float32)}),
            r"encoder\.npy: down1/downs_1/conv1/bias:0: \[2, 4\], expected \[8\]",
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
        ({"resolution": "big"}, "networks.resolution: .*integer"),
        ({"gan_power": 9.0}, "objective.gan_power: .*less than or equal to 5"),
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


def test_what_users_delete_on_purpose_starts_fresh(tmp_path: Path) -> None:
    model = model_of(**EVERY_PHASE)
    del model.optimizers["src_dst_opt"], model.networks["GAN"]
    run, said = there(tmp_path, model)
    assert "optimizer autoencoder: my face_SAEHD_src_dst_opt.npy is not there; its statistics start anew" in said
    assert "patch_discriminator: my face_SAEHD_GAN.npy is not there; it starts with fresh weights" in said
    found, _ = back(run, tmp_path / "again")
    assert {*found.optimizers} == {"src_dst_opt", "D_code_opt", "GAN_opt"}
    assert not any(values.any() for values in found.optimizers["src_dst_opt"].values())
    assert found.networks["GAN"]["in_conv/weight:0"].any()


def test_an_optimizer_of_another_kind_starts_fresh(tmp_path: Path) -> None:
    model = model_of()
    model.options["adabelief"] = False
    _, said = there(tmp_path, model)
    assert "src_dst_opt.npy is not of rmsprop, as the options say; its statistics start anew" in said


def test_a_discriminator_of_other_options_is_left_out_while_it_is_off(tmp_path: Path) -> None:
    model = model_of(gan_dims=6)
    model.options["gan_dims"] = 8
    run, said = there(tmp_path, model)
    assert "patch_discriminator: left out, because it would start anew when it is switched on: gan_dims is 8" in said
    found, _ = back(run, tmp_path / "again")
    assert ("GAN" in found.networks, "GAN_opt" in found.optimizers) == (False, False)


def test_files_and_keys_that_do_not_belong_are_told(tmp_path: Path) -> None:
    model = model_of()
    model.networks["inter_B"] = {"dense1/weight:0": np.zeros((2, 2), np.float32)}
    model.networks["encoder"]["extra/weight:0"] = np.zeros(2, np.float32)
    _, said = there(tmp_path, model)
    assert "inter_B: no part of df-ud; passed over" in said
    assert "my face_SAEHD_encoder.npy: extra/weight:0: unknown here; passed over" in said


def test_a_run_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "model", model_of(discriminators=False))
    (tmp_path / "run").mkdir()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("frugan.api.convert.written.write_json", full)
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


def test_statistics_that_never_moved_are_zeros(tmp_path: Path) -> None:
    run, _ = there(tmp_path, model_of(archi="liae-ud", random_warp=False, discriminators=False))
    checkpoint = run / "checkpoints" / "step-000001234"
    path = checkpoint / "optimizers.safetensors"
    kept = {key: value for key, value in load_file(path).items() if "/inter_AB." not in key}
    save_file(kept, path)
    digests = json.loads((checkpoint / "MANIFEST.json").read_text("utf-8"))
    (checkpoint / "MANIFEST.json").write_text(json.dumps({**digests, path.name: digest(path)}), "utf-8")
    found, _ = back(run, tmp_path / "again")
    arrays = found.optimizers["src_dst_opt"]
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
    found, said = back(run, tmp_path / "again")
    assert said == "optimizer: learning_rate is 0.0001 here; DeepFaceLab goes on with 5e-05"
    own = '\n[optimizers.patch_discriminator]\nkind = "rmsprop"\n'
    edit_recipe(run, lambda text: text + own)
    _, said = back(run, tmp_path / "own")
    assert "DeepFaceLab has one for all; the settings of patch_discriminator are lost" in said
    edit_recipe(
        run, lambda text: re.sub(r"(\[optimizers.default\]\n).*?\n\n", r"\1learning_rate = 1e-4\n\n", text, flags=re.S)
    )
    found, said = back(run, tmp_path / "adam")
    assert "DeepFaceLab has no Adam; it goes on with AdaBelief" in said
    assert found.options["adabelief"] is True


def test_options_are_those_of_the_stage(tmp_path: Path) -> None:
    run, _ = there(tmp_path, model_of(discriminators=False))
    stages = "".join(
        f'\n[[stages]]\nat = "{at} steps"\nset = {{ "objective.{key}" = {value} }}\n'
        for at, key, value in ((1000, "random_warp", "false"), (1235, "gan_power", "0.1"))
    )
    edit_recipe(run, lambda text: text + stages)
    found, said = back(run, tmp_path / "again")
    assert (found.options["random_warp"], found.options["gan_power"]) == (False, 0.0)
    assert "stages from step 1,235 on: DeepFaceLab has none" in said


def test_a_checkpoint_by_path_and_damaged_ones(tmp_path: Path) -> None:
    run, _ = there(tmp_path, model_of(discriminators=False))
    checkpoint = run / "checkpoints" / "step-000001234"
    found, _ = back(checkpoint, tmp_path / "again")
    assert (found.name, found.iteration, len(found.loss_history)) == ("my face", 1234, 4)
    later = run / "checkpoints" / "step-000002000"
    shutil.copytree(checkpoint, later)
    (later / "state.json").write_text("{}", "utf-8")
    found, said = back(run, tmp_path / "more")
    assert found.iteration == 1234
    assert "damaged checkpoint passed over" in said
    with pytest.raises(BadInput, match="take another checkpoint"):
        back(later, tmp_path / "none")


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


def test_other_faces_than_those_of_the_run_are_told(tmp_path: Path, trained: Path) -> None:
    few = tmp_path / "few"
    shutil.copytree(FACES, few)
    (few / "00000_0.jpg").unlink()
    _, said = back(trained, tmp_path / "again", data={"src": few, "dst": FACES})
    assert "src: these are not the faces that the model was last trained on" in said
    assert "dst: these are not" not in said


@pytest.mark.parametrize("half", [False, True])
def test_dfm_files_compute_what_the_networks_do(tmp_path: Path, trained: Path, half: bool) -> None:
    made = to_dfm(trained, tmp_path / "new" / "swap.dfm", half=half, say=print)
    assert made.path == tmp_path / "new" / "swap.dfm"
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

    def write_another(path: Path, config: SAEHDNetworks, *given: Any, **more: Any) -> None:
        other = config.model_copy(update={"archi": config.archi.replace("u", "")})
        assert other != config
        write_dfm(path, other, *given, **more)

    monkeypatch.setattr(to_dfm_module, "write_dfm", write_another)
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
        with pytest.raises(BadInput, match="a model of family biggan; DeepFaceLab and DeepFaceLive take saehd only"):
            export()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(BadInput, match="has no checkpoint yet"):
        back(tmp_path / "run", tmp_path / "out")
