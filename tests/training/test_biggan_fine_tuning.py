"""BigGAN from weights trained on others: what starts where, frozen blocks, and a discriminator that learns first."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe
from frugan.setup.networks import save
from frugan.setup.recipe_setup import build_networks
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe
from training.test_training import CPU

PLAIN = ["networks.generator_attention=[]", "networks.discriminator_attention=[]"]
STILL = ["training.duration=1 step", "optimizers.D.learning_rate=1e-12", "optimizers.G.learning_rate=1e-12"]
WARM_UP = """
[objective]
generator_learns = false

[[stages]]
at = "2 steps"
set = { "objective.generator_learns" = true }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fine-tuning")


@pytest.fixture(scope="module")
def recipe(folder: Path) -> str:
    return write_recipe(folder)


@pytest.fixture(scope="module")
def pictures(folder: Path) -> Path:
    return write_pictures(folder / "pictures", each=4, side=70)


def weights(out: Path, recipe: str, *words: str, networks: tuple[str, ...] = ("G", "D")) -> Path:
    of = load_recipe(recipe, [*PLAIN, "training.seed=7", *words])
    built = build_networks(of)
    save({name: built[name] for name in networks}, of, out)
    return out


def start(recipe: str, pictures: Path, out: Path, init: Path | None, *words: str) -> list[str]:
    said: list[str] = []
    train(recipe, pictures, out, options=CPU, init=init, overrides=[*PLAIN, *STILL, *words], say=said.append)
    return [line for line in said if line.startswith(("init:", "stage "))]


def newest(run: Path, file: str = "networks") -> dict[str, Tensor]:
    return load_file(sorted((run / "checkpoints").iterdir())[-1] / f"{file}.safetensors")


def near(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=1e-6)


def test_another_resolution_starts_where_blocks_agree(recipe: str, pictures: Path, tmp_path: Path) -> None:
    """64 pixels from weights of 128; chunks of z are as long."""
    init = weights(tmp_path / "128.safetensors", recipe, "networks.resolution=128", "networks.latent_size=12")
    words = ("networks.resolution=64", "networks.latent_size=10")
    said = start(recipe, pictures, tmp_path / "run", init, *words)
    assert [line.partition("; from")[0] for line in said] == [
        "init: networks G: shared, linear, blocks.0, blocks.1, blocks.2, blocks.3 taken; output_layer new",
        "init: networks D: blocks.0, blocks.1, blocks.2, blocks.3, blocks.4, linear, embed taken",
        "init: networks.resolution is 128 there and 64 here; networks.latent_size is 12 there and 10 here: "
        "to take more over, override networks.KEY=VALUE",
        "init: averages G: shared, linear, blocks.0, blocks.1, blocks.2, blocks.3 taken; output_layer new",
    ]
    before, after = load_file(init), newest(tmp_path / "run")
    assert near(after["G.blocks.3.0.conv1.weight"], before["G.blocks.3.0.conv1.weight"])
    assert near(after["D.embed.weight"], before["D.embed.weight"])
    assert near(newest(tmp_path / "run", "ema")["G.linear.weight"], before["G.linear.weight"])


def test_networks_of_other_widths_are_refused(recipe: str, pictures: Path, tmp_path: Path) -> None:
    init = weights(tmp_path / "wide.safetensors", recipe, "networks.generator_channels=4")
    with pytest.raises(BadInput, match=r"hardly a layer agrees: networks\.generator_channels is 4 there and 2 here"):
        start(recipe, pictures, tmp_path / "run", init)
    assert not (tmp_path / "run").exists()


def test_settings_that_run_otherwise_are_told_though_all_shapes_agree(
    recipe: str, pictures: Path, tmp_path: Path
) -> None:
    init = weights(tmp_path / "w.safetensors", recipe, "networks.batch_norm_eps=1e-4")
    said = start(recipe, pictures, tmp_path / "run", init)
    assert said[1] == (
        "init: networks.batch_norm_eps is 0.0001 there and 1e-05 here: to take all of it over, override "
        "networks.KEY=VALUE"
    )


FROZEN = ("networks.frozen_discriminator_blocks=2", "optimizers.D.learning_rate=0.01")


def test_frozen_blocks_stay_without_optimizer_state(recipe: str, pictures: Path, tmp_path: Path) -> None:
    init = weights(tmp_path / "w.safetensors", recipe)
    start(recipe, pictures, tmp_path / "run", init, *FROZEN, "training.duration=3 steps")
    before, after = load_file(init), newest(tmp_path / "run")
    parameters = {key for key in before if key.startswith("D.") and key.endswith(("weight", "bias"))}
    frozen = {key for key in parameters if key.startswith(("D.blocks.0.", "D.blocks.1."))}
    assert {key for key in parameters if torch.equal(before[key], after[key])} == frozen
    moved = {key.split("/")[1] for key in newest(tmp_path / "run", "optimizers") if key.startswith("D/")}
    assert moved == parameters - frozen


def test_frozen_blocks_that_know_nothing_are_refused(recipe: str, pictures: Path, tmp_path: Path) -> None:
    init = weights(tmp_path / "w.safetensors", recipe, networks=("G",))
    with pytest.raises(BadInput, match=r"layers that the recipe freezes would stay as they were drawn at random: D\."):
        start(recipe, pictures, tmp_path / "run", init, *FROZEN)
    with pytest.raises(BadInput, match=r"frozen_discriminator_blocks 5: the discriminator has 4"):
        load_recipe(recipe, ["networks.frozen_discriminator_blocks=5"])


def test_at_first_only_the_discriminator_learns(folder: Path, pictures: Path, tmp_path: Path) -> None:
    """From weights that bring none; then a stage begins in which both do."""
    recipe = write_recipe(tmp_path, RECIPE + WARM_UP)
    init = weights(tmp_path / "w.safetensors", recipe, networks=("G",))
    rates = ("optimizers.D.learning_rate=0.01", "optimizers.G.learning_rate=0.01", "saving.checkpoint_every=1 step")
    out = tmp_path / "run"
    said = start(recipe, pictures, out, init, *rates, "training.duration=2 steps")
    assert "init: fresh: D" in said
    before, after, average = load_file(init), newest(out), newest(out, "ema")
    weights_of_g = {key for key in before if key.endswith(("weight", "bias"))}
    assert all(torch.equal(before[key], after[key]) for key in weights_of_g)
    assert all(torch.equal(before[key], average[key]) for key in before)  # its statistics too
    first = build_networks(load_recipe(recipe, PLAIN))["D"].state_dict()
    assert not torch.equal(after["D.linear.weight"], first["linear.weight"])
    # the same run goes on, now with both
    said = start(recipe, pictures, out, None, *rates, "training.duration=4 steps")
    assert said == ["stage from step 2 on: objective.generator_learns = True"]
    assert not torch.equal(newest(out)["G.linear.weight"], before["G.linear.weight"])
    assert float(newest(out, "optimizers")["G/G.linear.weight/step"]) == 2
    assert float(newest(out, "optimizers")["D/D.linear.weight/step"]) == 4


@pytest.mark.long
def test_a_warmed_up_training_is_one_training(pictures: Path, tmp_path: Path) -> None:
    """Bit for bit, whether it was interrupted at the stage or not."""
    recipe = write_recipe(tmp_path, RECIPE + WARM_UP)
    rates = ("optimizers.D.learning_rate=0.01", "optimizers.G.learning_rate=0.01")
    start(recipe, pictures, tmp_path / "whole", None, *rates, "training.duration=4 steps")
    for steps in (1, 3, 4):
        start(recipe, pictures, tmp_path / "parts", None, *rates, f"training.duration={steps} steps")
    one, other = newest(tmp_path / "whole"), newest(tmp_path / "parts")
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_an_override_leaves_the_warm_up_out(tmp_path: Path) -> None:
    recipe = load_recipe("biggan-finetune-128", ["objective.generator_learns=true"])
    assert recipe.stages == ()
    shipped = load_recipe("biggan-finetune-128")
    assert [phase.name for phase in shipped.kind.phases(shipped.networks, shipped.objective)] == ["D"]
    later = shipped.at_step(500)
    assert [phase.name for phase in later.kind.phases(later.networks, later.objective)] == ["D", "G"]
