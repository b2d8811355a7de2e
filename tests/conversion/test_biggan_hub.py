"""TensorFlow Hub's generators: what they draw is what a forward on TensorFlow's own layouts draws."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import frugan
from conversion.biggan_conversions import from_biggan_tfhub
from conversion.hub_modules import EMA, Module, draw, make_module
from frugan.errors import BadInput
from frugan.families.biggan.hub import SUMS, hub_networks, hub_table
from frugan.families.biggan.release import means_of_sums
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe
from frugan.tf_checkpoint import read_bundle
from tf_checkpoint.test_bundle import GOLDEN
from tf_checkpoint.written import write_bundle


def latents(size: int) -> torch.Tensor:
    return torch.randn(2, size, generator=torch.Generator().manual_seed(0))


def drawn(path: Path, z: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    generator = frugan.load(path)["G"]
    with torch.no_grad():
        return generator(z, generator.embed(classes))  # type: ignore[no-any-return, operator]


@pytest.mark.parametrize(
    ("resolution", "attention"),
    [(128, 3), pytest.param(256, 4, marks=pytest.mark.long), pytest.param(512, 3, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("raw", [False, pytest.param(True, marks=pytest.mark.long)], ids=["averaged", "as trained"])
def test_pictures_are_the_modules_own(tmp_path: Path, resolution: int, attention: int, raw: bool) -> None:
    module = make_module(resolution, attention=attention, prefix="module/", counter=0 if raw else 4)
    source = write_bundle(tmp_path / "module", module.variables)
    made = from_biggan_tfhub(source, tmp_path / "one.safetensors", raw=raw, say=quiet)
    blocks = {128: 5, 256: 6, 512: 7}[resolution]
    z, classes = latents(3 * (blocks + 1)), torch.tensor([4, 1])
    expected = draw(module, z, classes, averaged=not raw, prefix="module/")
    assert expected.std() > 0.05
    torch.testing.assert_close(drawn(made.path, z, classes).double(), expected, rtol=0, atol=2e-4)


@pytest.mark.long
def test_outputs_beside_a_module_are_compared(tmp_path: Path) -> None:
    module = make_module()
    source = write_bundle(tmp_path / "module", module.variables)
    z, y = latents(18), torch.tensor([0, 3])
    np.savez(source / "outputs.npz", z=z, y=y, x=draw(module, z, y))
    made = from_biggan_tfhub(source, tmp_path / "one.safetensors", verified=True, say=quiet)
    assert made.difference is not None
    assert made.difference < 2e-4
    with pytest.raises(BadInput, match="draws other pictures"):
        from_biggan_tfhub(source, tmp_path / "two.safetensors", raw=True, verified=True, say=quiet)
    assert not (tmp_path / "two.safetensors").exists()


@pytest.mark.long
def test_a_folder_has_both_and_a_recipe_to_fine_tune_by(tmp_path: Path, said: list[str]) -> None:
    source = write_bundle(tmp_path / "biggan-128", make_module().variables)
    made = from_biggan_tfhub(source, tmp_path / "folder", say=said.append)
    assert said == [f"BigGAN at 128 pixels, imported, from {source / 'variables' / 'variables.index'}"]
    recipe = load_recipe(str(tmp_path / "folder" / "recipe.toml"))
    assert recipe == made.recipe
    assert recipe.about.source == "TensorFlow Hub's module biggan-128"
    shipped = load_recipe("biggan-finetune-128")
    assert (recipe.objective, recipe.training, recipe.stages) == (shipped.objective, shipped.training, shipped.stages)
    trained, averaged = (load_file(tmp_path / "folder" / f"{name}.safetensors") for name in ("networks", "ema"))
    one = load_file(from_biggan_tfhub(source, tmp_path / "raw.safetensors", raw=True, say=quiet).path)
    assert one.keys() == trained.keys() == averaged.keys()
    assert all(torch.equal(value, trained[key]) for key, value in one.items())
    assert not torch.equal(trained["G.linear.weight"], averaged["G.linear.weight"])


def test_names_of_a_module_that_tensorflow_wrote() -> None:
    """All of them are known, and nothing is missing; back, all come out but for what is left out by name."""
    entries = read_bundle(GOLDEN).entries
    shapes = {name: each.shape for name, each in entries.items() if not name.endswith(EMA)}
    values, shape = hub_networks(shapes)
    assert values["generator_attention"] == [32]  # where there are as many channels: the file's are made up
    recipe = load_recipe("biggan-imagenet-128")
    networks = recipe.kind.build(type(recipe.networks)(**values), "meta")["G"].state_dict()
    translated = hub_table(shape).to_ours(
        {name: torch.zeros(size) for name, size in shapes.items()}, networks_of(networks)
    )
    assert translated.faults == []
    assert {key: tuple(v.shape) for key, v in translated.tensors.items()} == networks_of(networks)
    back = hub_table(shape).to_theirs(translated.tensors, shapes)
    assert (back.unused, back.doubled) == ((), ())
    assert {name.rpartition("/")[2] for name in back.missing} == {"u1", "accumulation_counter"}
    assert all(tuple(value.shape) == shapes[name] for name, value in back.tensors.items())


def networks_of(states: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in states.items()}


def test_there_and_back_number_for_number() -> None:
    module = make_module(averages=False, counter=0)
    given = {name: torch.from_numpy(array) for name, array in module.variables.items()}
    values, shape = hub_networks({name: tuple(value.shape) for name, value in given.items()})
    assert values["generator_attention"] == [64]
    table = hub_table(shape)
    back = table.to_theirs(table.to_ours(given).tensors).tensors
    left_out = {name for name in given if name.endswith(("/u1", "/accumulation_counter"))}
    assert back.keys() == given.keys() - left_out
    assert all(torch.equal(value, given[name]) for name, value in back.items())


def test_statistics_are_divided_by_their_counter_where_it_is_above_zero() -> None:
    means = {}
    for counter in (0.0, 1.0, 8.0):
        given = make_module(counter=counter, averages=False).variables
        means[counter] = means_of_sums({name: torch.from_numpy(array) for name, array in given.items()}, "/", SUMS)
    for key, value in means[0.0].items():
        if not key.endswith("accumulation_counter"):
            torch.testing.assert_close(value, means[1.0][key], rtol=0, atol=0)
            torch.testing.assert_close(value, means[8.0][key], rtol=1e-6, atol=1e-7)


def changed(module: Module, **changes: np.ndarray | None) -> dict[str, np.ndarray]:
    named = {key.replace("__", "/"): value for key, value in changes.items()}
    return {key: value for key, value in {**module.variables, **named}.items() if value is not None}


SMALL = make_module()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Generator__G_Z__G_linear__w": None, f"Generator__G_Z__G_linear__w{EMA}": None}, "no generator of BigGAN's"),
        (
            {"Generator__GBlock_2__conv0__w": None, f"Generator__GBlock_2__conv0__w{EMA}": None},
            "has 4 blocks; expected",
        ),
        ({"Generator__GenZ__G_linear__w": np.ones(1, np.float32)}, "BigGAN-deep's"),
        pytest.param(
            {"linear__w": np.ones(3, np.float32), f"linear__w{EMA}": None},
            r"variable linear/w is \[3\]; expected a matrix",
            marks=pytest.mark.long,
        ),
        ({"Generator__GBlock__more": np.ones(1, np.float32)}, "Generator/GBlock/more: unknown here"),
        *(
            pytest.param(changes, message, marks=pytest.mark.long)
            for changes, message in (
                ({"Generator__conv_2d__u0": None}, r"output_layer\.2\.u0: not there"),
                ({"Generator__GBlock__conv0__b": np.ones(9, np.float32)}, "of another network than the recipe's"),
                (
                    {"Generator__attention__theta__w": np.ones((1, 1, 7, 1), np.float32)},
                    "self-attention is of 7 channels",
                ),
                ({"Generator__G_Z__G_linear__w": np.ones((3, 1000), np.float32)}, "does not divide by it"),
            )
        ),
    ],
)
def test_other_models_and_names_left_over(tmp_path: Path, changes: dict[str, np.ndarray | None], message: str) -> None:
    source = write_bundle(tmp_path / "module", changed(SMALL, **changes))
    with pytest.raises(BadInput, match=message):
        from_biggan_tfhub(source, tmp_path / "out", raw=False, say=quiet)
    assert not (tmp_path / "out").exists()


def test_a_module_without_averages(tmp_path: Path, said: list[str]) -> None:
    source = write_bundle(tmp_path / "module", make_module(averages=False).variables)
    made = from_biggan_tfhub(source, tmp_path / "one.safetensors", say=said.append)
    assert said[0] == "the module has no EMA: the generator as it was trained is used instead"
    assert made.facts["averaged"] is False


def test_damage_and_what_is_there(tmp_path: Path) -> None:
    source = write_bundle(tmp_path / "module", SMALL.variables)
    data = source / "variables" / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-1000])
    with pytest.raises(BadInput, match="cut off: Generator/conv_2d/w"):
        from_biggan_tfhub(source, tmp_path / "one.safetensors", say=quiet)
    (tmp_path / "there.safetensors").touch()
    with pytest.raises(BadInput, match="is there already"):
        from_biggan_tfhub(source, tmp_path / "there.safetensors", say=quiet)
    with pytest.raises(BadInput, match=r"--raw is for a file ending in \.safetensors"):
        from_biggan_tfhub(source, tmp_path / "folder", raw=True, say=quiet)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["module", "there.safetensors"]
