"""DeepFaceLab's XSeg folder there and back, and what is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from frugan.contract.formats import Conversion
from frugan.conversion.convert import convert
from frugan.errors import BadInput
from frugan.faces.saehd.leras_names import UPDATES, slot_keys, to_file, weight_keys
from frugan.faces.xseg.networks import XSeg
from frugan.safe_pickle.reader import load_pickle
from frugan.safe_pickle.writer import dump_pickle

SIDE, BASE = 64, 2


def _folder(folder: Path) -> Path:
    """As the original leaves it after two iterations, at a size that it does not know."""
    network, random = XSeg(SIDE, BASE), np.random.default_rng(0)
    folder.mkdir()
    arrays = {name: to_file(dict(network.named_parameters())[key]) for key, (name, _) in weight_keys(network).items()}
    (folder / "XSeg_64.npy").write_bytes(dump_pickle(arrays))
    statistics = {
        name: random.random(shape).astype(np.float32) for name, shape in slot_keys("XSeg", network, "rmsprop").values()
    }
    (folder / "XSeg_64_opt.npy").write_bytes(dump_pickle({UPDATES: np.int64(2), **statistics}))
    data = {
        "iter": 2,
        "options": {"face_type": "f", "pretrain": False, "batch_size": np.int64(3)},
        "loss_history": [[0.75], [0.5]],
        "sample_for_preview": None,
        "choosed_gpu_indexes": None,
    }
    (folder / "XSeg_data.dat").write_bytes(dump_pickle(data))
    return folder


def _quiet(line: str) -> None:
    del line


@pytest.fixture(scope="module")
def there_and_back(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("xseg")
    source, run, back = _folder(folder / "model"), folder / "run", folder / "back"
    convert(Conversion(source, run, _quiet), made_by="leras-xseg")
    convert(Conversion(run, back, _quiet), to="leras-xseg")
    return source, back


@pytest.mark.parametrize("name", ["XSeg_64.npy", "XSeg_64_opt.npy", "XSeg_data.dat"])
def test_there_and_back_byte_for_byte(there_and_back: tuple[Path, Path], name: str) -> None:
    source, back = there_and_back
    assert (back / name).read_bytes() == (source / name).read_bytes()


def test_keys_of_the_optimizer_are_the_originals(there_and_back: tuple[Path, Path]) -> None:
    _, back = there_and_back
    keys = list(load_pickle((back / "XSeg_64_opt.npy").read_bytes(), "statistics"))
    assert keys[:3] == ["iters:0", "acc_XSeg/conv01/conv/weight_0:0", "acc_XSeg/conv01/conv/bias_0:0"]


def test_summary_is_the_originals_box(there_and_back: tuple[Path, Path]) -> None:
    _, back = there_and_back
    text = (back / "XSeg_summary.txt").read_text()
    assert "== Current iteration: 2     ==" in text
    assert "==         face_type: f     ==" in text


def test_weights_alone_are_read(tmp_path: Path) -> None:
    source, lines = _folder(tmp_path / "model"), list[str]()
    for name in ("XSeg_64_opt.npy", "XSeg_data.dat"):
        (source / name).unlink()
    convert(Conversion(source, tmp_path / "run", lines.append), made_by="leras-xseg")
    assert any("statistics start afresh" in line for line in lines)
    assert any("iteration 0" in line for line in lines)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    source = _folder(tmp_path / "model")
    (source / "XSeg_64.npy").unlink()
    with pytest.raises(BadInput, match=r"no file of weights; expected one, XSeg_256.npy"):
        convert(Conversion(source, tmp_path / "run", _quiet), made_by="leras-xseg")
    assert not (tmp_path / "run").exists()


def test_a_folder_in_use_is_not_overwritten(there_and_back: tuple[Path, Path]) -> None:
    _, back = there_and_back
    with pytest.raises(BadInput, match=r"holds XSeg_64\.npy already.*add --replace \(replace=True in Python\)"):
        convert(Conversion(back.with_name("run"), back, _quiet), to="leras-xseg")


def test_what_is_replaced_is_moved_away(there_and_back: tuple[Path, Path], tmp_path: Path) -> None:
    source, back = there_and_back
    folder, lines = tmp_path / "model", list[str]()
    shutil.copytree(source, folder)
    (folder / "XSeg_32.npy").write_bytes(b"of another size")
    (folder / "new_SAEHD_data.dat").write_bytes(b"another model's")
    before = {path.name: path.read_bytes() for path in folder.glob("XSeg_*")}
    converted = convert(Conversion(back.with_name("run"), folder, lines.append, replace=True), to="leras-xseg")
    assert converted.backup == folder / "XSeg_replaced_01"
    assert f"The files that it replaced: {converted.backup}" in converted.lines
    assert {path.name: path.read_bytes() for path in converted.backup.iterdir()} == before
    names = {"XSeg_64.npy", "XSeg_64_opt.npy", "XSeg_data.dat", "XSeg_summary.txt"}
    assert {path.name for path in folder.iterdir() if path.is_file()} == {*names, "new_SAEHD_data.dat"}


def test_what_deepfacelab_cannot_read_takes_no_readable_models_place(
    there_and_back: tuple[Path, Path], tmp_path: Path
) -> None:
    run = there_and_back[1].with_name("run")
    (tmp_path / "XSeg_256.npy").write_bytes(b"readable")
    with pytest.raises(BadInput, match=r"holds an XSeg that DeepFaceLab reads; choose a new folder\. 64 pixels"):
        convert(Conversion(run, tmp_path, _quiet, replace=True), to="leras-xseg")
    assert [path.name for path in tmp_path.iterdir()] == ["XSeg_256.npy"]


def test_the_format_for_saehd_names_this_one(tmp_path: Path) -> None:
    source = _folder(tmp_path / "model")
    with pytest.raises(BadInput, match=r"holds no SAEHD model .*, but of XSeg \(--from leras-xseg\)"):
        convert(Conversion(source, tmp_path / "run", _quiet), made_by="leras")
