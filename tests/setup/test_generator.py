"""Generators of all families are called alike."""

from pathlib import Path

import pytest
import torch

import frugan


def saved(recipe: str, folder: Path, *overrides: str) -> Path:
    path = folder / "weights.safetensors"
    frugan.save(frugan.build(recipe, overrides), frugan.load_recipe(recipe, overrides), path)
    return path


@pytest.mark.parametrize("recipe", ["biggan-digits-32", "r3gan-digits-32", "stylegan2-digits-32"])
def test_it_draws_what_the_network_draws(recipe: str, tmp_path: Path) -> None:
    path = saved(recipe, tmp_path)
    generator, network = frugan.load_generator(path), frugan.load(path)["G"]
    z, numbers = torch.randn(3, generator.latent_size), torch.tensor([0, 1, 2])
    conditions = network.embed(numbers) if recipe.startswith("biggan") else numbers  # type: ignore[operator]
    pictures = generator(z, numbers)
    torch.testing.assert_close(pictures, network(z, conditions).clamp(-1, 1))
    torch.testing.assert_close(pictures, generator(z, torch.eye(10)[numbers]))
    assert list(generator.state_dict()) == [f"network.{name}" for name in network.state_dict()]


def test_what_it_cannot_draw_is_refused(tmp_path: Path) -> None:
    generator = frugan.load_generator(saved("biggan-digits-32", tmp_path))
    z = torch.randn(2, generator.latent_size)
    with pytest.raises(frugan.BadInput, match="number from 0 to 9"):
        generator(z)
    for classes, words in (
        (torch.tensor([0, 10]), "0 to 10; expected 0 to 9"),
        (torch.tensor([0.0, 1.0]), r"whole numbers \[2\], or shares \[2, 10\]"),
        (torch.tensor([0, 1, 2]), "a number for each of the 2 latents"),
    ):
        with pytest.raises(frugan.BadInput, match=words):
            generator(z, classes)
    with pytest.raises(frugan.BadInput, match="no styles"):
        generator(z, torch.tensor([0, 1]), psi=0.5)
    with pytest.raises(frugan.BadInput, match="expected latents"):
        generator(z[:, 1:], torch.tensor([0, 1]))


def test_a_face_model_has_none(tmp_path: Path) -> None:
    small = ["networks.resolution=64", "networks.ae_dims=32", "networks.e_dims=16", "networks.d_dims=16"]
    path = saved("saehd-df-ud-256", tmp_path, *small)
    with pytest.raises(frugan.BadInput, match="no pictures from latents"):
        frugan.load_generator(path)
