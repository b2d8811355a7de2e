"""`--init`: whole networks for every family, and for StyleGAN2 the pieces that agree."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from frugan.errors import BadInput
from frugan.training.starting_weights import Start
from frugan.training.training import train
from training.pictures import write_pictures, write_recipe
from training.test_training import CPU

RECIPE = """
family = "stylegan2"

[networks]
resolution = 16
latent_size = 8
style_size = 8
mapping_layers = 2
channel_base = 128
channel_max = 8

[objective]
r1_gamma = 1.0
path_length_weight = 0.0

[training]
batch = 4
normalisation_batch = 2
duration = "1 step"
precision = "fp32"

[optimizers.default]
learning_rate = 1e-12

[ema]
schedule = "half-life"
half_life_images = 1e9
"""


def newest(run: Path, file: str = "networks") -> dict[str, Tensor]:
    return load_file(sorted((run / "checkpoints").iterdir())[-1] / f"{file}.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("starting")


@pytest.fixture(scope="module")
def pictures(folder: Path) -> Path:
    return write_pictures(folder / "pictures", classes=(), each=6, side=40)


@pytest.fixture(scope="module")
def recipe(folder: Path) -> str:
    return write_recipe(folder, RECIPE)


@pytest.fixture(scope="module")
def first(recipe: str, pictures: Path, folder: Path) -> Path:
    """A run of two steps with a rate that moves its weights, so that averages and networks differ."""
    overrides = ["optimizers.default.learning_rate=0.01", "training.duration=2 steps", "training.seed=1"]
    train(recipe, pictures, folder / "first", options=CPU, overrides=overrides)
    return folder / "first"


def start(recipe: str, pictures: Path, out: Path, init: Path, *overrides: str) -> list[str]:
    said: list[str] = []
    train(recipe, pictures, out, options=CPU, init=init, overrides=overrides, say=said.append)
    return [line for line in said if line.startswith("init:")]


def assert_near(actual: dict[str, Tensor], expected: dict[str, Tensor], keys: list[str]) -> None:
    assert keys
    for key in keys:
        torch.testing.assert_close(actual[key], expected[key], rtol=0, atol=1e-6, msg=key)


@pytest.mark.long
def test_networks_from_networks_averages_from_averages(
    recipe: str, pictures: Path, first: Path, tmp_path: Path
) -> None:
    lines = start(recipe, pictures, tmp_path / "second", first)
    assert [line.partition(" from ")[0] for line in lines] == ["init: all weights of G, D"]
    for file in ("networks", "ema"):
        before, after = newest(first, file), newest(tmp_path / "second", file)
        assert_near(after, before, [key for key in before if not key.endswith("w_avg")])
    trained, averaged = newest(first), newest(first, "ema")
    assert any(not torch.allclose(trained[key], value, atol=1e-3) for key, value in averaged.items())


@pytest.mark.long
def test_another_resolution_starts_where_blocks_agree(recipe: str, pictures: Path, first: Path, tmp_path: Path) -> None:
    lines = start(recipe, pictures, tmp_path / "larger", first, "networks.resolution=32")
    assert [line.partition("; from")[0] for line in lines] == [
        "init: networks G: mapping, b4, b8, b16 taken; b32 new",
        "init: networks D: b16, b8, b4 taken; b32 new",
        "init: networks.resolution is 16 there and 32 here: to take more over, override networks.KEY=VALUE",
        "init: averages G: mapping, b4, b8, b16 taken; b32 new",
    ]
    before, after = newest(first), newest(tmp_path / "larger")
    small = [key for key in before if ".b" in key and not key.startswith("D.b16.fromrgb")]
    assert_near(after, before, small)
    assert_near(newest(tmp_path / "larger", "ema"), newest(first, "ema"), [k for k in small if k[0] == "G"])
    # and down again: what looks at the picture is another
    lines = start(recipe, pictures, tmp_path / "smaller", tmp_path / "larger")
    assert lines[1].startswith("init: networks D: b8, b4 taken; b16: conv0, conv1, skip taken, fromrgb new; from")


def test_other_mappings_are_new_as_a_whole(recipe: str, pictures: Path, first: Path, tmp_path: Path) -> None:
    lines = start(recipe, pictures, tmp_path / "second", first, "networks.mapping_layers=1")
    assert lines[0].startswith("init: networks G: b4, b8, b16 taken; mapping new; from")
    assert lines[1].startswith("init: networks D: b16, b8, b4 taken; from")


def test_networks_of_which_nothing_agrees(recipe: str, pictures: Path, first: Path, tmp_path: Path) -> None:
    wider = ("networks.channel_base=256", "networks.channel_max=16", "networks.style_size=12")
    with pytest.raises(BadInput, match=r"no layer agrees: networks\.style_size is 8 there and 12 here"):
        start(recipe, pictures, tmp_path / "second", first, *wider)
    assert not (tmp_path / "second").exists()


def test_another_family(tmp_path: Path, recipe: str, first: Path) -> None:
    pictures = write_pictures(tmp_path / "classes")
    with pytest.raises(BadInput, match=r"--init .*: weights of a stylegan2 model; the recipe is biggan"):
        train(write_recipe(tmp_path, name="biggan.toml"), pictures, tmp_path / "second", options=CPU, init=first)


@pytest.mark.long
def test_state_dicts_of_another_program(recipe: str, pictures: Path, first: Path, tmp_path: Path) -> None:
    """With the average under a name of its own, and nothing but the tensors."""
    trained, averaged = newest(first), newest(first, "ema")
    states = trained | {f"G_ema{key[1:]}": value for key, value in averaged.items()}
    save_file(states, tmp_path / "states.safetensors")
    start(recipe, pictures, tmp_path / "second", tmp_path / "states.safetensors")
    for file, before in {"networks": trained, "ema": averaged}.items():
        assert_near(newest(tmp_path / "second", file), before, [key for key in before if not key.endswith("w_avg")])
    save_file({key: value for key, value in states.items() if key[:2] != "G."}, tmp_path / "states.safetensors")
    start(recipe, pictures, tmp_path / "third", tmp_path / "states.safetensors")
    assert_near(newest(tmp_path / "third"), averaged, [key for key in averaged if not key.endswith("w_avg")])


def test_a_checkpoint_that_its_run_has_deleted_since(first: Path, tmp_path: Path) -> None:
    run = shutil.copytree(first, tmp_path / "run")
    opened = Start.of(run, None)
    assert opened is not None
    (newest_one,) = (run / "checkpoints").iterdir()
    newest_one.rename(newest_one.with_name("step-000000003"))
    assert opened.weights_now(print).step == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("snapshot.pkl", b"", r"frugan convert .*snapshot\.pkl snapshot\.safetensors --from stylegan-pickle"),
        ("my snapshot.pkl", b"", r"frugan convert '.*/my snapshot\.pkl' 'my snapshot\.safetensors' --from stylegan-"),
        ("broken.safetensors", b"no", "not a whole safetensors file"),
        ("missing.safetensors", None, "expected a run folder, a checkpoint or a"),
    ],
)
def test_files_that_are_no_weights(
    recipe: str, pictures: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=message):
        start(recipe, pictures, tmp_path / "run", tmp_path / name)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_where_what_it_began_from_is_gone(
    recipe: str, pictures: Path, first: Path, tmp_path: Path
) -> None:
    gone, out, said = Path(shutil.copytree(first, tmp_path / "gone")), tmp_path / "second", list[str]()
    start(recipe, pictures, out, gone)
    shutil.rmtree(gone)
    assert train(recipe, pictures, out, options=CPU, init=gone, say=said.append).finished
    assert f"--init {gone} is ignored: the run exists and resumes from its own checkpoint" in said


@pytest.mark.long
def test_a_run_that_is_there_goes_on(recipe: str, pictures: Path, first: Path, tmp_path: Path) -> None:
    before, said = newest(first), list[str]()
    out = tmp_path / "second"
    start(recipe, pictures, out, first)
    overrides = ["training.duration=2 steps"]
    train(recipe, pictures, out, options=CPU, init=first, overrides=overrides, say=said.append)
    assert f"--init {first} is ignored: the run exists and resumes from its own checkpoint" in said
    assert not [line for line in said if line.startswith("init:")]
    assert newest(out).keys() == before.keys()


FROZEN = ("networks.frozen_discriminator_layers=5", "optimizers.default.learning_rate=0.01")


def test_frozen_layers_stay_without_optimizer_state(recipe: str, pictures: Path, first: Path, tmp_path: Path) -> None:
    out = tmp_path / "second"
    start(recipe, pictures, out, first, *FROZEN, "training.duration=2 steps")
    before, after = newest(first), newest(out)
    stays = {key for key in before if torch.equal(before[key], after[key]) and not key.endswith("resample_filter")}
    frozen = {f"D.b16.{layer}.{kind}" for layer in ("fromrgb", "conv0", "conv1") for kind in ("weight", "bias")}
    frozen |= {"D.b16.skip.weight", "D.b8.conv0.weight", "D.b8.conv0.bias"}
    assert {key for key in stays if key.startswith("D.")} == frozen
    moved = {key.split("/")[1] for key in newest(out, "optimizers") if key.startswith("D/") and key.count("/") == 2}
    parameters = {key for key in before if key.startswith("D.") and not key.endswith("resample_filter")}
    assert moved == parameters - frozen


@pytest.mark.long
def test_frozen_training_resumes_bit_for_bit(recipe: str, pictures: Path, first: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start(recipe, pictures, whole, first, *FROZEN, "training.duration=2 steps")
    for steps in (1, 2):
        start(recipe, pictures, parts, first, *FROZEN, f"training.duration={steps} steps")
    for file in ("networks", "ema", "optimizers"):
        one, other = newest(whole, file), newest(parts, file)
        assert one.keys() == other.keys()
        assert [key for key in one if not torch.equal(one[key], other[key])] == []


def test_frozen_layers_that_know_nothing_are_refused(recipe: str, pictures: Path, first: Path, tmp_path: Path) -> None:
    out = tmp_path / "second"
    with pytest.raises(BadInput, match=r"no --init: layers that the recipe freezes would stay .*: D\.b16"):
        train(recipe, tmp_path / "before they are looked for", out, options=CPU, overrides=FROZEN)
    with pytest.raises(BadInput, match=r"would stay as they were drawn at random: D\.b32\.fromrgb\.weight"):
        start(recipe, pictures, out, first, *FROZEN, "networks.resolution=32")
    assert not out.exists()
