"""DeepFaceLab's AMP folder there and back, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from frugan.contract.formats import Conversion
from frugan.conversion.convert import convert
from frugan.errors import BadInput
from frugan.faces.amp.family import AMPFamily
from frugan.faces.amp.leras import AMP
from frugan.faces.saehd.leras_files import LerasModel, read_model, write_model
from frugan.faces.saehd.leras_names import to_file
from frugan.safe_pickle.reader import load_pickle
from frugan.safe_pickle.writer import dump_pickle
from parity.amp.golden import FOLDER, SCOPES, networks_of, record

NAME = "demo"
NETWORKS = ("encoder", "inter_src", "inter_dst", "decoder")


def _options(**changed: Any) -> dict[str, Any]:
    """As the original writes them: numbers that it has clipped are NumPy's."""
    options: dict[str, Any] = load_pickle((FOLDER / "data.dat").read_bytes(), "data")["options"]
    return options | changed


def _statistics(keys: list[str], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    random = np.random.default_rng(4)
    return {"iters:0": np.int64(2)} | {
        f"{slot}_{key}".replace(":", "_") + ":0": random.random(shapes[key], np.float32)
        for slot in ("ms", "vs")
        for key in keys
    }


def _folder(folder: Path, **changed: Any) -> Path:
    """As the original leaves it after two iterations; keys in the order of the recordings."""
    folder.mkdir()
    options = _options(gan_power=np.float64(0.1), **changed)
    case, gan = record("case.json"), record("gan.json")
    every = AMPFamily().build(networks_of(options))
    arrays, shapes = dict[str, dict[str, Any]](), dict[str, tuple[int, ...]]()
    for name, network in every.items():
        scope = SCOPES.get(name, name)
        found = {
            f"{scope}/{key.replace('.0.', '_0.').replace('.1.', '_1.').replace('.', '/')}:0": to_file(value)
            for key, value in network.named_parameters()
        }
        shapes |= {key: array.shape for key, array in found.items()}
        keys = [key.split("_", 1)[1].removesuffix(":0")[:-2] + ":0" for key in gan["gan_opt_keys"] if key[:3] == "ms_"]
        order = [f"{name}/{entry[0]}" for entry in case["nets"][name]] if name in case["nets"] else keys
        assert found.keys() == set(order)
        arrays[scope] = {key.split("/", 1)[1]: found[key] for key in order}
    arrays |= {
        "src_dst_opt": _statistics(
            [f"{name}/{entry[0]}" for name in ("encoder", "decoder") for entry in case["nets"][name]], shapes
        ),
        "GAN_opt": _statistics(keys, shapes),
    }
    for stem, of in arrays.items():
        (folder / f"{NAME}_AMP_{stem}.npy").write_bytes(dump_pickle(of))
    data = load_pickle((FOLDER / "data.dat").read_bytes(), "data") | {"options": options}
    (folder / f"{NAME}_AMP_data.dat").write_bytes(dump_pickle(data))
    return folder


def _quiet(line: str) -> None:
    del line


@pytest.fixture(scope="module")
def there_and_back(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("amp")
    source, run, back = _folder(folder / "model"), folder / "run", folder / "back"
    convert(Conversion(source, run, _quiet), made_by="leras-amp")
    convert(Conversion(run, back, _quiet), to="leras-amp")
    return source, back


FILES = [*(f"{stem}.npy" for stem in (*NETWORKS, "GAN", "src_dst_opt", "GAN_opt")), "data.dat"]


@pytest.mark.parametrize("name", FILES)
def test_there_and_back_byte_for_byte(there_and_back: tuple[Path, Path], name: str) -> None:
    source, back = there_and_back
    assert (back / f"{NAME}_AMP_{name}").read_bytes() == (source / f"{NAME}_AMP_{name}").read_bytes()


def test_statistics_have_nothing_of_inter_networks(there_and_back: tuple[Path, Path]) -> None:
    run = there_and_back[1].with_name("run")
    kept = load_file(sorted((run / "checkpoints").iterdir())[-1] / "optimizers.safetensors")
    assert not any("inter_" in key for key in kept)
    assert kept["autoencoder/updates"] == 2


def test_summary_is_the_originals_but_for_the_device(there_and_back: tuple[Path, Path]) -> None:
    ours = (there_and_back[1] / f"{NAME}_AMP_summary.txt").read_text().splitlines()
    original = (FOLDER / "summary.txt").read_text().splitlines()
    options = slice(1, original.index(next(line for line in original if "Running On" in line)))
    assert [line for line in ours[options] if "gan_power" not in line] == [
        line for line in original[options] if "gan_power" not in line
    ]


def test_trained_inter_networks_go_over_with_a_word(tmp_path: Path) -> None:
    lines: list[str] = []
    run = tmp_path / "run"
    words = ("objective.train_inters=true",)
    convert(Conversion(_folder(tmp_path / "model"), run, _quiet, overrides=words), made_by="leras-amp")
    convert(Conversion(run, tmp_path / "back", lines.append), to="leras-amp")
    assert any(line.startswith("train_inters: DeepFaceLab takes both") for line in lines)
    assert read_model(tmp_path / "back", None, AMP).optimizers["src_dst_opt"].keys() == (
        read_model(tmp_path / "model", None, AMP).optimizers["src_dst_opt"].keys()
    )


@pytest.fixture
def model(tmp_path: Path) -> LerasModel:
    return read_model(_folder(tmp_path / "model"), None, AMP)


def _refused(model: LerasModel, tmp_path: Path, message: str) -> None:
    write_model(tmp_path / "other", model)
    with pytest.raises(BadInput, match=message):
        convert(Conversion(tmp_path / "other", tmp_path / "run", _quiet), made_by="leras-amp")
    assert not (tmp_path / "run").exists()


def test_options_of_an_early_version_are_refused(model: LerasModel, tmp_path: Path) -> None:
    del model.options["inter_dims"]
    _refused(model, tmp_path, "option inter_dims is missing.*early versions")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("inter_dims", 64, "inter_dims is 64, but decoder.npy is of inter_dims 32"),
        ("resolution", 128, "resolution is 128, but encoder.npy is of resolution 64"),
        ("ae_dims", 64, "ae_dims is 64, but encoder.npy is of ae_dims 32"),
    ],
)
def test_options_of_other_arrays_are_refused(
    model: LerasModel, tmp_path: Path, option: str, value: int, message: str
) -> None:
    model.options[option] = value
    _refused(model, tmp_path, message)


def test_a_missing_inter_network_is_refused(model: LerasModel, tmp_path: Path) -> None:
    """Another one would not do: encoder and decoder know just this one."""
    del model.networks["inter_dst"]
    _refused(model, tmp_path, r"demo_AMP_inter_dst\.npy: missing")


def test_unknown_and_legacy_options_are_said(model: LerasModel, tmp_path: Path) -> None:
    model.options |= {"eyes_prio": True, "a_forks": 3, "morph_factor": 0.7}
    lines: list[str] = []
    write_model(tmp_path / "other", model)
    convert(Conversion(tmp_path / "other", tmp_path / "run", lines.append), made_by="leras-amp")
    assert "option a_forks=3: unknown here; kept for the way back" in lines
    assert any(line.startswith("option morph_factor=0.7: unknown here; taken as 0.5") for line in lines)


def test_folders_of_other_kinds_say_so(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model")
    with pytest.raises(BadInput, match=r"holds no SAEHD model .*, but of AMP \(--from leras-amp\)"):
        convert(Conversion(folder, tmp_path / "run", _quiet), made_by="leras")
