"""`--init-classes`: tables of classes from those of weights that know others."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe
from frugan.setup.networks import save
from frugan.setup.recipe_setup import build_networks
from frugan.training.class_start import ClassStart, KnownClasses, parse_class_start, read_class_map
from frugan.training.training import train
from training.pictures import write_pictures, write_recipe
from training.test_training import CPU

STILL = ["training.duration=1 step", "optimizers.D.learning_rate=1e-12", "optimizers.G.learning_rate=1e-12"]
NAMES = ("hell", "dunkel ü")  # of the pictures, in the order of their folders' names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("classes")


@pytest.fixture(scope="module")
def recipe(folder: Path) -> str:
    return write_recipe(folder)


@pytest.fixture(scope="module")
def pictures(folder: Path) -> Path:
    return write_pictures(folder / "pictures", each=4)


def weights_of(folder: Path, recipe: str, *words: str, names: tuple[str, ...] = ()) -> Path:
    """A file of first weights, for five classes."""
    of = load_recipe(recipe, ["networks.classes=5", *words])
    save(build_networks(of), of, folder / "weights.safetensors", names)
    return folder / "weights.safetensors"


@pytest.fixture(scope="module")
def weights(folder: Path, recipe: str) -> Path:
    return weights_of(folder, recipe, "training.seed=7", names=("a", "b", "c", "d", "3"))


def start(recipe: str, pictures: Path, out: Path, init: Path, how: str | None, *words: str) -> list[str]:
    said: list[str] = []
    overrides = [*STILL, *words]
    train(recipe, pictures, out, options=CPU, init=init, init_classes=how, overrides=overrides, say=said.append)
    return [line for line in said if line.startswith("init:")]


def newest(run: Path, file: str = "networks") -> dict[str, Tensor]:
    return load_file(sorted((run / "checkpoints").iterdir())[-1] / f"{file}.safetensors")


def near(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=1e-6)


def test_from_their_mean(recipe: str, pictures: Path, weights: Path, tmp_path: Path) -> None:
    said = start(recipe, pictures, tmp_path / "run", weights, "mean")
    assert said[0] == "init: 2 classes begin alike, in the middle of the 5 that the weights know"
    before = load_file(weights)
    for file, keys in {"networks": ("G.shared.weight", "D.embed.weight"), "ema": ("G.shared.weight",)}.items():
        after = newest(tmp_path / "run", file)
        for key in keys:
            assert near(after[key], before[key].mean(0).expand(2, -1))
        assert near(after["G.linear.weight"], before["G.linear.weight"])


def test_from_a_map(recipe: str, pictures: Path, weights: Path, tmp_path: Path) -> None:
    file = tmp_path / "map.txt"
    file.write_text("# mine = theirs\nhell = c\n\ndunkel ü = 1  # by number\n", "utf-8")
    said = start(recipe, pictures, tmp_path / "run", weights, f"copy={file}")
    assert said[0] == f"init: 2 classes begin from those of the weights' 5 that {file} names"
    before, after = load_file(weights), newest(tmp_path / "run")
    order = sorted(NAMES)  # classes are numbered in this order
    chosen = [{"hell": 2, "dunkel ü": 1}[name] for name in order]
    for key in ("G.shared.weight", "D.embed.weight"):
        assert near(after[key], before[key][chosen])
    assert near(newest(tmp_path / "run", "ema")["G.shared.weight"], before["G.shared.weight"][chosen])


def test_fresh(recipe: str, pictures: Path, weights: Path, tmp_path: Path) -> None:
    said = start(recipe, pictures, tmp_path / "run", weights, "fresh")
    assert said[0] == "init: 2 classes begin from noise, as the weights know 5 others"
    first = build_networks(load_recipe(recipe))
    after = newest(tmp_path / "run")
    assert near(after["G.shared.weight"], first["G"].state_dict()["shared.weight"])
    assert near(after["D.embed.weight"], first["D"].state_dict()["embed.weight"])
    assert near(after["G.linear.weight"], load_file(weights)["G.linear.weight"])
    assert near(newest(tmp_path / "run", "ema")["G.shared.weight"], after["G.shared.weight"])


def test_tables_of_every_normalisation(recipe: str, pictures: Path, tmp_path: Path) -> None:
    """Where no embedding is shared, each layer has a table of its own."""
    words = ("networks.shared_embedding=none", "networks.hierarchical_latent=false")
    weights = weights_of(tmp_path, recipe, *words)
    start(recipe, pictures, tmp_path / "run", weights, "mean", *words)
    before, after = load_file(weights), newest(tmp_path / "run")
    for key in ("G.blocks.0.0.bn1.gain.weight", "G.blocks.2.0.bn2.bias.weight"):
        assert near(after[key], before[key].mean(0).expand(2, -1))


def test_other_numbers_are_refused_with_the_choices(recipe: str, pictures: Path, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"know 5 classes, and this run has 2; .*--init-classes mean .*fresh.*copy=FILE"):
        start(recipe, pictures, tmp_path / "run", weights, None)
    assert not (tmp_path / "run").exists()


def test_as_many_classes_start_from_their_places(recipe: str, pictures: Path, tmp_path: Path) -> None:
    weights = weights_of(tmp_path, recipe, "networks.classes=2")
    start(recipe, pictures, tmp_path / "plain", weights, None)
    before = load_file(weights)["G.shared.weight"]
    assert near(newest(tmp_path / "plain")["G.shared.weight"], before)


@pytest.mark.long
def test_as_many_classes_start_as_asked(recipe: str, pictures: Path, tmp_path: Path) -> None:
    weights = weights_of(tmp_path, recipe, "networks.classes=2")
    start(recipe, pictures, tmp_path / "mean", weights, "mean")
    before = load_file(weights)["G.shared.weight"]
    assert near(newest(tmp_path / "mean")["G.shared.weight"], before.mean(0).expand(2, -1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hell = c\n", "says nothing of dunkel ü; expected a line for every class"),
        ("hell = c\nhell = a\ndunkel ü = b", "line 2: class 'hell' is there twice"),
        ("hell = c\n1 = a\n0 = b", "there twice"),
        ("hell = nobody", r"line 1: 'nobody' is no class of the weights; expected a, b, c, d, 3"),
        ("heaven = a", r"line 1: 'heaven' is no class of this run; expected dunkel ü, hell"),
        ("hell = 9", "'9' is no class of the weights"),
        ("hell = -1", "'-1' is no class of the weights"),
        ("hell", r"line 1: 'hell': expected CLASS = CLASS OF THE WEIGHTS"),
        ("= a", "expected CLASS = CLASS OF THE WEIGHTS"),
        ("hell =", "expected CLASS = CLASS OF THE WEIGHTS"),
        (b"\xff\xfe\x00", "no text in UTF-8"),
    ],
)
def test_wrong_maps(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "map.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    ours, theirs = KnownClasses(2, ("dunkel ü", "hell")), KnownClasses(5, ("a", "b", "c", "d", "3"))
    with pytest.raises(BadInput, match=message):
        read_class_map(path, ours, theirs)


def test_a_number_that_is_a_name_means_the_name(tmp_path: Path) -> None:
    path = tmp_path / "map.txt"
    path.write_text("0 = 3\n1 = 0\n", "utf-8")
    assert read_class_map(path, KnownClasses(2), KnownClasses(5, ("a", "b", "c", "d", "3"))) == [4, 0]
    assert read_class_map(path, KnownClasses(2), KnownClasses(5)) == [3, 0]


@pytest.mark.parametrize("word", ["", "average", "copy", "copy=", "mean=3"])
def test_words_that_are_none(word: str) -> None:
    with pytest.raises(BadInput, match=r"expected one of --init-classes mean"):
        parse_class_start(word)


def test_words(tmp_path: Path) -> None:
    assert parse_class_start("mean") == ClassStart("mean")
    with pytest.raises(BadInput, match="no such file"):
        parse_class_start("copy=nothing.txt")
    with pytest.raises(BadInput, match="goes with --init"):
        train("biggan-small-32", tmp_path / "pictures", tmp_path / "run", init_classes="mean")


@pytest.mark.long
def test_stylegan2s_mappings_are_such_tables(tmp_path: Path, said: list[str]) -> None:
    """Their embeddings have a column for each class; what is shared by all classes is taken as it is."""
    from training.test_starting_weights import RECIPE  # noqa: PLC0415

    text = RECIPE.replace("resolution = 16\n", "resolution = 16\nclasses = 3\n", 1)
    of = load_recipe(write_recipe(tmp_path, text))
    networks = build_networks(of)
    save(networks, of, tmp_path / "w.safetensors", ("x", "y", "z"))
    pictures = write_pictures(tmp_path / "two", classes=("a", "b"), each=4)
    recipe = write_recipe(tmp_path, text.replace("classes = 3", "classes = 2"), "two.toml")
    (tmp_path / "map.txt").write_text("a = 2\nb = 0\n", "utf-8")
    with pytest.raises(BadInput, match="these weights know 3 classes, and this run has 2"):
        train(recipe, pictures, tmp_path / "refused", options=CPU, init=tmp_path / "w.safetensors", say=said.append)
    assert not any("in their places" in line for line in said)
    way = f"copy={tmp_path / 'map.txt'}"
    run = train(recipe, pictures, tmp_path / "run", options=CPU, init=tmp_path / "w.safetensors", init_classes=way).run
    tensors = load_file(sorted((run / "checkpoints").iterdir())[-1] / "networks.safetensors")
    for name in ("G", "D"):
        before = networks[name].get_parameter("mapping.embed.weight")  # [style, 3]
        torch.testing.assert_close(tensors[f"{name}.mapping.embed.weight"], before[:, [2, 0]].detach())
        torch.testing.assert_close(
            tensors[f"{name}.mapping.fc0.weight"], networks[name].get_parameter("mapping.fc0.weight").detach()
        )


def test_a_discriminator_alone(recipe: str, pictures: Path, tmp_path: Path) -> None:
    """Its table becomes their mean; the generator, and its average, are fresh."""
    of = load_recipe(recipe, ["networks.classes=5"])
    save({"D": build_networks(of)["D"]}, of, tmp_path / "w.safetensors")
    said = start(recipe, pictures, tmp_path / "run", tmp_path / "w.safetensors", "mean")
    assert said.count("init: fresh: G") == 1
    before, after = load_file(tmp_path / "w.safetensors"), newest(tmp_path / "run")
    assert near(after["D.embed.weight"], before["D.embed.weight"].mean(0).expand(2, -1))


def test_networks_without_such_tables(tmp_path: Path) -> None:
    from training.test_starting_weights import RECIPE  # noqa: PLC0415

    recipe = write_recipe(tmp_path, RECIPE)
    pictures = write_pictures(tmp_path / "flat", classes=(), each=4)
    of = load_recipe(recipe)
    save(build_networks(of), of, tmp_path / "w.safetensors")
    with pytest.raises(BadInput, match="no table of classes is both in"):
        train(recipe, pictures, tmp_path / "run", options=CPU, init=tmp_path / "w.safetensors", init_classes="mean")
