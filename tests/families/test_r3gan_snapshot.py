"""Snapshots of the R3GAN program: read, made runs of, and refused."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from frugan.conversion.convert import from_r3gan_pickle
from frugan.engine.run.checkpoint import newest_whole
from frugan.errors import BadInput
from frugan.families.r3gan.config import R3GANNetworks
from frugan.families.r3gan.snapshot import Module, Network, name_table, network_settings, read_snapshot
from frugan.setup.networks import load

GOLDEN = Path(__file__).parents[1] / "golden" / "r3gan" / "snapshot"
NOW, BEFORE = GOLDEN / "network-snapshot-000000000.pkl", GOLDEN / "network-snapshot-old-names.pkl"
EXPECTED = load_file(GOLDEN / "expected.safetensors")


def quiet(_: str) -> None:
    return


def expected(what: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{what}."): value for key, value in EXPECTED.items() if key.startswith(f"{what}.")}


@pytest.mark.parametrize("path", [NOW, BEFORE], ids=["present names", "earlier names"])
def test_tensors_and_their_order(path: Path) -> None:
    snapshot, order = read_snapshot(path), json.loads((GOLDEN / "expected.json").read_text())["parameter_order"]
    for name, module in snapshot.networks.items():
        tensors, parameters = module.tensors()
        reference = expected(name)
        assert tensors.keys() == reference.keys()
        assert all(torch.equal(torch.from_numpy(tensors[key]), value) for key, value in reference.items())
        assert parameters == order[name[0]]
    assert (snapshot.images, len(snapshot.optimizers)) == ((16, 2) if path == NOW else (None, 0))


def test_a_file_draws_the_program_s_pictures(tmp_path: Path) -> None:
    for path in (NOW, BEFORE):
        out = tmp_path / f"{path.stem}.safetensors"
        made = from_r3gan_pickle(path, out, say=quiet)
        assert made.networks == ("G", "D", "G_ema")
        generator = load(out)["G"]
        classes = EXPECTED["check.c"].argmax(1)
        with torch.no_grad():
            pictures = generator(EXPECTED["check.z"], classes)
        assert float((pictures - EXPECTED["check.G_ema_img_fp32"]).abs().max()) <= 1e-5


def test_a_run_goes_on(tmp_path: Path) -> None:
    """With averages and Adam's states; steps by the batch that is given."""
    words = ["training.batch=8", "training.duration=10 steps"]
    made = from_r3gan_pickle(NOW, tmp_path / "run", overrides=words, say=quiet)
    assert made.step == 2
    newest = newest_whole(tmp_path / "run" / "checkpoints")
    assert newest is not None
    checkpoint, _, _ = newest
    optimizers = load_file(checkpoint.path / "optimizers.safetensors")
    networks = R3GANNetworks.model_validate(network_settings(*_both(NOW)))
    for name in ("G", "D"):
        network: Network = name
        states = expected(f"{name}_opt")
        assert states
        for key, value in states.items():
            theirs, _, slot = key.rpartition(".")
            (own,) = name_table(networks, network).to_ours({theirs: value}).tensors
            assert torch.equal(optimizers[f"{name}/{name}.{own}/{slot}"], value)


def _both(path: Path) -> tuple[Module, Module]:
    networks = read_snapshot(path).networks
    return networks["G"], networks["D"]


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    from_r3gan_pickle(BEFORE, tmp_path / "run", say=said.append)
    assert any("does not say how many pictures" in line for line in said)
    assert any("no state of G's optimizer" in line for line in said)


# Refused.


class Runs:
    """Pickled as a call of what a module offers."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __reduce__(self) -> Any:
        import importlib  # noqa: PLC0415

        return getattr(importlib.import_module(self.module), self.name), ("true",)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (pickle.dumps({"G": Runs("os", "system")}), "could run a program"),
        (pickle.dumps({"G": 1}), "holds no networks"),
        (NOW.read_bytes()[:60_000], "damaged or cut off"),
        (b"PK\x03\x04", "a file of torch.save or a zip"),
    ],
)
def test_hostile_and_damaged_files(data: bytes, said: str, tmp_path: Path) -> None:
    path, out = tmp_path / "network-snapshot.pkl", tmp_path / "out.safetensors"
    path.write_bytes(data)
    with pytest.raises(BadInput) as refused:
        from_r3gan_pickle(path, out, say=quiet)
    assert said in str(refused.value)
    assert not out.exists()


def changed(what: str) -> tuple[Module, Module]:
    """A snapshot's generator and discriminator, with something wrong in the latter."""
    generator, discriminator = _both(NOW)
    modules = dict(discriminator.modules())
    if what == "classes":
        del modules["Model."].state["_modules"]["EmbeddingLayer"]
    elif what == "stages":
        del modules["Model.MainLayers."].state["_modules"]["0"]
    elif what == "tensor":
        modules["Model.ExtractionLayer.Layer."].state["_parameters"]["weight"] = "no tensor"
    elif what == "endless":
        modules["Model."].state["_modules"]["again"] = discriminator
    else:
        weight = modules["Model.MainLayers.1.Layers.0.LinearLayer1.Layer."].state["_parameters"]
        weight["weight"] = np.zeros((7, 8, 1, 1), np.float32)
    return generator, discriminator


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("classes", "of other classes than its generator"),
        ("stages", "has no stages of residual blocks"),
        ("tensor", "a parameter that is no tensor"),
        ("endless", "without end"),
        ("widths", "no residual block of R3GAN"),
    ],
)
def test_other_networks(what: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        network_settings(*changed(what))
    assert said in str(refused.value)


def test_networks_that_no_recipe_can_describe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = network_settings(*_both(NOW)) | {"channels": 4}
    monkeypatch.setattr("frugan.families.r3gan.snapshot.network_settings", lambda *_: found)
    with pytest.raises(BadInput, match="channels"):
        from_r3gan_pickle(NOW, tmp_path / "out.safetensors", say=quiet)


def test_another_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugan.families.r3gan.snapshot.fir_filter", lambda: torch.ones(4, 4) / 16)
    with pytest.raises(BadInput, match="another filter"):
        from_r3gan_pickle(NOW, tmp_path / "out.safetensors", say=quiet)
