"""DeepFaceLab's names, layouts and options against its recorded files, and against what recipes say."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from frugan.errors import BadInput
from frugan.faces.saehd.config import SAEHDNetworks
from frugan.faces.saehd.family import SAEHDFamily
from frugan.faces.saehd.leras_files import read_model
from frugan.faces.saehd.leras_names import (
    OPTIMIZER_FILES,
    UPDATES,
    faults,
    file_of,
    from_file,
    gan_misfit,
    misfits,
    slot_keys,
    to_file,
    weight_keys,
)
from frugan.faces.saehd.leras_options import (
    ORDER,
    merged,
    options_of,
    recipe_values,
    without_counterpart,
)
from frugan.recipe.loading import parse_recipe
from parity.saehd import weights
from parity.saehd.golden import ARCHIS, FOLDER, networks_of, record

EVERYTHING = ("train/extras/df-ud_all", "train/extras/liae-ud_all")
OPTIONS = read_model(FOLDER / "model_dir").options


def shapes(networks: SAEHDNetworks) -> dict[str, dict[str, tuple[int, ...]]]:
    """Network -> key -> shape in its file."""
    built = SAEHDFamily().build(networks, "meta")
    return {name: dict(weight_keys(network).values()) for name, network in built.items()}


def as_recorded(entries: list[list[Any]]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(shape) for key, shape in entries}


@pytest.mark.parametrize("archi", ARCHIS)
def test_keys_and_shapes_are_the_recorded_ones(archi: str) -> None:
    case = record(f"archi/{archi}/case.json")
    shapes_of = shapes(networks_of(case))
    assert {f"{file_of(name)}.npy" for name in shapes_of} >= case["files"].keys()
    for file, entries in case["files"].items():
        assert shapes_of[file.removesuffix(".npy")] == as_recorded(entries)


@pytest.mark.parametrize("recording", EVERYTHING)
def test_keys_of_discriminators_and_optimizers_are_the_recorded_ones(recording: str) -> None:
    case = record(f"{recording}/case.json")
    files, networks = case["files_order"], networks_of(case["options"])
    built, shapes_of = SAEHDFamily().build(networks, "meta"), shapes(networks)
    for name in shapes_of:
        if f"{file_of(name)}.npy" in files:  # liae has no code discriminator
            assert shapes_of[name] == as_recorded(files[f"{file_of(name)}.npy"])
    for optimizer, file in OPTIMIZER_FILES.items():
        if f"{file}.npy" not in files:
            continue
        moved = [n for n in built if n not in OPTIMIZER_FILES] if optimizer == "autoencoder" else [optimizer]
        keys = {key: shape for n in moved for key, shape in slot_keys(n, built[n], "adabelief").values()}
        assert {UPDATES: (), **keys} == as_recorded(files[f"{file}.npy"])


def test_layouts_are_the_recorded_ones() -> None:
    recorded = weights.read(FOLDER / "archi" / "df-d" / "golden_SAEHD_decoder_src.npy")
    for array in recorded.values():
        assert torch.equal(from_file(array), weights.from_file(array))
        assert np.array_equal(to_file(from_file(array)), array)
        assert to_file(from_file(array)).flags.c_contiguous
        assert not np.shares_memory(from_file(array).numpy(), array)
    laid_out = from_file(recorded["upscale0/conv1/weight:0"]).contiguous(memory_format=torch.channels_last)
    assert np.array_equal(to_file(laid_out), recorded["upscale0/conv1/weight:0"])


def test_faults_name_key_and_shapes() -> None:
    arrays = {"a/weight:0": np.zeros((3, 4), np.float32), "b/bias:0": np.zeros(2, np.float32)}
    expected = {"a/weight:0": (4, 3), "b/bias:0": (2,), "c/bias:0": (5,)}
    assert faults("x.npy", arrays, expected) == [
        "x.npy: a/weight:0: [3, 4], expected [4, 3]",
        "x.npy: c/bias:0: missing, expected [5]",
    ]


def files(archi: str = "df-ud", **dims: int) -> Mapping[str, Mapping[str, Any]]:
    """Arrays without content, of networks other than a recipe's may be."""
    chosen: dict[str, Any] = {"resolution": 64, "ae_dims": 32, "e_dims": 16, "d_dims": 20, "d_mask_dims": 18}
    networks = networks_of({"archi": archi, **chosen, **dims})
    return {
        file_of(name): {key: np.broadcast_to(np.float32(0), shape) for key, shape in of.items()}
        for name, of in shapes(networks).items()
    }


@pytest.mark.parametrize(
    ("archi", "dims", "lines"),
    [
        ("df-ud", {}, []),
        ("df-udc", {}, []),  # leaves no trace
        ("df-ud", {"e_dims": 24}, ["e_dims is 16, but encoder.npy is of e_dims 24"]),
        ("df-ud", {"ae_dims": 48}, ["ae_dims is 32, but inter.npy is of ae_dims 48"]),
        ("df-ud", {"d_dims": 22}, ["d_dims is 20, but decoder_src.npy is of d_dims 22"]),
        ("df-ud", {"d_mask_dims": 16}, ["d_mask_dims is 18, but decoder_src.npy is of d_mask_dims 16"]),
        ("df-ud", {"resolution": 96}, ["resolution is 64, but inter.npy is of resolution 96"]),
        ("df-ud", {"resolution": 128, "e_dims": 8}, ["e_dims is 16", "resolution is 64, but inter.npy is of"]),
        ("df-udt", {}, ["archi is df-ud, but encoder.npy is of an archi with the letter t"]),
        ("df-udt", {"resolution": 128}, ["archi is df-ud", "resolution is 64, but inter.npy is of resolution 128"]),
        ("df-u", {}, ["archi is df-ud, but decoder_src.npy is of an archi without the letter d"]),
        ("liae-ud", {}, ["archi is df-ud, but the files are those of liae"]),
    ],
)
def test_the_option_that_does_not_fit_is_named(archi: str, dims: dict[str, int], lines: list[str]) -> None:
    asked = networks_of(
        {"archi": "df-ud", "resolution": 64, "ae_dims": 32, "e_dims": 16, "d_dims": 20, "d_mask_dims": 18}
    )
    reasons = misfits(asked, files(archi, **dims))
    assert len(reasons) == len(lines)
    assert all(line.startswith(start) for line, start in zip(reasons, lines, strict=True)), reasons
    assert misfits(asked, {"encoder": {"down1/downs_0/conv1/weight:0": np.zeros(3)}, "inter": {}}) == []


def test_the_patch_discriminators_options_are_named() -> None:
    asked = networks_of(
        {"archi": "df-ud", "resolution": 64, "ae_dims": 32, "e_dims": 16, "d_dims": 20, "d_mask_dims": 18}
    )
    assert gan_misfit(asked, files(gan_dims=6)) == ["gan_dims is 4, but GAN.npy is of gan_dims 6"]
    assert gan_misfit(asked, files(gan_patch_size=16)) == ["gan_patch_size is 8, but GAN.npy is of another"]


def back(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the recipe that options stand for."""
    recipe = parse_recipe({"family": "saehd", **recipe_values(options)}, "options")
    duration, backup = recipe.training.duration, recipe.saving.backup_every
    hours = int(backup.amount / 3600) if backup else 0
    settings = recipe.optimizer_settings()["autoencoder"].model_dump()
    return options_of(recipe.model_dump(mode="json"), settings, duration.known_steps(recipe.training.batch), hours)


def test_the_originals_options_come_back_in_its_order() -> None:
    assert list(OPTIONS.items()) == list(back(OPTIONS).items())
    assert tuple(OPTIONS) == ORDER


@pytest.mark.parametrize(
    "changed",
    [
        {"resolution": 96, "gan_patch_size": 12},
        {"face_type": "head", "archi": "liae-udt", "ae_dims": 40, "e_dims": 18, "d_dims": 20, "d_mask_dims": 22},
        {"masked_training": False, "eyes_mouth_prio": True, "uniform_yaw": True, "blur_out_mask": True},
        {"adabelief": False, "lr_dropout": "y", "clipgrad": True},
        {"random_warp": False, "random_hsv_power": 0.05, "random_src_flip": True, "random_dst_flip": False},
        {"true_face_power": 0.01, "face_style_power": 1.5, "bg_style_power": 2.0, "ct_mode": "rct"},
        {"pretrain": True, "autobackup_hour": 6, "target_iter": 250_000, "batch_size": 5},
        {"gan_power": 0.1, "gan_patch_size": 16, "gan_dims": 32},
    ],
)
def test_every_option_comes_back(changed: dict[str, Any]) -> None:
    assert back({**OPTIONS, **changed}) == {**OPTIONS, **changed}


def test_older_options_have_the_originals_defaults() -> None:
    networks = {name: OPTIONS[name] for name in ("resolution", "face_type", "archi", "ae_dims", "e_dims", "d_dims")}
    values = recipe_values({**networks, "d_mask_dims": 16, "lr_dropout": True, "eyes_prio": True})
    assert values["optimizers"]["default"] == {
        "kind": "adabelief",
        "learning_rate": 5e-5,
        "dropout": 0.3,
        "period": 500,
    }
    assert values["training"] == {"batch": 8, "duration": "endless"}
    assert values["saving"] == {}
    hourly = recipe_values({**OPTIONS, "autobackup_hour": 3})["saving"]
    assert hourly == {"backup_every": "3h", "keep_backups": 24}
    assert (values["networks"]["gan_patch_size"], "gan_dims" in values["networks"]) == (8, False)
    assert values["objective"] == {}
    assert recipe_values({**OPTIONS, "lr_dropout": False})["optimizers"]["default"].keys() == {"kind", "learning_rate"}
    with pytest.raises(BadInput, match="option d_mask_dims is missing"):
        recipe_values(networks)


def test_a_patch_that_does_not_divide_is_a_fault_only_where_it_is_used() -> None:
    odd = {**OPTIONS, "archi": "df-u", "resolution": 560, "gan_patch_size": 70}
    values = recipe_values(odd)
    assert values["networks"]["gan_patch_size"] == 59
    parse_recipe({"family": "saehd", **values}, "options")
    with pytest.raises(BadInput, match="gan_patch_size 70"):
        parse_recipe({"family": "saehd", **recipe_values({**odd, "gan_power": 0.1})}, "options")
    assert merged(back(odd), back(odd), odd)["gan_patch_size"] == 70


def test_true_face_is_off_for_liae() -> None:
    assert back({**OPTIONS, "archi": "liae-ud", "true_face_power": 0.5})["true_face_power"] == 0.0


def test_what_did_not_change_here_stays_as_it_was() -> None:
    imported = {**OPTIONS, "lr_dropout": "cpu", "models_opt_on_gpu": False, "use_fp16": True, "eyes_prio": False}
    as_imported = back(imported)
    result = merged(as_imported, as_imported, imported)
    assert result == {key: value for key, value in imported.items() if key != "eyes_prio"}
    changed = merged({**as_imported, "lr_dropout": "n", "batch_size": 4}, as_imported, imported)
    assert {key for key in result if result[key] != changed[key]} == {"lr_dropout", "batch_size"}


def test_settings_that_the_original_does_not_have_are_named() -> None:
    def lines(**settings: Any) -> list[str]:
        values = recipe_values({**OPTIONS, "lr_dropout": "y", "clipgrad": True, "target_iter": 9})
        values["optimizers"]["default"] |= settings
        recipe = parse_recipe({"family": "saehd", **values}, "options")
        return without_counterpart(recipe.optimizer_settings()["autoencoder"].model_dump())

    assert lines() == []
    assert lines(learning_rate=1e-4) == ["learning_rate is 0.0001 here; DeepFaceLab goes on with 5e-05"]
    assert lines(beta1=0.5) == ["beta1 is 0.5 here; DeepFaceLab goes on with 0.9"]
    assert lines(period=None) == ["dropout 0.3, no period here; DeepFaceLab goes on with lr_dropout y: 0.3 and 500"]
    assert lines(dropout=None)[0].startswith("no dropout, period 500 here")
    fall = "final_learning_rate is 1e-05 here; DeepFaceLab has no such fall and goes on with a rate of 5e-05"
    assert lines(final_learning_rate=1e-5) == [fall]
    assert lines(dropout=0.5)[0].startswith("dropout 0.5, period 500")
    assert lines(clip_norm=2.0) == ["clip_norm is 2.0 here; DeepFaceLab goes on with clipgrad: 1.0"]
    assert lines(dropout=None, period=None, clip_norm=None) == []


def test_recorded_options_are_those_of_the_table() -> None:
    expected = json.loads((Path(FOLDER) / "model_dir" / "expected.json").read_text("utf-8"))
    assert tuple(expected["default_options"]) == ORDER
