"""Snapshots are read number for number, and nothing in them does anything."""

import pickle
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from families.snapshots import GOLDEN, SCRUBBED, Persistent, module, write, write_snapshot
from frugan.errors import BadInput
from frugan.families.stylegan2.family import StyleGAN2Family
from frugan.families.stylegan2.snapshot import group_size, network_settings
from frugan.families.stylegan2.snapshot_modules import read_snapshot


def test_every_number_of_the_releases_file() -> None:
    """The text in the file raises an error where it is run."""
    expected = load_file(GOLDEN / "expected_tensors.safetensors")
    arrays = {
        f"{name}.{key}": array
        for name, network in read_snapshot(SCRUBBED).items()
        for key, array in network.tensors().items()
    }
    assert arrays.keys() == expected.keys()
    assert len(arrays) == 162
    for key, array in expected.items():
        assert arrays[key].dtype == array.dtype
        assert np.array_equal(arrays[key], array), key


def test_settings_of_the_releases_file() -> None:
    snapshot = read_snapshot(SCRUBBED)
    assert group_size(snapshot["D"]) == 4
    assert network_settings(snapshot["G_ema"], snapshot["D"]) == {
        "resolution": 16,
        "channels": 3,
        "classes": 2,
        "latent_size": 12,
        "style_size": 16,
        "mapping_layers": 2,
        "mean_style_decay": 0.995,
        "channel_base": 128,
        "channel_max": 12,
        "generator_architecture": "skip",
        "half_resolutions": 2,
        "convolution_clamp": 256.0,
        "discriminator_architecture": "resnet",
        "minibatch_std_channels": 1,
    }


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("changes", [{}, {"classes": None, "convolution_clamp": None, "half_resolutions": 0}])
def test_snapshots_of_any_protocol(tmp_path: Path, protocol: int, changes: dict[str, Any]) -> None:
    family = StyleGAN2Family()
    config = family.tiny()[0].model_copy(update=changes)
    built = family.build(config)
    snapshot = read_snapshot(write_snapshot(tmp_path / "s.pkl", config, built, protocol))
    for name, network in {**built, "G_ema": built["G"]}.items():
        state = network.state_dict()
        arrays = snapshot[name].tensors()
        assert arrays.keys() == state.keys()
        assert all(np.array_equal(arrays[key], value.numpy()) for key, value in state.items())
    settings = network_settings(snapshot["G_ema"], snapshot["D"])
    assert settings.items() <= config.model_dump().items()


def test_cut_anywhere(tmp_path: Path) -> None:
    whole, cut = SCRUBBED.read_bytes(), tmp_path / "cut.pkl"
    random = Random(0)
    for length in [0, 1, 2, len(whole) - 1, *(random.randrange(len(whole)) for _ in range(8))]:
        cut.write_bytes(whole[:length])
        with pytest.raises(BadInput, match=r"cut\.pkl: is damaged or cut off"):
            read_snapshot(cut)


def test_nothing_but_bad_input_comes_of_damage(tmp_path: Path) -> None:
    whole, path, refused = SCRUBBED.read_bytes(), tmp_path / "damaged.pkl", 0
    random = Random(1)
    for _ in range(30):
        damaged = bytearray(whole)
        for _ in range(20):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        path.write_bytes(bytes(damaged))
        try:
            read_snapshot(path)
        except BadInput:
            refused += 1
    assert refused > 10


class Call:
    """Pickled, it makes a reader call something."""

    def __init__(self, what: Any, *arguments: Any) -> None:
        self.call = what, arguments

    def __reduce__(self) -> Any:
        return self.call


def _hostile(made: Path) -> dict[str, Any]:
    call = Call(Path.mkdir, made)
    return {
        "beside": {"G_ema": module("Generator"), "extra": call},
        "in a network": {"G_ema": module("Generator", {"z_dim": call})},
        "as the type": {"G_ema": module("Generator", type=call)},
        "as its text": {"G_ema": module("Generator", module_src=call)},
        "eval": {"G_ema": Call(eval, "1/0")},
        "getattr": {"G_ema": Call(getattr, "", "join")},
        "torch.load": {"G_ema": Call(torch.load, "x")},
    }


@pytest.mark.parametrize("where", list(_hostile(Path())))
def test_calls_are_refused_by_name_and_not_made(tmp_path: Path, where: str) -> None:
    made = tmp_path / "made"
    path = write(tmp_path / "hostile.pkl", _hostile(made)[where])
    with pytest.raises(BadInput, match=r"hostile\.pkl: refers to '.*', which could run a program.* It was not run"):
        read_snapshot(path)
    assert not made.exists()


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        ({}, "holds no networks"),
        ({"G": {"a": 1}}, "holds no networks"),
        ({"G": module("Generator", type="function")}, "damaged"),
        ({"G": module("Generator", state=[1])}, "damaged"),
        ({"G": module("Generator", {"_parameters": {"weight": 7}})}, "parameter that is no tensor"),
        ({"G": module("Generator", {"_modules": {"mapping": {"a": 1}}})}, "layer of an unknown kind"),
        ({"G": module("Generator", {"_non_persistent_buffers_set": [1]})}, "damaged"),
    ],
    ids=range(7),
)
def test_what_is_no_snapshot(tmp_path: Path, networks: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_snapshot(write(tmp_path / "s.pkl", networks))


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        read_snapshot(tmp_path / "none.pkl")
    torch.save({"G": torch.zeros(3)}, tmp_path / "saved.pt")
    with pytest.raises(BadInput, match=r"a file of torch\.save or a zip"):
        read_snapshot(tmp_path / "saved.pt")
    (tmp_path / "tf.pkl").write_bytes(b"\x80\x04cdnnlib.tflib.network\nNetwork\n)\x81.")
    with pytest.raises(BadInput, match=r"TensorFlow programs of StyleGAN; convert it first"):
        read_snapshot(tmp_path / "tf.pkl")
    (tmp_path / "new.pkl").write_bytes(b"\x80\x09N.")
    with pytest.raises(BadInput, match="pickle of protocol 9"):
        read_snapshot(tmp_path / "new.pkl")


def test_modules_within_modules_without_end(tmp_path: Path) -> None:
    """Each holds the one before it twice: 2^40 modules in a few kilobytes."""
    inner: Persistent = module("Layer", {"_parameters": {"weight": torch.zeros(1)}})
    for depth in range(40):
        inner = module("Layer", {"_modules": {"a": inner, "b": inner}})
        if depth == 10:
            few = read_snapshot(write(tmp_path / "few.pkl", {"G": inner}))["G"]
            assert len(few.tensors()) == 2**11
    network = read_snapshot(write(tmp_path / "many.pkl", {"G": inner}))["G"]
    with pytest.raises(BadInput, match="modules within modules without end"):
        network.tensors()


def test_networks_of_other_programs(tmp_path: Path) -> None:
    def settings(generator: Persistent, judge: Persistent | None = None) -> dict[str, Any]:
        networks = {"G_ema": generator} | ({"D": judge} if judge else {})
        snapshot = read_snapshot(write(tmp_path / "s.pkl", networks))
        return network_settings(snapshot["G_ema"], snapshot.get("D"))

    with pytest.raises(BadInput, match="holds a 'ResNet' where a Generator is expected"):
        settings(module("ResNet"))
    with pytest.raises(BadInput, match="has no part 'mapping'"):
        settings(module("Generator"))
    three = module("SynthesisNetwork", {"_modules": {"input": module("SynthesisInput")}})
    with pytest.raises(BadInput, match="StyleGAN3's"):
        settings(module("Generator", {"_modules": {"mapping": module("MappingNetwork"), "synthesis": three}}))
    two = module("SynthesisNetwork", {"img_resolution": 10**30})
    with pytest.raises(BadInput, match=r"pixels a side; expected a power of two"):
        settings(module("Generator", {"_modules": {"mapping": module("MappingNetwork"), "synthesis": two}}))


def test_pickles_of_pickles_are_no_way_around(tmp_path: Path) -> None:
    """A tensor holds a second pickle, for which PyTorch runs an unrestricted reader."""
    made = tmp_path / "made"
    inner = pickle.dumps(Call(Path.mkdir, made))
    data = (
        b"\x80\x04}\x8c\x01Gctorch.storage\n_load_from_bytes\nB" + len(inner).to_bytes(4, "little") + inner + b"\x85Rs."
    )
    (tmp_path / "s.pkl").write_bytes(data)
    with pytest.raises(BadInput, match="which could run a program"):
        read_snapshot(tmp_path / "s.pkl")
    assert not made.exists()
