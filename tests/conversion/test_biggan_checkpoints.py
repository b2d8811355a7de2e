"""BigGAN-PyTorch's checkpoints: tensor for tensor there and back, and training that goes on as the original's does."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import frugan
from conversion.biggan_conversions import from_biggan_pytorch, to_biggan_pytorch
from families.snapshots import SCRUBBED
from frugan.accelerator.precision import Precision
from frugan.conversion.convert import from_stylegan_pickle
from frugan.conversion.written import write_run
from frugan.engine.plan import Plan
from frugan.engine.run.checkpoint import newest_whole, restore
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.state.state import TrainingState
from frugan.errors import BadInput
from frugan.families.biggan.release_options import DEFAULTS, network_values, training_values
from frugan.families.biggan.release_recipe import options_of
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe, parse_recipe
from frugan.recipe.recipe import Recipe
from frugan.setup.recipe_setup import training_of
from frugan.training.training import train
from parity.golden import Case, Recording
from parity.movement import digests, errors, recorded_digests
from parity.rounding import limits
from parity.traces import snapshot
from training.pictures import write_pictures, write_recipe
from training.test_training import CPU

GOLDEN = Path(__file__).parents[1] / "golden" / "biggan" / "checkpoint"
FILES = ("G", "D", "G_ema", "G_optim", "D_optim", "state_dict")
TOY = Plan(micro_batch=2, precision=Precision("fp32", torch.float32, "parity"))


def loaded(path: Path) -> Any:
    """A file as PyTorch itself reads it."""
    return torch.load(path, weights_only=False)


def assert_same(one: Any, other: Any, at: str) -> None:
    """Equal to the last bit, types of tensors and order of dicts included."""
    if isinstance(one, Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), at
        assert torch.equal(one, other), at
    elif isinstance(one, Mapping):
        assert list(one) == list(other), at
        for key in one:
            assert_same(one[key], other[key], f"{at}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), at
        for i, (mine, its) in enumerate(zip(one, other, strict=True)):
            assert_same(mine, its, f"{at}[{i}]")
    else:
        assert str(one) == str(other) if isinstance(one, nn.Module) else one == other, at


@pytest.mark.parametrize("zipped", [True, pytest.param(False, marks=pytest.mark.long)], ids=["zip", "legacy"])
def test_there_and_back_number_for_number(tmp_path: Path, zipped: bool, said: list[str]) -> None:
    source = tmp_path / "weights" / "toy"
    source.mkdir(parents=True)
    for name in FILES:
        content = loaded(GOLDEN / f"{name}.pth")
        torch.save(content, source / f"{name}.pth", _use_new_zipfile_serialization=zipped)
    made = from_biggan_pytorch(source, tmp_path / "run", say=said.append)
    assert (made.step, made.networks) == (4, ("G", "D", "G_ema"))
    assert said == [
        "BigGAN at 32 pixels, imported; G, D, G_ema at iteration 4",
        "num_epochs 1: counts passes over pictures; training.duration is endless here",
        "num_D_accumulations 2, num_G_accumulations 2: singular vectors and batch norm's statistics moved up to 2 "
        "times an update there, and move once here",
    ]
    said.clear()
    back = to_biggan_pytorch(tmp_path / "run", tmp_path / "back", say=said.append)
    assert (back.facts["files"], said) == ([f"{name}.pth" for name in ("G", "D", "G_ema", *FILES[3:])], [])
    for name in FILES:
        assert_same(loaded(GOLDEN / f"{name}.pth"), loaded(tmp_path / "back" / f"{name}.pth"), name)


def state_of(run: Path) -> tuple[Recipe, TrainingState]:
    """A run's newest state, as training restores it."""
    recipe = load_recipe(str(run / "recipe.toml"))
    training = training_of(recipe)
    state = training.state(TOY, torch.device("cpu"), networks=training.build("cpu"))
    newest = newest_whole(RunFolder(run).checkpoints)
    assert newest is not None
    assert restore(newest[0], newest[1], state) == []
    return recipe, state


def by_pytorch() -> tuple[Recipe, TrainingState]:
    """The golden checkpoint's state by PyTorch's own means: its unpickler, its `load_state_dict`, its Adam."""
    options = loaded(GOLDEN / "state_dict.pth")["config"]
    recipe = parse_recipe({"family": "biggan", "networks": network_values(options), **training_values(options)}, "x")
    networks = recipe.kind.build(recipe.networks)
    state = training_of(recipe).state(TOY, torch.device("cpu"), networks=networks)
    state.step = 4
    for name, network in networks.items():
        network.load_state_dict(loaded(GOLDEN / f"{name}.pth"))
        adam = torch.optim.Adam(network.parameters())
        adam.load_state_dict(loaded(GOLDEN / f"{name}_optim.pth"))
        for parameter, slots in adam.state.items():
            for slot, value in slots.items():
                state.optimizers[name].state[parameter][slot].copy_(value)
    state.ema.networks["G"].load_state_dict(loaded(GOLDEN / "G_ema.pth"))
    return recipe, state


class Noise:
    """Pictures and draws of the toy, a function of position and step."""

    device = torch.device("cpu")

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(position)
        pictures = torch.randint(256, (count, 3, 32, 32), generator=random, dtype=torch.uint8)
        return {"pictures": pictures, "labels": torch.arange(count) % 4}

    def batch(self, phase: Any, step: int, repeat: int, count: int) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(1000 * step + len(phase.name))
        return {"z": torch.randn(count, 20, generator=random), "y": torch.randint(4, (count,), generator=random)}

    def micro_batch(self, *_: Any) -> dict[str, Tensor]:
        return {}

    def update_seed(self, *_: Any) -> int:
        return 0


def after_steps(recipe: Recipe, state: TrainingState, steps: int) -> dict[str, Tensor]:
    step = training_of(recipe).step(Noise(), Noise(), originals=True)
    for _ in range(steps):
        step.run(state, TOY)
    return snapshot(state.networks | {"G_ema": state.ema.networks["G"]})


@pytest.mark.long
def test_the_next_steps_are_those_from_what_pytorch_itself_reads(tmp_path: Path) -> None:
    from_biggan_pytorch(GOLDEN, tmp_path / "run", say=quiet)
    recipe, state = state_of(tmp_path / "run")
    same, its = by_pytorch()
    assert (recipe.networks, recipe.objective, state.step) == (same.networks, same.objective, its.step)
    assert_same(recipe.optimizer_settings(), same.optimizer_settings(), "settings")
    ours, expected = after_steps(recipe, state, 2), after_steps(same, its, 2)
    assert_same(ours, expected, "after two steps")
    # and not because nothing moved, or the optimizer's state did not matter
    before = snapshot(state_of(tmp_path / "run")[1].networks)
    assert any(not torch.equal(ours[key], value) for key, value in before.items())
    recipe, state = state_of(tmp_path / "run")
    for slots in state.optimizers["G"].state.values():
        slots["exp_avg_sq"].zero_()
    assert not torch.equal(after_steps(recipe, state, 1)["G.linear.weight"], expected["G.linear.weight"])


@pytest.mark.long
def test_a_recorded_training_goes_on_within_its_noise(tmp_path: Path) -> None:
    """After the first of three recorded iterations through the original's files and back."""
    case = Case.load("bg32_hier")
    options = {**DEFAULTS, **case.options}
    values = {"family": "biggan", "networks": network_values(options), **training_values(options)}
    recipe = parse_recipe(values, "options")
    state, step, plan = case.training()
    step.run(state, plan)
    write_run(RunFolder(tmp_path / "first"), recipe, state, {"format": "biggan-pytorch"})
    to_biggan_pytorch(tmp_path / "first", tmp_path / "files", say=quiet)
    from_biggan_pytorch(tmp_path / "files", tmp_path / "second", say=quiet)
    again, state = state_of(tmp_path / "second")
    assert again.networks == recipe.networks
    feed = Recording(case)
    step = training_of(again).step(feed, feed, originals=True)
    for _ in range(2):
        step.run(state, plan)
    ours = digests(snapshot(state.networks | {"G_ema": state.ema.networks["G"]}))
    off = errors(case, ours, recorded_digests(case, "train_plain", 3))
    allowed = limits("bg32_hier", "train_plain", 3)
    assert off
    assert not {key: (error, allowed[key]) for key, error in off.items() if not error <= allowed[key]}


@pytest.mark.long
def test_training_goes_on_from_the_command(tmp_path: Path, said: list[str]) -> None:
    made = from_biggan_pytorch(GOLDEN, tmp_path / "run", overrides=["training.duration=6 steps"], say=quiet)
    pictures = write_pictures(tmp_path / "pictures", classes=("a", "b", "c"), each=4)
    shutil.copytree(pictures / "a", pictures / "d")
    result = train(str(made.path / "recipe.toml"), pictures, made.path, options=CPU, say=said.append)
    assert (result.step, result.finished) == (6, True)
    assert f"resuming {made.path} at step 4" in said
    back = to_biggan_pytorch(made.path, tmp_path / "back", say=said.append)
    assert said[-1] == "epoch, best_IS and best_FID are those of the imported checkpoint"
    state, adam = loaded(back.path / "state_dict.pth"), loaded(back.path / "G_optim.pth")
    assert (state["itr"], state["config"]["dataset"]) == (6, "I32_hdf5")
    assert {float(each["step"]) for each in adam["state"].values()} == {6.0}


def test_weights_alone(tmp_path: Path) -> None:
    made = from_biggan_pytorch(GOLDEN, tmp_path / "average.safetensors", verified=True, say=quiet)
    raw = from_biggan_pytorch(GOLDEN, tmp_path / "raw.safetensors", raw=True, say=quiet)
    assert made.lines[1].startswith("verified: G, D ran, all values finite")
    for path, name in ((made.path, "G_ema"), (raw.path, "G")):
        tensors, expected = load_file(path), loaded(GOLDEN / f"{name}.pth") | {}
        assert {key for key in tensors if key[0] == "G"} == {f"G.{key}" for key in expected}
        assert all(torch.equal(tensors[f"G.{key}"], value) for key, value in expected.items())
        assert all(torch.equal(tensors[f"D.{key}"], v) for key, v in loaded(GOLDEN / "D.pth").items())
    assert set(frugan.load(made.path)) == {"G", "D"}
    # and back: one generator is both
    to_biggan_pytorch(made.path, tmp_path / "back", say=quiet)
    assert_same(loaded(tmp_path / "back" / "G.pth"), loaded(tmp_path / "back" / "G_ema.pth"), "G")


def copied(tmp_path: Path, *left_out: str) -> Path:
    source = tmp_path / "source"
    shutil.copytree(GOLDEN, source)
    for name in left_out:
        (source / f"{name}.pth").unlink()
    return source


def test_what_is_not_there(tmp_path: Path, said: list[str]) -> None:
    source = copied(tmp_path, "G_ema", "G_optim")
    from_biggan_pytorch(source, tmp_path / "run", say=said.append)
    assert f"{source / 'G_ema.pth'} is not there: the average starts as a copy of G" in said
    assert f"{source / 'G_optim.pth'} is not there: the optimizer's statistics start afresh" in said
    (source / "D.pth").unlink()
    with pytest.raises(BadInput, match=r"D\.pth: missing; training goes on with both.*weights\.safetensors --from"):
        from_biggan_pytorch(source, tmp_path / "again", say=quiet)
    made = from_biggan_pytorch(source, tmp_path / "one.safetensors", say=said.append)
    assert said[-2:] == [
        f"{source / 'G_ema.pth'} is not there: G is used instead",
        f"{source / 'D.pth'} is not there: in training it starts afresh",
    ]
    assert set(frugan.load(made.path)) == {"G"}
    (source / "state_dict.pth").unlink()
    with pytest.raises(BadInput, match=r"state_dict\.pth: no such file"):
        from_biggan_pytorch(source, tmp_path / "two.safetensors", say=quiet)


def test_sets_by_name(tmp_path: Path) -> None:
    source = copied(tmp_path)
    for name in FILES:
        shutil.copy(source / f"{name}.pth", source / f"{name}_best0.pth")
        (source / f"{name}.pth").rename(source / f"{name}_copy1.pth")
    with pytest.raises(
        BadInput, match=r"a set without a suffix \(G\.pth\) is not there; expected one of: 'best0', 'copy1' \(--name"
    ):
        from_biggan_pytorch(source, tmp_path / "run", say=quiet)
    with pytest.raises(BadInput, match="a set named 'best7' is not there"):
        from_biggan_pytorch(source, tmp_path / "run", name="best7", say=quiet)
    assert from_biggan_pytorch(source, tmp_path / "run", name="best0", say=quiet).step == 4


def changed_state(source: Path, **options: Any) -> None:
    state = loaded(source / "state_dict.pth")
    state["config"] |= options
    torch.save(state, source / "state_dict.pth")


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "x.png").touch()
    with pytest.raises(BadInput, match=r"no G\.pth in it; expected the folder of an experiment, with G\.pth, D\.pth"):
        from_biggan_pytorch(tmp_path, tmp_path / "run", say=quiet)


def test_older_options_are_completed_and_named(tmp_path: Path) -> None:
    source, said = copied(tmp_path), list[str]()
    state = loaded(source / "state_dict.pth")
    del state["config"]["norm_style"], state["config"]["which_train_fn"]
    torch.save(state, source / "state_dict.pth")
    from_biggan_pytorch(source, tmp_path / "run", say=said.append)
    assert said[0].endswith("taken as by default: norm_style bn, which_train_fn GAN")


@pytest.mark.parametrize(
    ("resolution", "classes", "dataset"),
    [(32, 10, "C10"), (32, 100, "C100"), (64, 1000, "I64_hdf5"), (128, 7, "I128_hdf5")],
)
def test_that_program_looks_up_pixels_and_classes_by_its_dataset(resolution: int, classes: int, dataset: str) -> None:
    words = [f"networks.resolution={resolution}", f"networks.classes={classes}", "networks.discriminator_attention=[]"]
    words.append("networks.generator_attention=[]")
    recipe = load_recipe("biggan-imagenet-128", words).model_dump(mode="json")
    options, _ = options_of(recipe, recipe["optimizers"])
    assert (options["dataset"], options["resolution"], options["n_classes"]) == (dataset, resolution, classes)


def test_its_own_batch_norm(tmp_path: Path) -> None:
    """Statistics lie one level deeper there; sums of several batches are divided by their number."""
    source = copied(tmp_path)
    changed_state(source, mybn=True)
    plain = {name: loaded(source / f"{name}.pth") for name in ("G", "G_ema")}
    for name, states in plain.items():
        deeper: dict[str, Tensor] = {}
        for key, value in states.items():
            path, _, last = key.rpartition(".")
            if last in ("stored_mean", "stored_var"):
                deeper[f"{path}.bn.{last}"] = value * 16 if name == "G_ema" else value
                deeper[f"{path}.bn.accumulation_counter"] = torch.tensor([16.0 if name == "G_ema" else 0.0])
            else:
                deeper[key] = value
        torch.save(deeper, source / f"{name}.pth")
    made = from_biggan_pytorch(source, tmp_path / "run", say=quiet)
    assert made.recipe.networks.model_dump()["running_variance"] == "biased"
    _, state = state_of(tmp_path / "run")
    assert_same(dict(plain["G"]), dict(state.networks["G"].state_dict()), "G")
    for key, value in state.ema.networks["G"].state_dict().items():
        torch.testing.assert_close(value, plain["G_ema"][key], rtol=1e-6, atol=0)
    to_biggan_pytorch(tmp_path / "run", tmp_path / "back", say=quiet)
    back = loaded(tmp_path / "back" / "G.pth")
    assert set(back) == set(loaded(source / "G.pth"))
    assert all(torch.equal(back[key], value) for key, value in loaded(source / "G.pth").items())
    assert loaded(tmp_path / "back" / "state_dict.pth")["config"]["mybn"] is True


@pytest.mark.long
def test_outputs_that_the_source_brings_are_compared(tmp_path: Path) -> None:
    source = copied(tmp_path)
    from_biggan_pytorch(source, tmp_path / "first.safetensors", say=quiet)
    generator = frugan.load(tmp_path / "first.safetensors")["G"]
    z, y = torch.randn(3, 20, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3, 1])
    with torch.no_grad():
        x = generator(z, generator.embed(y))  # type: ignore[operator]
    np.savez(source / "outputs.npz", z=z, y=y, x=x + 1e-4)
    made = from_biggan_pytorch(source, tmp_path / "second.safetensors", verified=True, say=quiet)
    assert made.difference == pytest.approx(1e-4, rel=0.01)
    assert made.lines[1].endswith("at most 1.0e-04 from the source's own pictures")
    for wrong, message in (
        ({"x": x + 0.1}, "draws other pictures, up to 0.1 apart; expected at most 0.01"),
        ({"z": z[:, :7]}, "do not fit these networks"),
        ({"y": y + 9}, "do not fit these networks"),
        ({"x": x[:2]}, r"x is \[2, 3, 32, 32\]; these networks draw \[3, 3, 32, 32\]"),
        ({"x": np.array([None])}, "expected arrays z"),
    ):
        np.savez(source / "outputs.npz", **{"z": z, "y": y, "x": x, **wrong})
        with pytest.raises(BadInput, match=message):
            from_biggan_pytorch(source, tmp_path / "third.safetensors", verified=True, say=quiet)
        assert not (tmp_path / "third.safetensors").exists()


def test_weights_that_give_nothing_finite_are_not_verified(tmp_path: Path) -> None:
    source = copied(tmp_path)
    states = loaded(source / "G_ema.pth")
    states["output_layer.0.gain"][0] = float("nan")
    torch.save(states, source / "G_ema.pth")
    with pytest.raises(BadInput, match="the converted G gives values that are not finite"):
        from_biggan_pytorch(source, tmp_path / "one.safetensors", verified=True, say=quiet)


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("x")
    (tmp_path / "one.safetensors").write_text("x")
    for out in ("run", "one.safetensors"):
        with pytest.raises(BadInput, match="is there already"):
            from_biggan_pytorch(GOLDEN, tmp_path / out, say=quiet)
    with pytest.raises(BadInput, match=r"--raw is for a file ending in \.safetensors"):
        from_biggan_pytorch(GOLDEN, tmp_path / "new", raw=True, say=quiet)
    from_biggan_pytorch(GOLDEN, tmp_path / "weights.safetensors", say=quiet)
    source = copied(tmp_path)
    with pytest.raises(BadInput, match=r"G\.pth: is there already; choose another folder, or add --replace"):
        to_biggan_pytorch(tmp_path / "weights.safetensors", source, say=quiet)
    to_biggan_pytorch(tmp_path / "weights.safetensors", source, replace=True, say=quiet)
    assert not list(source.glob("*_optim.pth")), "statistics of another training, which that program would go on with"
    (tmp_path / "left").mkdir()
    shutil.copy(GOLDEN / "G_optim.pth", tmp_path / "left")
    with pytest.raises(BadInput, match=r"G_optim\.pth: is there already"):
        to_biggan_pytorch(tmp_path / "weights.safetensors", tmp_path / "left", say=quiet)
    assert_same(dict(loaded(source / "G.pth")), dict(loaded(GOLDEN / "G_ema.pth")), "G")


def test_weights_of_another_family_are_not_written(tmp_path: Path) -> None:
    from_stylegan_pickle(SCRUBBED, tmp_path / "style.safetensors", say=quiet)
    with pytest.raises(BadInput, match="weights of StyleGAN2, and this format holds those of BigGAN alone"):
        to_biggan_pytorch(tmp_path / "style.safetensors", tmp_path / "out", say=quiet)


def test_a_run_of_ours_goes_over_with_what_that_program_has_no_option_for(tmp_path: Path, said: list[str]) -> None:
    recipe = write_recipe(tmp_path)
    words = ["objective.loss=relativistic", "training.duration=2 steps", "networks.discriminator_attention=[]"]
    train(recipe, write_pictures(tmp_path / "pictures"), tmp_path / "run", options=CPU, overrides=words)
    made = to_biggan_pytorch(tmp_path / "run", tmp_path / "files", say=said.append)
    assert said == [
        "objective.loss: that program has no option for it",
        "dataset I32_hdf5: that program takes it for 1,000 classes and these networks have 2; write 2 beside it in the "
        "table of classes in its utils.py, or they cannot be loaded",
    ]
    assert made.step == 2
    config = loaded(tmp_path / "files" / "state_dict.pth")["config"]
    assert (config["G_attn"], config["ema_decay"], config["num_G_accumulations"]) == ("16", 0.9, 2)
    assert isinstance(config["G_activation"], nn.ReLU)
    assert json.dumps({key: value for key, value in config.items() if not key.endswith("_activation")})
    adam = torch.optim.Adam(frugan.build(recipe)["G"].parameters())
    adam.load_state_dict(loaded(tmp_path / "files" / "G_optim.pth"))
    again = from_biggan_pytorch(tmp_path / "files", tmp_path / "again", say=quiet)
    assert again.recipe.networks == load_recipe(recipe, words).networks
    with pytest.raises(BadInput, match="at 32 pixels: BigGAN-PyTorch puts it after every block"):
        options_of(load_recipe(recipe).model_dump(mode="json"), {})
