"""Snapshots of StyleGAN2's authors become weights that draw the same pictures, and go back under the same names."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

import frugan
from families.snapshots import GOLDEN, SCRUBBED, module, write, write_snapshot
from frugan.contract.family import GridRequest
from frugan.conversion.convert import from_stylegan_pickle, to_stylegan_safetensors
from frugan.engine.state.working_weights import prepared
from frugan.errors import BadInput
from frugan.families.stylegan2.config import StyleGAN2Networks
from frugan.families.stylegan2.snapshot import constructor_arguments
from frugan.recipe.loading import load_recipe
from frugan.sampling.sampling import sample
from frugan.setup.networks import Weights
from frugan.training.training import train
from parity.stylegan2.golden import load
from training.pictures import write_pictures, write_recipe
from training.test_training import CPU


def test_a_converted_snapshot_draws_the_releases_pictures(tmp_path: Path, bf16_units: Callable[[bool], None]) -> None:
    """Of recorded networks, with recorded latents: through a snapshot, the converter and a weights file, in fp32."""
    bf16_units(False)
    case = load("res32")
    built = case.build()
    source = write_snapshot(tmp_path / "s.pkl", case.networks, built)
    from_stylegan_pickle(source, tmp_path / "converted.safetensors", say=lambda _: None)
    generator = frugan.load(tmp_path / "converted.safetensors")["G"]
    with torch.no_grad():
        drawn = generator(case.io("z"))
        near = generator(case.io("z"), psi=0.7)
    torch.testing.assert_close(drawn, case.io("img"), rtol=0, atol=1e-4)
    torch.testing.assert_close(near[:2], case.io("img_psi0.7"), rtol=0, atol=1e-4)
    seed = torch.from_numpy(np.random.RandomState(42).randn(1, case.networks.latent_size)).float()
    with torch.no_grad(), prepared(built["G"]):
        expected = built["G"](seed)[0].clamp(-1, 1)  # [C, R, R]
    request = GridRequest(seeds=(42,))
    sample(tmp_path / "converted.safetensors", tmp_path / "sheets", request, device="cpu", say=lambda _: None)
    with Image.open(tmp_path / "sheets" / "seed0042.png") as picture:
        drawn_seed = torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)
    assert (drawn_seed - (expected + 1) * 127.5).abs().max() < 0.6  # rounded


def test_the_releases_own_file_number_for_number(tmp_path: Path, said: list[str]) -> None:
    expected = load_file(GOLDEN / "expected_tensors.safetensors")
    made = from_stylegan_pickle(SCRUBBED, tmp_path / "folder", say=said.append)
    assert said == [f"StyleGAN2 at 16 pixels, imported; G, D, G_ema from {SCRUBBED}"]
    assert made.networks == ("G", "D", "G_ema")
    trained, averaged = (load_file(tmp_path / "folder" / f"{name}.safetensors") for name in ("networks", "ema"))
    assert {k: v for k, v in expected.items() if not k.startswith("G_ema.")}.keys() == trained.keys()
    assert all(torch.equal(value, expected[key]) for key, value in trained.items())
    assert {f"G_ema.{key[2:]}" for key in averaged} == {key for key in expected if key.startswith("G_ema.")}
    assert all(torch.equal(value, expected[f"G_ema.{key[2:]}"]) for key, value in averaged.items())
    recipe = load_recipe(str(tmp_path / "folder" / "recipe.toml"))
    assert recipe == made.recipe == Weights.open(tmp_path / "folder" / "ema.safetensors").recipe
    # a file alone has the average for its generator
    from_stylegan_pickle(SCRUBBED, tmp_path / "one.safetensors", say=said.append)
    one = load_file(tmp_path / "one.safetensors")
    assert one.keys() == trained.keys()
    assert all(torch.equal(value, averaged.get(key, trained[key])) for key, value in one.items())


def test_grids_of_a_converted_snapshot(tmp_path: Path) -> None:
    for out in ("one.safetensors", "folder"):
        from_stylegan_pickle(SCRUBBED, tmp_path / out, say=lambda _: None)
        request = GridRequest(classes=(1, 0), columns=2, psi=0.5)
        sample(tmp_path / out, tmp_path / f"{out}-sheets", request, device="cpu", say=lambda _: None)
    grids = [Image.open(tmp_path / f"{out}-sheets" / "samples.png") for out in ("one.safetensors", "folder")]
    assert grids[0].tobytes() == grids[1].tobytes()
    assert np.asarray(grids[0]).std() > 10


def test_what_our_recipes_change_is_told_to_the_authors_classes() -> None:
    networks = load_recipe("stylegan2-digits-32").networks
    assert isinstance(networks, StyleGAN2Networks)
    made_with = constructor_arguments(networks, group=4)
    assert made_with["G_ema"]["mapping_kwargs"] == {"num_layers": networks.mapping_layers, "lr_multiplier": 0.3}
    assert made_with["D"]["mapping_kwargs"] == {"num_layers": 1, "lr_multiplier": 0.3}


def test_back_under_the_authors_names(tmp_path: Path, said: list[str]) -> None:
    from_stylegan_pickle(SCRUBBED, tmp_path / "folder", say=lambda _: None)
    made = to_stylegan_safetensors(tmp_path / "folder", tmp_path / "states.safetensors", say=lambda _: None)
    assert sorted(made.networks) == ["D", "G", "G_ema"]
    expected, tensors = load_file(GOLDEN / "expected_tensors.safetensors"), load_file(made.path)
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[key], value) for key, value in expected.items())
    with safe_open(made.path, "pt") as file:
        made_with = json.loads(file.metadata()["init_kwargs"])
    assert made_with["G_ema"] == {
        "z_dim": 12,
        "c_dim": 2,
        "w_dim": 16,
        "img_resolution": 16,
        "img_channels": 3,
        "mapping_kwargs": {"num_layers": 2},
        "synthesis_kwargs": {
            "channel_base": 128,
            "channel_max": 12,
            "num_fp16_res": 2,
            "conv_clamp": 256,
            "architecture": "skip",
        },
    }
    with pytest.raises(BadInput, match="is there already"):
        to_stylegan_safetensors(tmp_path / "folder", made.path)
    from_stylegan_pickle(SCRUBBED, tmp_path / "one.safetensors", say=lambda _: None)
    to_stylegan_safetensors(tmp_path / "one.safetensors", made.path, replace=True, say=said.append)
    assert said == [f"{tmp_path / 'one.safetensors'}: has one generator, which is written as G and as G_ema"]
    with pytest.raises(BadInput, match=r"a name that ends in \.safetensors"):
        to_stylegan_safetensors(tmp_path / "folder", tmp_path / "states.pkl")


@pytest.mark.long
def test_another_familys_weights_are_not_written_back(tmp_path: Path) -> None:
    train(write_recipe(tmp_path), write_pictures(tmp_path / "pictures"), tmp_path / "run", options=CPU)
    with pytest.raises(BadInput, match="weights of BigGAN, and this format holds those of StyleGAN2 alone"):
        to_stylegan_safetensors(tmp_path / "run", tmp_path / "states.safetensors", say=lambda _: None)


def test_snapshots_that_cannot_be_converted_leave_nothing(tmp_path: Path) -> None:
    case = load("res32")
    built = case.build()
    built["G"].get_submodule("synthesis.b8.conv0").weight = torch.nn.Parameter(torch.zeros(3, 3, 3, 3))
    wrong = write_snapshot(tmp_path / "wrong.pkl", case.networks, built)
    hostile = write(tmp_path / "none.pkl", {"D": module("Discriminator")})
    out = tmp_path / "out"
    for source, message in (
        (wrong, r"wrong\.pkl: G: these weights are of another network.*\n.*synthesis\.b8\.conv0\.weight"),
        (hostile, "holds no generator"),
        (tmp_path / "nothing.pkl", "no such file"),
    ):
        with pytest.raises(BadInput, match=message):
            from_stylegan_pickle(source, out)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["none.pkl", "wrong.pkl"]
    out.mkdir()
    with pytest.raises(BadInput, match="is there already"):
        from_stylegan_pickle(SCRUBBED, out)


def test_a_snapshot_of_a_generator_alone(tmp_path: Path, said: list[str]) -> None:
    """As some are handed on; the discriminator would be trained anew."""
    case = load("res32")
    source = write_snapshot(tmp_path / "s.pkl", case.networks, case.build(), alone=True)
    made = from_stylegan_pickle(source, tmp_path / "one.safetensors", say=said.append)
    assert made.networks == ("G_ema",)
    assert "the snapshot has no D: in training it starts afresh" in said
    assert set(frugan.load(made.path)) == {"G"}
