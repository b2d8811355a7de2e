"""DeepFaceLab models made by rule, in the names and layouts of the recordings."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frugan.contract.family import Family
from frugan.faces.saehd.config import SAEHDNetworks
from frugan.faces.saehd.family import SAEHDFamily
from frugan.faces.saehd.leras_files import LerasModel, file_name, read_model, write_model
from frugan.families import family
from frugan.safe_pickle.reader import load_pickle
from frugan.safe_pickle.writer import dump_pickle
from parity.saehd import weights
from parity.saehd.golden import FOLDER, built, networks_of

OPTIONS: dict[str, Any] = read_model(FOLDER / "model_dir").options
NARROW: dict[str, Any] = {"ae_dims": 16, "e_dims": 4, "d_dims": 4, "d_mask_dims": 2, "gan_dims": 4, "face_type": "f"}
"""The recordings' sizes, which are smaller than a recipe may have without `allow_narrow`."""

NAME = "my face"
GROUPS = {"src_dst_opt": None, "D_code_opt": "code_discriminator", "GAN_opt": "patch_discriminator"}
FILES = {"patch_discriminator": "GAN"}


class NarrowNetworks(SAEHDNetworks):
    """Past the recipes' limits, as the recordings are."""

    ae_dims: int = 256
    e_dims: int = 64
    d_dims: int = 64
    d_mask_dims: int


class NarrowFamily(SAEHDFamily):
    """SAEHD with such networks."""

    networks_type = NarrowNetworks


def allow_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let recipes have networks as narrow as the recordings'."""

    def narrow_family(name: str) -> Family:
        return NarrowFamily() if name == "saehd" else family(name)

    monkeypatch.setattr("frugan.recipe.recipe.family", narrow_family)


@pytest.fixture(scope="module")
def narrow_faces() -> Iterator[None]:
    """Recipes may have networks as narrow as the recordings'."""
    with pytest.MonkeyPatch.context() as patch:
        allow_narrow(patch)
        yield


def model_of(*, discriminators: bool = True, seed: int = 5, **changed: Any) -> LerasModel:
    """A whole model: every network, and optimizers with statistics of their own.

    Args:
        discriminators: whether their files are there, whatever the options say.
        changed: options.
    """
    options = {**OPTIONS, **NARROW, **changed}
    every = built(networks_of(options), seed)
    networks = {name: net for name, net in every.items() if discriminators or not name.endswith("discriminator")}
    random = np.random.default_rng(seed)
    optimizers: dict[str, Any] = {}
    for file, only in GROUPS.items():
        moved = [only] if only else [name for name in networks if not name.endswith("discriminator")]
        if not networks.keys() >= set(moved):
            continue
        optimizers[file] = {"iters:0": np.int64(random.integers(1, 10**6))} | {
            weights.slot_key(slot, name, key): random.random(weights.to_file(parameter).shape, np.float32)
            for slot in (("ms", "vs") if options["adabelief"] else ("acc",))
            for name in moved
            for key, parameter in networks[name].named_parameters()
        }
    arrays = {
        FILES.get(name, name): {weights.file_key(key): weights.to_file(p) for key, p in net.named_parameters()}
        for name, net in networks.items()
    }
    history = [[3.0 / (i + 1), 2.5 / (i + 1)] for i in range(4)]
    return LerasModel(NAME, 1234, options, history, arrays, optimizers)


def write(folder: Path, model: LerasModel) -> Path:
    """Write a model and return its folder."""
    write_model(folder, model)
    return folder


def change(folder: Path, stem: str, arrays: Mapping[str, Any]) -> None:
    """Change arrays of a file of `model_of`; None takes one away."""
    path = folder / file_name(NAME, f"{stem}.npy")
    value = load_pickle(path.read_bytes(), stem) | arrays
    path.write_bytes(dump_pickle({key: array for key, array in value.items() if array is not None}))


def assert_same_model(model: LerasModel, expected: LerasModel) -> None:
    """Name, iteration, history and options equal; arrays bit for bit, under the same keys."""
    assert (model.name, model.iteration) == (expected.name, expected.iteration)
    assert model.loss_history == expected.loss_history
    assert model.options == expected.options
    for mine, other in ((model.networks, expected.networks), (model.optimizers, expected.optimizers)):
        assert mine.keys() == other.keys()
        for file, arrays in other.items():
            assert mine[file].keys() == arrays.keys(), file
            for key, array in arrays.items():
                assert mine[file][key].shape == array.shape, key
                assert mine[file][key].tobytes() == array.tobytes(), (file, key)
