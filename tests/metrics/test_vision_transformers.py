"""Vision transformers as feature networks: how pictures come to them, and what their files may hold."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from frugan.errors import BadInput
from frugan.metrics.public_weights import MissingWeights
from frugan.metrics.vision_transformers import CLIP, DINOV2, Transformer, load_transformer, prepared

CPU = torch.device("cpu")
TINY = Transformer("dinov2", 14, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), 12, "tiny")


@pytest.mark.parametrize("of", [DINOV2, CLIP])
@pytest.mark.parametrize("side", [64, 500])
def test_pictures_are_resized_as_pillow_does(of: Transformer, side: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    resized = Image.fromarray(noise).resize((of.side, of.side), Image.Resampling.BICUBIC)
    expected = torch.from_numpy(np.asarray(resized).copy()).permute(2, 0, 1).float()
    found = prepared(of, torch.from_numpy(noise).permute(2, 0, 1)[None])[0]
    assert found.shape == (3, of.side, of.side)
    means, deviations = (torch.tensor(each)[:, None, None] for each in (of.means, of.deviations))
    apart = ((found * deviations + means) * 255 - expected).abs()
    assert apart.max() <= 2.01  # of white noise; where rounding falls on the other side
    assert apart.mean() < 0.02


def test_a_picture_of_its_own_size_is_left_as_it_is() -> None:
    picture = torch.randint(256, (1, 3, 14, 14), dtype=torch.uint8)
    assert torch.equal(prepared(TINY, picture), (picture.float() / 255 - 0.5) / 0.25)


class Quarters(nn.Module):
    """A network of twelve features."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_torchscript_file_gets_normalised_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "network.pt"
    torch.jit.script(Quarters()).save(str(file))
    monkeypatch.setenv("FRUGAN_DINOV2", str(file))
    network = load_transformer(TINY, None, CPU)
    grey = torch.randint(256, (2, 1, 28, 28), dtype=torch.uint8)
    features = network(grey)
    assert torch.equal(features.pooled, Quarters()(prepared(TINY, grey.expand(-1, 3, -1, -1))))
    assert features.logits is None
    assert (network.name, network.resizer, len(network.digest)) == ("dinov2", "bicubic with antialiasing to 14", 64)
    network.to(CPU)  # between scores it is not on the card
    assert torch.equal(network(grey).pooled, features.pooled)
    with pytest.raises(BadInput, match=r"gave \[2, 12\] for 2 pictures of 14 pixels; expected \[2, 1024\]"):
        load_transformer(replace(TINY, features=1024), file, CPU)(grey)


def test_weights_go_into_timms_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As tensors that are read here: timm opens no file."""
    asked: dict[str, Any] = {}

    def create_model(name: str, **how: Any) -> nn.Module:
        asked.update(how, name=name)
        if "wrong" in how["pretrained_cfg_overlay"]["state_dict"]:
            raise RuntimeError("Error(s) in loading state_dict\nand more")
        return Quarters()

    timm = ModuleType("timm")
    vars(timm)["create_model"] = create_model
    monkeypatch.setitem(sys.modules, "timm", timm)
    weights = {"cls_token": torch.ones(1, 1, 4)}
    save_file(weights, tmp_path / "model.safetensors")
    torch.save(weights, tmp_path / "model.pth")
    for name in ("model.safetensors", "model.pth"):
        network = load_transformer(TINY, tmp_path / name, CPU)
        assert network(torch.zeros(2, 3, 20, 20, dtype=torch.uint8)).pooled.shape == (2, 12)
        assert (asked["name"], asked["img_size"], asked["pretrained"]) == ("tiny", 14, True)
        assert torch.equal(asked["pretrained_cfg_overlay"]["state_dict"]["cls_token"], weights["cls_token"])
    torch.save({"wrong": torch.ones(1)}, tmp_path / "wrong.pth")
    with pytest.raises(BadInput, match=r"holds no weights of timm's tiny \(Error\(s\) in loading state_dict\)"):
        load_transformer(TINY, tmp_path / "wrong.pth", CPU)


def test_files_that_are_missing_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRUGAN_DINOV2", raising=False)
    with pytest.raises(MissingWeights, match=r"no file of dinov2's weights is named\. Name one with --network-file or"):
        load_transformer(DINOV2, None, CPU)
    with pytest.raises(MissingWeights, match=r"absent: no such file\. .* timm's vit_large_patch14_dinov2.lvd142m"):
        load_transformer(DINOV2, tmp_path / "absent", CPU)
    for name in ("model.safetensors", "model.pth"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(BadInput, match="or a damaged one"):
            load_transformer(DINOV2, tmp_path / name, CPU)
    monkeypatch.setitem(sys.modules, "timm", None)
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(BadInput, match=r"comes from timm, which does not load .*: pip install timm; or give a"):
        load_transformer(DINOV2, tmp_path / "model.safetensors", CPU)
