"""Model folders of DeepFaceLab, read and written as plain values."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frugan.errors import BadInput
from frugan.faces.saehd.leras_files import (
    LerasModel,
    file_name,
    find_models,
    model_name,
    read_model,
    summary,
    write_model,
)
from frugan.safe_pickle.reader import load_pickle
from frugan.safe_pickle.writer import dump_pickle

GOLDEN = Path(__file__).parents[2] / "golden" / "saehd"
RECORDED = GOLDEN / "model_dir"
OPTIONS: dict[str, Any] = {"archi": "df-ud", "resolution": 64, "gan_power": 0.0, "pretrain": False}


def recorded(value: str) -> Any:
    """What "numpy.int64:np.int64(64)" in the recording stands for, as a plain value."""
    text = value.split(":", 1)[1].removeprefix("np.int64(").removeprefix("np.float64(").removesuffix(")")
    words = {"True": True, "False": False, "None": None}
    return words[text] if text in words else json.loads(text.replace("'", '"'))


def model(name: str = "new", **changed: Any) -> LerasModel:
    random = np.random.default_rng(1)
    networks = {"encoder": {"down1/conv1/weight:0": random.random((5, 5, 3, 4), np.float32)}}
    optimizers = {"src_dst_opt": {"iters:0": np.int64(7), "acc_encoder/x_0:0": np.ones(3, np.float32)}}
    values: dict[str, Any] = {"networks": networks, "optimizers": optimizers} | changed
    return LerasModel(name, 7, dict(OPTIONS), [[3.5, 3.25], [0.5, 0.25]], **values)


def write_data(folder: Path, name: str = "new", **changed: Any) -> Path:
    """A data.dat as the original writes it."""
    data = {"iter": 7, "options": OPTIONS, "loss_history": [[1.0, 2.0]], "choosed_gpu_indexes": [0]} | changed
    path = folder / file_name(name, "data.dat")
    path.write_bytes(dump_pickle({key: value for key, value in data.items() if value is not ...}))
    return path


def test_the_originals_data_file_is_read_as_plain_values() -> None:
    expected = json.loads((RECORDED / "expected.json").read_text("utf-8"))["data"]
    model = read_model(RECORDED)
    assert (model.name, model.iteration) == ("demo", recorded(expected["iter"]))
    assert list(model.options) == list(expected["options"])
    assert model.options == {key: recorded(value) for key, value in expected["options"].items()}
    assert {type(value) for value in model.options.values()} == {bool, int, float, str}
    assert model.loss_history == [[recorded(x) for x in entry[1:]] for entry in expected["loss_history"][1:]]
    shapes = [[f"ndarray{a.shape}{a.dtype}" for a in side] for side in model.sample_for_preview]
    assert shapes == [side[1:] for side in expected["sample_for_preview"][1:]]


def test_what_is_written_is_what_was_read(tmp_path: Path) -> None:
    model = read_model(RECORDED)
    assert write_model(tmp_path, model) is None
    again = read_model(tmp_path)
    assert (again.name, again.iteration, again.loss_history) == (model.name, model.iteration, model.loss_history)
    assert list(again.options.items()) == list(model.options.items())
    for mine, other in zip(again.sample_for_preview, model.sample_for_preview, strict=True):
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(mine, other, strict=True))
    plain = pickle.loads((tmp_path / "demo_SAEHD_data.dat").read_bytes())
    assert (plain["iter"], plain["options"]) == (model.iteration, model.options)
    assert plain["choosed_gpu_indexes"] is None


@pytest.mark.parametrize(
    "file",
    [
        "archi/df-d/golden_SAEHD_encoder.npy",
        "archi/df-d/golden_SAEHD_inter.npy",
        "train/d_nets/golden_SAEHD_GAN.npy",
        "model_dir/step20/golden_SAEHD_src_dst_opt.npy",
    ],
)
def test_the_originals_arrays_come_back_bit_for_bit(tmp_path: Path, file: str) -> None:
    stem = file.rsplit("_SAEHD_", 1)[1].removesuffix(".npy")
    (tmp_path / "old").mkdir()
    write_data(tmp_path / "old", "golden")
    (tmp_path / "old" / f"golden_SAEHD_{stem}.npy").write_bytes((GOLDEN / file).read_bytes())
    write_model(tmp_path / "new", read_model(tmp_path / "old"))
    written = (tmp_path / "new" / f"golden_SAEHD_{stem}.npy").read_bytes()
    before, after = (load_pickle(data, file) for data in ((GOLDEN / file).read_bytes(), written))
    assert list(before) == list(after)
    for key, array in before.items():
        assert type(array) is type(after[key])
        assert (array.shape, array.dtype) == (after[key].shape, after[key].dtype)
        assert array.tobytes() == after[key].tobytes()
    assert written.startswith(b"\x80\x04")
    assert b"numpy.core.multiarray" in written
    assert b"numpy._core" not in written


def test_every_file_is_one_that_older_numpys_read(tmp_path: Path) -> None:
    write_model(tmp_path, model())
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kinds = {"data.dat", "encoder.npy", "src_dst_opt.npy", "summary.txt"}
    assert files.keys() == {f"new_SAEHD_{kind}" for kind in kinds}
    assert not any(b"numpy._core" in content for content in files.values())
    arrays = pickle.loads(files["new_SAEHD_src_dst_opt.npy"])
    assert type(arrays["iters:0"]) is np.int64
    assert arrays["acc_encoder/x_0:0"].flags.c_contiguous


def test_the_summary_is_the_originals() -> None:
    text = (RECORDED / "demo_SAEHD_summary.txt").read_text("utf-8")
    ours = summary("demo_SAEHD", 2, read_model(RECORDED).options)
    before_devices = text.split("==----------- Running On")[0]
    assert ours == before_devices + "=" * 39


def test_one_of_several_models_is_chosen_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such folder"):
        find_models(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="holds no SAEHD model"):
        read_model(tmp_path)
    write_model(tmp_path, model("new one"))
    assert read_model(tmp_path).name == "new one"
    write_model(tmp_path, model("other"))
    with pytest.raises(BadInput, match="holds the models 'new one', 'other'; choose one with --name"):
        read_model(tmp_path)
    assert read_model(tmp_path, "new_one").name == "new one"  # as the original takes it
    with pytest.raises(BadInput, match="holds no model 'old', but 'new one', 'other'"):
        read_model(tmp_path, "old")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"options": ...}, "this is no SAEHD model's data.dat"),
        ({"iter": ...}, "iter None: expected a number"),
        ({"iter": -1}, "iter -1"),
        ({"iter": 2.5}, "iter 2.5"),
        ({"options": {"archi": np.zeros(2)}}, "option archi is a ndarray"),
        ({"loss_history": "none"}, "loss_history is a str"),
        ({"loss_history": [[1.0, 2.0], [1.0]]}, r"loss_history entry 1: expected two numbers, .*got \[1.0\]"),
        ({"loss_history": [[1.0, "x"]]}, "entry 0"),
    ],
)
def test_a_data_file_that_is_none(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = write_data(tmp_path, **changed)
    with pytest.raises(BadInput, match=f"{path.name}.*{message}"):
        read_model(tmp_path)


def test_options_may_be_numpys_own_and_history_may_be_missing(tmp_path: Path) -> None:
    options = {"resolution": np.int64(64), "gan_power": np.float64(0.1), "x": (np.int64(1), None), "y": {"z": True}}
    write_data(tmp_path, options=options, loss_history=..., iter=np.int64(3))
    model = read_model(tmp_path)
    assert model.options == {"resolution": 64, "gan_power": 0.1, "x": [1, None], "y": {"z": True}}
    assert [type(model.options[key]) for key in ("resolution", "gan_power")] == [int, float]
    assert (type(model.iteration), model.loss_history) == (int, [])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected arrays by name"),
        ({}, "expected arrays by name"),
        ({"a/weight:0": [1.0]}, "a/weight:0 is a list"),
        ({"a/weight:0": np.zeros(2)}, "a/weight:0 is float64; expected float32"),
        ({"a/weight:0": np.zeros(2, np.int32)}, "a/weight:0 is int32"),
        ({"iters:0": np.zeros(2, np.int64)}, "iters:0 is int64"),
        ({"iters:0": np.array(-1)}, "iters:0"),
        ({"iters:0": np.array(1.0, np.float32)}, "iters:0 is float32"),
    ],
)
def test_files_that_hold_no_arrays(tmp_path: Path, value: Any, message: str) -> None:
    write_data(tmp_path)
    (tmp_path / "new_SAEHD_encoder.npy").write_bytes(dump_pickle(value))
    with pytest.raises(BadInput, match=f"new_SAEHD_encoder.npy: {message}"):
        read_model(tmp_path)


def test_a_file_that_could_run_a_program_is_refused(tmp_path: Path) -> None:
    write_data(tmp_path).write_bytes(pickle.dumps({"iter": 1, "options": print}))
    with pytest.raises(BadInput, match="could run a program"):
        read_model(tmp_path)


def test_a_model_is_replaced_only_when_asked_and_kept(tmp_path: Path) -> None:
    write_model(tmp_path, model())
    (tmp_path / "new_SAEHD_GAN.npy").write_bytes(b"of the old model only")
    (tmp_path / "new_SAEHD_model.dfm").write_bytes(b"another's")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(
        BadInput,
        match=r"holds new_SAEHD_data\.dat already; .*--replace \(replace=True in Python\).*new_SAEHD_replaced_01",
    ):
        write_model(tmp_path, model())
    backup = write_model(tmp_path, model(networks={}), replace=True)
    assert backup == tmp_path / "new_SAEHD_replaced_01"
    assert backup is not None
    kept = {path.name: path.read_bytes() for path in backup.iterdir()}
    assert kept == {name: content for name, content in before.items() if not name.endswith(".dfm")}
    here = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert here == {f"new_SAEHD_{what}" for what in ("data.dat", "summary.txt", "src_dst_opt.npy", "model.dfm")}
    assert find_models(tmp_path) == ["new"]
    assert write_model(tmp_path, model(), replace=True) == tmp_path / "new_SAEHD_replaced_02"
    write_model(tmp_path, model("other"))
    with pytest.raises(BadInput, match="is a file"):
        write_model(tmp_path / "new_SAEHD_data.dat", model())


def test_a_failed_write_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path, model())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_model(tmp_path, model(), replace=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_names_are_as_the_original_has_them() -> None:
    assert model_name("my_first_swap") == "my first swap"
    for bad in ("", "_", "a/b", "a:b", "a\nb"):
        with pytest.raises(BadInput, match="--name"):
            model_name(bad)
