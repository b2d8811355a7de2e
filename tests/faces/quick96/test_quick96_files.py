"""DeepFaceLab's Quick96 folder there and back, a DFM of it, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from frugan.contract.formats import Conversion
from frugan.conversion.convert import convert
from frugan.errors import BadInput
from frugan.faces.quick96.config import Quick96Networks
from frugan.faces.quick96.family import Quick96Family
from frugan.faces.quick96.leras import QUICK96
from frugan.faces.saehd.dfm import check_dfm
from frugan.faces.saehd.leras_files import LerasModel, file_name, read_model, write_model
from frugan.faces.saehd.leras_names import UPDATES, in_files_order, key_of, shape_in_file, slot_keys, to_file

GOLDEN = Path(__file__).parents[2] / "golden" / "quick96"
NARROW = Quick96Networks(ae_dims=32, e_dims=16, d_dims=16, d_mask_dims=16)


def _folder(folder: Path) -> Path:
    """As the original leaves it after two iterations, of other widths."""
    folder.mkdir()
    (folder / file_name("demo", "data.dat", QUICK96)).write_bytes((GOLDEN / "demo_Quick96_data.dat").read_bytes())
    model, random = read_model(folder, kind=QUICK96), np.random.default_rng(0)
    (folder / file_name("demo", "data.dat", QUICK96)).unlink()
    statistics: dict[str, object] = {UPDATES: np.int64(2)}
    for name, network in Quick96Family().build(NARROW).items():
        model.networks[name] = {key_of(key): to_file(parameter) for key, parameter in in_files_order(network)}
        for key, shape in slot_keys(name, network, "rmsprop").values():
            statistics[key] = random.random(shape).astype(np.float32)
    model.optimizers["src_dst_opt"] = statistics
    write_model(folder, model)
    return folder


def _quiet(line: str) -> None:
    del line


@pytest.fixture(scope="module")
def there_and_back(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("quick96")
    source, run, back = _folder(folder / "model"), folder / "run", folder / "back"
    convert(Conversion(source, run, _quiet), made_by="leras-quick96")
    convert(Conversion(run, back, _quiet), to="leras-quick96")
    return source, run, back


def test_there_and_back_byte_for_byte(there_and_back: tuple[Path, Path, Path]) -> None:
    source, _, back = there_and_back
    names = sorted(path.name for path in source.iterdir())
    assert sorted(path.name for path in back.iterdir()) == names
    assert "demo_Quick96_src_dst_opt.npy" in names
    for name in names:
        assert (back / name).read_bytes() == (source / name).read_bytes(), name


def test_keys_of_all_files_are_the_originals() -> None:
    expected = json.loads((GOLDEN / "expected.json").read_text())["npy_keys"]
    statistics: dict[str, tuple[int, ...]] = {UPDATES: ()}
    for name, network in Quick96Family().build(Quick96Networks(), "meta").items():
        ours = [(key_of(key), list(shape_in_file(p))) for key, p in in_files_order(network)]
        assert ours == [(key, shape) for key, (shape, _) in expected[f"demo_Quick96_{name}.npy"].items()]
        statistics |= dict(slot_keys(name, network, "rmsprop").values())
    recorded = expected["demo_Quick96_src_dst_opt.npy"]
    assert [(key, list(shape)) for key, shape in statistics.items()] == [
        (k, shape) for k, (shape, _) in recorded.items()
    ]


def test_a_dfm_draws_what_the_networks_draw(there_and_back: tuple[Path, Path, Path], tmp_path: Path) -> None:
    converted = convert(Conversion(there_and_back[1], tmp_path / "swap.dfm", _quiet), to="dfm")
    assert converted.difference is not None
    assert converted.difference <= 1e-6
    mask, face, face_mask = check_dfm(tmp_path / "swap.dfm", np.full((2, 96, 96, 3), 0.5, np.float32))
    assert (mask.shape, face.shape, face_mask.shape) == ((2, 96, 96, 1), (2, 96, 96, 3), (2, 96, 96, 1))


def test_other_kinds_of_models_are_refused(there_and_back: tuple[Path, Path, Path], tmp_path: Path) -> None:
    source, run, _ = there_and_back
    with pytest.raises(BadInput, match=r"holds no SAEHD model .* but of Quick96"):
        convert(Conversion(source, tmp_path / "run", _quiet), made_by="leras")
    with pytest.raises(BadInput, match="weights of Quick96, and this format takes those of SAEHD alone"):
        convert(Conversion(run, tmp_path / "model", _quiet), to="leras")


def test_a_missing_file_is_named(there_and_back: tuple[Path, Path, Path], tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    for path in there_and_back[0].iterdir():
        if "decoder_dst" not in path.name:
            (source / path.name).write_bytes(path.read_bytes())
    with pytest.raises(BadInput, match=r"demo_Quick96_decoder_dst\.npy: missing"):
        convert(Conversion(source, tmp_path / "run", _quiet), made_by="leras-quick96")
    assert not (tmp_path / "run").exists()


def test_a_model_in_the_way_is_moved_only_on_request(there_and_back: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, run, back = there_and_back
    with pytest.raises(BadInput, match=r"holds demo_Quick96_data\.dat already"):
        convert(Conversion(run, back, _quiet), to="leras-quick96")
    copy = tmp_path / "copy"
    write_model(copy, LerasModel("demo", 1, {"batch_size": 4}, [], kind=QUICK96))
    converted = convert(Conversion(run, copy, _quiet, replace=True), to="leras-quick96")
    assert converted.backup == copy / "demo_Quick96_replaced_01"
