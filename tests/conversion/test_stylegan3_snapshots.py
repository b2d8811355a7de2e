"""Snapshots of StyleGAN3's authors become weights that draw the same pictures, and go back under the same names."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import frugan
from families.snapshots import EasyDict, persistent, settings_of, write
from frugan.contract.family import GridRequest
from frugan.conversion.convert import from_stylegan_pickle, to_stylegan_safetensors
from frugan.engine.state.working_weights import prepared
from frugan.errors import BadInput
from frugan.families.stylegan2.family import StyleGAN2Family
from frugan.families.stylegan3.config import StyleGAN3Networks
from frugan.families.stylegan3.family import StyleGAN3Family
from frugan.families.stylegan3.snapshot import generator_limits
from frugan.recipe.loading import load_recipe
from frugan.sampling.sampling import sample
from parity.stylegan3.golden import CASES, Case, load


def built_of(case: Case) -> dict[str, nn.Module]:
    built = StyleGAN3Family().build(case.networks)
    built["G"].load_state_dict(case.state)
    return built


def write_snapshot(
    path: Path, config: StyleGAN3Networks, built: Mapping[str, nn.Module], changes: Mapping[str, Any] | None = None
) -> Path:
    """Write a snapshot as the program would; `changes` are of the synthesis network's attributes."""
    pictures = {"img_resolution": config.resolution, "img_channels": config.channels, "c_dim": config.classes or 0}
    fixed = {"num_critical": 2, "margin_size": 10, "output_scale": 0.25}
    generator: dict[str, dict[str, Any]] = {
        "": {"z_dim": config.latent_size, "w_dim": config.style_size, **pictures},
        "mapping": {"num_layers": config.mapping_layers, "w_avg_beta": config.mean_style_decay},
        "synthesis": {**pictures, **fixed, "num_fp16_res": config.half_resolutions, **(changes or {})},
    }
    for shape in config.layer_shapes:
        generator[f"synthesis.{shape.name}"] = {
            "conv_clamp": 256,
            "magnitude_ema_beta": config.magnitude_decay,
            "up_factor": shape.up,
        }
    judge: dict[str, dict[str, Any]] = {"": pictures, "b4.mbstd": {"group_size": 4, "num_channels": 1}}
    judge |= {f"b{side}": {"architecture": config.discriminator_architecture} for side in config.sides}
    drawn = persistent(built["G"], "Generator", generator)
    return write(path, {"G": drawn, "D": persistent(built["D"], "Discriminator", judge), "G_ema": drawn})


@pytest.mark.parametrize("name", CASES)
def test_a_converted_snapshot_draws_the_releases_pictures(
    name: str, tmp_path: Path, bf16_units: Callable[[bool], None], said: list[str]
) -> None:
    """Of recorded networks: number for number, the recorded pictures, and seed 42 as the authors draw it."""
    bf16_units(False)
    case = load(name)
    built = built_of(case)
    source = write_snapshot(tmp_path / "s.pkl", case.networks, built)
    from_stylegan_pickle(source, tmp_path / "converted.safetensors", say=said.append)
    assert said == [f"StyleGAN3 at {case.networks.resolution} pixels, imported; G, D, G_ema from {source}"]
    tensors = load_file(tmp_path / "converted.safetensors")
    assert all(torch.equal(tensors[f"G.{key}"], value) for key, value in case.state.items())
    generator = frugan.load(tmp_path / "converted.safetensors")["G"]
    with torch.no_grad():
        drawn = generator(case.io("z"), case.classes)
    torch.testing.assert_close(drawn, case.io("img"), rtol=0, atol=1e-4)
    seed = torch.from_numpy(np.random.RandomState(42).randn(1, case.networks.latent_size)).float()
    with torch.no_grad(), prepared(built["G"]):
        label = None if case.networks.classes is None else torch.tensor([1])
        expected = built["G"](seed, label)[0].clamp(-1, 1)  # [C, R, R]
    request = GridRequest(seeds=(42,), classes=None if label is None else (1,))
    sample(tmp_path / "converted.safetensors", tmp_path / "sheets", request, device="cpu", say=lambda _: None)
    (file,) = (tmp_path / "sheets").glob("seed0042*.png")
    with Image.open(file) as picture:
        drawn_seed = torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)
    assert (drawn_seed - (expected + 1) * 127.5).abs().max() < 0.6  # rounded


@pytest.mark.parametrize("name", CASES)
def test_a_folder_has_a_recipe_to_fine_tune_by(name: str, tmp_path: Path) -> None:
    case = load(name)
    config = case.networks
    source = write_snapshot(tmp_path / "s.pkl", config, built_of(case))
    from_stylegan_pickle(source, tmp_path / "folder", say=lambda _: None)
    recipe = load_recipe(str(tmp_path / "folder" / "recipe.toml"))
    found = recipe.networks
    assert isinstance(found, StyleGAN3Networks)
    assert found.layer_shapes == config.layer_shapes
    limits = ("generator_channel_base", "generator_channel_max")
    assert [getattr(found, key) for key in limits] == [case.arguments["channel_base"], case.arguments["channel_max"]]
    others = config.model_dump(exclude={"class_layers", "mapping_rate", "channel_base", "channel_max"})
    assert others.items() <= found.model_dump().items()
    objective = recipe.objective.model_dump()
    assert (objective["r1_gamma"], objective["blur"]) == (round(2 * (config.resolution / 256) ** 2, 6), 0)
    rates = {key: settings.learning_rate for key, settings in recipe.optimizers.items()}
    assert rates == {"G": 0.0025, "D": 0.002}


def test_the_programs_stylegan2_is_one(tmp_path: Path, said: list[str]) -> None:
    """Its mean style moves more slowly, and its blocks' arguments stand beside the generator's own."""
    tiny, _ = StyleGAN2Family().tiny()
    config = tiny.model_copy(update={"mapping_layers": 8})
    built = StyleGAN2Family().build(config)
    StyleGAN2Family().initialise(config, built, lambda name: 4)
    built["G"].get_submodule("mapping").get_buffer("w_avg").copy_(torch.linspace(-1, 1, config.style_size))
    generator, discriminator = settings_of(config)
    generator["mapping"]["w_avg_beta"] = 0.998
    flat = {"channel_base": config.channel_base, "num_fp16_res": 1, "fused_modconv_default": "inference_only"}
    generator[""]["_init_kwargs"] = EasyDict(z_dim=config.latent_size, mapping_kwargs=EasyDict(num_layers=8), **flat)
    for side in config.sides:
        generator[f"synthesis.b{side}"]["fused_modconv_default"] = "inference_only"
    drawn = persistent(built["G"], "Generator", generator)
    judge = persistent(built["D"], "Discriminator", discriminator)
    source = write(tmp_path / "s.pkl", {"G": drawn, "D": judge, "G_ema": drawn})
    from_stylegan_pickle(source, tmp_path / "folder", say=said.append)
    assert said[0].startswith("StyleGAN2 at 16 pixels")
    recipe = load_recipe(str(tmp_path / "folder" / "recipe.toml"))
    assert recipe.family == "stylegan2"
    assert recipe.networks.model_dump() == config.model_dump() | {"mean_style_decay": 0.998}
    z = torch.randn(2, config.latent_size, generator=torch.Generator().manual_seed(5))
    classes = torch.tensor([0, 2])
    with torch.no_grad(), prepared(built["G"]):
        expected = built["G"](z, classes, psi=0.7)
    with torch.no_grad():
        torch.testing.assert_close(frugan.load(tmp_path / "folder")["G"](z, classes, psi=0.7), expected)


def test_back_under_the_authors_names(tmp_path: Path) -> None:
    case = load("r_res64")
    source = write_snapshot(tmp_path / "s.pkl", case.networks, built_of(case))
    from_stylegan_pickle(source, tmp_path / "folder", say=lambda _: None)
    made = to_stylegan_safetensors(tmp_path / "folder", tmp_path / "states.safetensors", say=lambda _: None)
    tensors = load_file(made.path)
    for network in ("G", "G_ema"):
        assert all(torch.equal(tensors[f"{network}.{key}"], value) for key, value in case.state.items())
    with safe_open(made.path, "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "stylegan3"
    made_with = json.loads(metadata["init_kwargs"])["G_ema"]
    assert case.arguments.items() <= made_with.items()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"margin_size": 12}, "margin_size of its generator is 12; expected 10, as published"),
        ({"num_critical": 0}, "num_critical of its generator is 0"),
        ({"num_fp16_res": "all"}, "num_fp16_res 'all': expected a whole number"),
        ({"img_resolution": 64}, r"are not of the sizes and channels of StyleGAN3|of another resolution"),
    ],
    ids=["margin", "critical", "half", "resolution"],
)
def test_what_is_not_built_here_is_refused(changes: Mapping[str, Any], message: str, tmp_path: Path) -> None:
    case = load("t_res32")
    source = write_snapshot(tmp_path / "s.pkl", case.networks, built_of(case), changes)
    with pytest.raises(BadInput, match=message):
        from_stylegan_pickle(source, tmp_path / "out.safetensors", say=lambda _: None)
    assert not (tmp_path / "out.safetensors").exists()


def test_layers_that_are_missing_are_named(tmp_path: Path) -> None:
    case = load("t_res32")
    built = built_of(case)
    del built["G"].get_submodule("synthesis")._modules["L3_52_13"]
    source = write_snapshot(tmp_path / "s.pkl", case.networks, built)
    with pytest.raises(BadInput, match=r"s\.pkl: its generator has layers 0, 1, 2, 4, 5, 6"):
        from_stylegan_pickle(source, tmp_path / "out.safetensors", say=lambda _: None)


@pytest.mark.parametrize("equivariance", ["translation", "rotation"])
@pytest.mark.parametrize("resolution", [256, 1024])
def test_published_channels_are_found_from_the_layers(resolution: int, equivariance: str) -> None:
    of = load_recipe(f"stylegan3-{equivariance[0]}-256", [f"networks.resolution={resolution}"]).networks
    assert isinstance(of, StyleGAN3Networks)
    found = generator_limits(of.model_dump(), [shape.name for shape in of.layer_shapes])
    assert found == {
        "generator_channel_base": of.generator_channel_base,
        "generator_channel_max": of.generator_channel_max,
    }
