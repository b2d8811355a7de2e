"""BigGAN-PyTorch's checkpoints that are hostile, damaged, of other contents, or of what is not built here."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from conversion.biggan_conversions import from_biggan_pytorch
from conversion.test_biggan_checkpoints import FILES, GOLDEN, changed_state, copied, loaded
from frugan.errors import BadInput
from frugan.progress import quiet


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm_style": "in"}, r"state_dict\.pth: option norm_style 'in'.*expected bn$"),
        ({"G_batch_size": 4}, r"option G_batch_size 4.*; weights to draw with or to fine-tune"),
        ({"D_fp16": True}, r"option D_fp16 True"),
        ({"resolution": 48}, r"state_dict\.pth:\nnetworks: resolution 48"),
        ({"resolution": 64}, r"G\.pth: not the network that its options stand for:\n  blocks\.3\.0\.bn1"),
        ({"G_ch": 8}, r"G\.pth: these weights are of another network than the recipe's"),
        ({"hier": False}, r"another network"),
    ],
)
def test_options_that_are_not_supported_or_do_not_fit(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    source = copied(tmp_path)
    changed_state(source, **options)
    with pytest.raises(BadInput, match=message):
        from_biggan_pytorch(source, tmp_path / "run", say=quiet)
    assert not (tmp_path / "run").exists()
    if "G_batch_size" in options or "D_fp16" in options:
        from_biggan_pytorch(source, tmp_path / "weights.safetensors", say=quiet)


class Hostile:
    """Pickled, it asks for a folder to be made."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("was-run",)


@pytest.mark.parametrize("name", FILES)
def test_hostile_and_damaged_files(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = copied(tmp_path)
    content = loaded(source / f"{name}.pth")
    content[next(iter(content))] = Hostile()
    torch.save(content, source / f"{name}.pth")
    with pytest.raises(BadInput, match=rf"{name}\.pth: refers to .*mkdir"):
        from_biggan_pytorch(source, tmp_path / "run", say=quiet)
    data = (GOLDEN / f"{name}.pth").read_bytes()
    (source / f"{name}.pth").write_bytes(data[: len(data) // 2])
    with pytest.raises(BadInput, match=rf"{name}\.pth: is damaged or cut off"):
        from_biggan_pytorch(source, tmp_path / "run", say=quiet)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def _renamed(states: Any) -> Any:
    return {key.replace("0.0.conv1.weight", "0.0.conv9.weight"): value for key, value in states.items()}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("G", _renamed, r"G\.pth: not the .*\n  blocks\.0\.0\.conv1\.weight: not there\n.*conv9\.weight: unknown here"),
        ("D", lambda states: [1, 2], r"D\.pth: holds no state dict"),
        ("D", lambda states: {}, r"D\.pth: holds no state dict"),
        ("G", lambda states: {1: torch.ones(1)}, r"G\.pth: holds tensors without names"),
        ("G_optim", lambda state: state | {"param_groups": []}, "no optimizer state with one group"),
        ("G_optim", lambda state: loaded(GOLDEN / "D_optim.pth"), "is of 23 parameters; the network beside it has 37"),
        ("G_optim", lambda state: state | {"state": {99: {}}}, "parameters that it does not list: 99"),
        ("G_optim", lambda state: state | {"state": {0: {"step": 1}}}, "exp_avg of shared.weight is missing"),
        ("G_optim", lambda state: state | {"state": {0: {}}}, "shared.weight has no count of steps"),
        (
            "D_optim",
            lambda state: state | {"param_groups": [state["param_groups"][0] | {"weight_decay": 0.1}]},
            "weight_decay and amsgrad have no recipe field",
        ),
        ("state_dict", lambda state: state | {"itr": -1}, "itr is -1; expected iterations"),
        ("state_dict", lambda state: {"itr": 4}, r"holds no options \(config\)"),
    ],
)
def test_files_of_other_contents(tmp_path: Path, name: str, change: Any, message: str) -> None:
    source = copied(tmp_path)
    torch.save(change(loaded(source / f"{name}.pth")), source / f"{name}.pth")
    with pytest.raises(BadInput, match=message):
        from_biggan_pytorch(source, tmp_path / "run", say=quiet)
    assert not (tmp_path / "run").exists()


def test_a_file_in_place_of_its_folder() -> None:
    with pytest.raises(BadInput, match=r"G\.pth: a file; expected the folder of an experiment"):
        from_biggan_pytorch(GOLDEN / "G.pth", Path("out"), say=quiet)
