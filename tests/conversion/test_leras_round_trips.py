"""DeepFaceLab models become runs and runs become models, array for array, and files of the original byte for byte."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conversion.leras_models import GROUPS, NAME, NARROW, OPTIONS, assert_same_model, model_of, write
from conversion.leras_runs import CPU, DATA, EVERY_PHASE, back, tensors, there, train_small
from frugan.conversion.convert import from_leras, to_dfm
from frugan.engine.run.events import EventLog, read_events
from frugan.faces.saehd.config import Archi
from frugan.faces.saehd.dfm import check_dfm
from frugan.faces.saehd.leras_files import LerasModel, read_model, write_model
from frugan.faces.saehd.networks import encode, swap_code
from frugan.recipe.loading import load_recipe
from frugan.reporting.loss_history import LossHistory
from frugan.setup.networks import Weights, networks_from
from frugan.training.training import train
from parity.saehd.golden import ARCHIS, FOLDER, record

pytestmark = pytest.mark.usefixtures("narrow_faces")


@pytest.mark.parametrize(
    "archi",
    [pytest.param(archi, marks=[] if archi in ("df-udtc", "liae-ud") else pytest.mark.long) for archi in ARCHIS],
)
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
    networks = networks_from(Weights.open(run / "checkpoints" / "step-000000020" / "networks.safetensors"))
    with torch.no_grad():
        vectors = encode(networks, torch.from_numpy(faces).permute(0, 3, 1, 2).contiguous())
        face, _ = networks["decoder_src"](swap_code(Archi.parse("df-ud"), networks, vectors))
    assert np.abs(face.permute(0, 2, 3, 1).numpy() - expected[1]).max() < 1e-5
    made = to_dfm(run, tmp_path / "swap.dfm", say=print)
    assert made.difference is not None
    assert (made.step, made.difference < 1e-5) == (20, True)
    for mine, other in zip(check_dfm(made.path, faces), expected, strict=True):
        assert np.abs(mine - other).max() < 1e-5
    model, said = back(run, tmp_path / "again")
    assert said == ""
    assert_same_model(model, read_model(tmp_path / "model"))
    for path in (tmp_path / "model").glob("*.npy"):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def assert_same_checkpoint(a: Path, b: Path) -> None:
    for file in ("networks", "optimizers"):
        mine, other = tensors(a, file), tensors(b, file)
        assert mine.keys() == other.keys()
        assert [key for key in mine if not torch.equal(mine[key], other[key])] == []


def test_a_trained_run_comes_back_and_goes_on_as_if_nothing_had_been(tmp_path: Path, trained: Path) -> None:
    model, said = back(trained, tmp_path / "model")
    assert said == "target_iter 2 is reached: DeepFaceLab trains no further until it is raised there"
    assert (model.name, model.iteration, len(model.loss_history)) == ("two steps", 2, 2)
    events = list(read_events(trained / "events.jsonl"))
    terms = [event["phases"]["autoencoder"]["terms"] for event in events if event["event"] == "step"]
    for losses, of in zip(model.loss_history, terms, strict=True):
        assert losses == [sum(v for k, v in of.items() if k.startswith(side)) for side in ("src/", "dst/")]
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
        pytest.param("df-ud", {"gan_power": 0.1}, marks=pytest.mark.long),
        pytest.param("df-ud", {"true_face_power": 0.01, "adabelief": False}, marks=pytest.mark.long),
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
    model, _ = back(run, tmp_path / "again")
    assert_same_model(model, model_of(archi=archi, **options))
    assert load_recipe(str(run / "recipe.toml")).objective.model_dump()["pretrain"] is pretrain


@pytest.mark.parametrize("target_iter", [0, 1234])
def test_an_imported_model_is_trained_for_a_time_that_counts_from_the_import(
    tmp_path: Path, said: list[str], target_iter: int
) -> None:
    """Its steps took no time here, and it is endless, or has come to its end."""
    run, _ = there(tmp_path, model_of(batch_size=2, target_iter=target_iter), "training.precision=fp32")
    result = train(str(run / "recipe.toml"), DATA, run, for_time="2s", options=CPU, say=said.append)
    assert result.finished
    assert 1234 < result.step < 1234 + 2000
    training = load_recipe(str(run)).training
    assert (str(training.time), str(training.duration)) == ("2s", f"{result.step} steps")
    assert not any("1,000,000,000" in line for line in said)
    model, _ = back(run, tmp_path / "again")  # a time has no number of iterations
    assert model.options["target_iter"] == 0


@pytest.mark.long
def test_a_parked_discriminator_is_taken_up_again(tmp_path: Path, said: list[str]) -> None:
    run, _ = there(tmp_path, model_of(batch_size=2), "training.precision=fp32")
    before, updates = tensors(run), int(tensors(run, "optimizers")["patch_discriminator/updates"])
    words = ["objective.gan_power=0.1", "training.duration=1235 steps"]
    train(str(run / "recipe.toml"), DATA, run, overrides=words, options=CPU, say=said.append)
    assert not [line for line in said if "fresh" in line]
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
    assert "option list=a list: unknown here; kept for the way back\noption use_fp16=True: unknown here" in said
    assert "target_iter 0: no end, which is training.duration = endless here" in said
    assert "option eyes_prio: left out, as the original does" in said
    model, _ = back(run, tmp_path / "again")
    assert model.options == {**OPTIONS, **NARROW, **odd}
    optimizer = load_recipe(str(run / "recipe.toml")).optimizer_settings()["autoencoder"].model_dump()
    assert (optimizer["dropout"], optimizer["period"]) == (0.3, 500)


def record_steps(run: Path, losses: dict[int, tuple[float, float]]) -> None:
    """Note steps in a run's events, as the loop does."""
    with EventLog(run / "events.jsonl") as log:
        for step, (src, dst) in losses.items():
            terms = {"src/dssim": src / 2, "src/mse": src / 2, "dst/mask": dst, "gan": 9.0}
            log.write("step", step=step, phases={"autoencoder": {"terms": terms, "skipped": 0}})


def test_history_goes_on_and_skipped_steps_leave_no_hole(tmp_path: Path) -> None:
    model = model_of()
    run, _ = there(tmp_path, model)
    record_steps(run, {1235: (1.0, 2.0), 1236: (float("nan"), 3.0), 1238: (0.5, 0.25)})
    exported, said = back(run, tmp_path / "again")
    assert exported.loss_history == model_of().loss_history, "steps after the checkpoint do not count"
    checkpoint = run / "checkpoints" / "step-000001234"
    checkpoint.rename(run / "checkpoints" / "step-000001238")
    exported, said = back(run, tmp_path / "later")
    assert exported.loss_history == [*model_of().loss_history, [1.0, 2.0], [1.0, 2.0], [0.5, 0.25]]
    assert exported.iteration == 1238
    assert said == "loss history: 1 of 4 steps made here are not in the run's events"


def test_a_model_in_pretraining_mode_is_said_to_be_and_goes_on_to_the_swap(tmp_path: Path) -> None:
    write(tmp_path / "model", model_of(discriminators=False, pretrain=True, of_a_fork=3))
    converted = from_leras(tmp_path / "model", tmp_path / "run", say=lambda _: None)
    assert converted.lines[1] == "The model is in pretraining mode: it learns faces of many people, and swaps none yet."
    run, recipe = tmp_path / "run", f"{tmp_path / 'run'}/recipe.toml"
    assert f"frugan train {recipe} objective.pretrain=false --data WORKSPACE" in converted.lines[2]
    assert f"frugan train {recipe} data.pretrain=FACES_OF_MANY --out" in converted.lines[3]
    model, said = back(run, tmp_path / "back")
    assert "still pretraining, on faces of many people" in said
    assert (model.iteration, model.options["pretrain"], len(model.loss_history)) == (1234, True, 4)
    words = ["objective.pretrain=false", "training.batch=2", "training.duration=2 steps"]
    train(recipe, DATA, run, overrides=words, options=CPU, say=lambda _: None)
    assert [*LossHistory.of(run / "events.jsonl").steps["src"]] == [1, 2]
    model, said = back(run, tmp_path / "swap")
    assert "pretraining" not in said
    assert (model.name, model.iteration, len(model.loss_history)) == (NAME, 2, 2)
    assert (model.options["pretrain"], model.options["of_a_fork"]) == (False, 3)
