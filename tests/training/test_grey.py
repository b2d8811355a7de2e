"""Grey pictures from end to end: offered, trained on, drawn, compared and scored."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import frugan
from frugan.contract.family import GridRequest
from frugan.data.digits import digits_set
from frugan.data.formats.picture_set import PictureSet, picture_digest
from frugan.engine.run.checkpoint import load_networks, network_tensors
from frugan.errors import BadInput
from frugan.evaluation.evaluation import evaluate
from frugan.evaluation.scorer import EvaluationOptions
from frugan.families.biggan.config import BigGANNetworks
from frugan.families.biggan.networks import Generator, latent_size
from frugan.planning.recipe_predictions import subject
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.reporting.report import page_of
from frugan.sampling.requests import DrawRequest
from frugan.sampling.sampling import animate, check_memorisation, draw, sample
from frugan.setup.recipe_setup import parameter_counts
from frugan.setup.run_data_sources import open_sources
from frugan.training.run import TrainingOptions
from frugan.training.starting_weights import StartingWeights, with_channels
from frugan.training.training import train
from training.pictures import write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")
GREY = "networks.channels=1"
EVALUATION = EvaluationOptions(metrics=("fid", "pr"), samples=24, network=f"{__name__}:colours", device="cpu")


def colours(pictures: Tensor) -> Tensor:
    """A feature network that takes red, green and blue."""
    assert pictures.shape[1] == 3
    return torch.nn.functional.adaptive_avg_pool2d(pictures.float() / 255, 2).flatten(1)  # [N, 12]


def turned_grey(pictures: Path, folder: Path) -> Path:
    """The same pictures in grey."""
    for path in pictures.rglob("*.png"):
        to = folder / path.relative_to(pictures)
        to.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as opened:
            opened.convert("L").save(to)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grey run of four steps, scored twice while it went on, with its pictures in grey and as they were in colour."""
    made = tmp_path_factory.mktemp("grey")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRUGAN_BASE", str(made / "base"))
        colour = write_pictures(made / "colour")
        turned_grey(colour, made / "grey")
        words = [GREY, "evaluation.every=2 steps", 'evaluation.metrics=["fid"]', "evaluation.samples=10"]
        words.append(f"evaluation.network={EVALUATION.network}")
        train(write_recipe(made), made / "grey", made / "run", overrides=words, options=CPU, say=quiet)
    return made


def modes(paths: Sequence[Path]) -> set[str]:
    seen = set()
    for path in paths:
        with Image.open(path) as opened:
            seen.add(opened.mode)
    return seen


def test_everything_drawn_is_grey(folder: Path, tmp_path: Path) -> None:
    run = folder / "run"
    grids = list((run / "samples").glob("*.png"))
    grids += sample(run, tmp_path / "own", device="cpu", say=quiet)
    grids += sample(run, tmp_path / "asked", GridRequest(interpolate="both", columns=3), device="cpu", say=quiet)
    drawn = draw(run, tmp_path / "many", DrawRequest(), npz=5, pngs=5, sheet=(1, 2), device="cpu", say=quiet)
    pngs = sorted(drawn[1].rglob("*.png"), key=lambda path: path.name)
    assert len(grids) == 7  # of the run: after the first step and at its end
    assert modes([*grids, drawn[2], *pngs]) == {"L"}
    with np.load(drawn[0]) as archive:
        assert archive["x"].shape == (5, 1, 32, 32)
        for picture, path in zip(archive["x"], pngs, strict=True):
            with Image.open(path) as opened:
                np.testing.assert_array_equal(np.asarray(opened), picture[0])
    assert len(page_of([run])) > 10_000


@pytest.mark.parametrize("kind", ["gif", "mp4"])
def test_films(folder: Path, tmp_path: Path, kind: str) -> None:
    request = GridRequest(interpolate="latent", columns=3, rows=2)
    path = animate(folder / "run", tmp_path / f"film.{kind}", request, device="cpu", say=quiet)
    if kind == "gif":
        with Image.open(path) as film:
            assert film.n_frames == 4  # type: ignore[attr-defined]
            pixels = np.asarray(film.convert("RGB")).astype(int)
    else:
        read, frame = cv2.VideoCapture(str(path)).read()
        assert read
        pixels = frame.astype(int)
    assert np.ptp(pixels, axis=2).max() <= (0 if kind == "gif" else 8)  # the codec rounds
    assert np.ptp(pixels) > 20


def test_loaded_networks_and_their_cost(folder: Path) -> None:
    networks = frugan.load(folder / "run")
    generator = networks["G"]
    pictures = generator(torch.zeros(2, 8), generator.embed(torch.tensor([0, 1])))  # type: ignore[operator]
    assert pictures.shape == (2, 1, 32, 32)
    recipe = str(folder / "tiny.toml")
    colour, grey = (parameter_counts(load_recipe(recipe, words)) for words in ([], [GREY]))
    kernels = {name: colour[name] - grey[name] for name in ("G", "D")}
    # G: two of three 3x3 kernels on 8 channels and their biases; D: two of three inputs of a 3x3 and of a 1x1 kernel
    assert kernels == {"G": 2 * (8 * 9 + 1), "D": 2 * 8 * (9 + 1)}


@pytest.mark.parametrize("data", ["grey", "colour"])
def test_scores_and_nearest_pictures(folder: Path, tmp_path: Path, data: str, said: list[str]) -> None:
    """Pictures in colour are compared as the network was shown them: grey."""
    evaluation = evaluate(folder / "run", folder / data, EVALUATION, say=said.append)
    assert any("turned grey" in line for line in said) is (data == "colour")
    assert all(np.isfinite(value) for value in evaluation.scores.values())
    near = check_memorisation(folder / "run", folder / data, tmp_path, samples=2, nearest=2, device="cpu", say=quiet)
    assert modes(near.sheets) == {"L"}


def test_colours_do_not_count_in_scores_of_grey_networks(folder: Path) -> None:
    """A set in colour has the scores of its luma, under another digest than its own."""
    colour = np.random.default_rng(0).integers(0, 256, (30, 3, 32, 32)).astype(np.uint8)
    labels = np.arange(30) % 2

    def scored(pictures: np.ndarray) -> frugan.Evaluation:
        made = PictureSet(pictures, labels, ("a", "b"), True, picture_digest(pictures, labels))
        return evaluate(folder / "run", made, EVALUATION, say=quiet)

    luma = np.stack([np.asarray(Image.fromarray(each.transpose(1, 2, 0)).convert("L")) for each in colour])
    one, other = scored(colour), scored(np.repeat(luma[:, None], 3, 1))
    assert one.scores == pytest.approx(other.scores, rel=1e-9)
    assert one.provenance.data_digest != picture_digest(colour, labels)


@pytest.mark.long
def test_digits_score_grey_networks(folder: Path, tmp_path: Path) -> None:
    digits = digits_set(32, np.arange(40))
    words = [GREY, "networks.classes=10", "training.duration=1 step"]
    train(str(folder / "tiny.toml"), {"images": digits}, tmp_path / "run", overrides=words, options=CPU, say=quiet)
    options = replace(EVALUATION, network="digits")
    evaluation = evaluate(tmp_path / "run", "digits", options, say=quiet)
    assert np.isfinite(evaluation.scores["fid"])
    assert evaluation.provenance.data_digest != digits.digest  # the unseen ones


@pytest.mark.long
def test_a_run_in_colour_is_offered_grey_once_and_stays_in_colour(folder: Path, tmp_path: Path) -> None:
    recipe, data, run = write_recipe(tmp_path), folder / "grey", tmp_path / "run"
    said: list[list[str]] = [[], []]
    for lines, words in zip(said, (["training.duration=1 step"], ["training.duration=2 steps"]), strict=True):
        train(recipe, data, run, overrides=words, options=CPU, say=lines.append)
    assert [line for line in said[0] if "networks.channels" in line] == [
        "data: all 12 pictures are grey: networks.channels=1 draws grey pictures, where three channels may tint them "
        "(add it to the command for a new run)"
    ]
    assert not any("networks.channels" in line for line in said[1])
    with pytest.raises(BadInput, match=r"networks\.channels: 3 in the run, 1 now"):
        train(recipe, data, run, overrides=[GREY], options=CPU, say=quiet)
    grids = sample(run, tmp_path / "own", device="cpu", say=quiet)
    _, pngs = draw(run, tmp_path / "many", npz=2, pngs=2, device="cpu", say=quiet)
    assert modes([*grids, *(run / "samples").glob("*.png"), *pngs.rglob("*.png")]) == {"RGB"}
    with np.load(tmp_path / "many" / "samples.npz") as archive:
        assert archive["x"].shape == (2, 3, 32, 32)


@pytest.mark.parametrize(("data", "channels"), [("grey", 3), ("grey", 1), ("colour", 3), ("colour", 1)])
def test_what_is_said_of_channels(folder: Path, data: str, channels: int, said: list[str]) -> None:
    recipe = load_recipe(str(folder / "tiny.toml"), [f"networks.channels={channels}"])
    opened = open_sources(recipe, folder / data, said.append, None)
    (pictures,) = opened.values()
    assert isinstance(pictures, PictureSet)
    assert pictures.channels == channels
    turned = [line for line in said if "turned grey" in line]
    offered = list(recipe.kind.sources(recipe.networks, recipe.objective)["images"].advice(pictures))
    assert (len(turned), len(offered)) == (int((data, channels) == ("colour", 1)), int((data, channels) == ("grey", 3)))


def test_what_was_predicted_before_there_was_a_choice_still_holds() -> None:
    """Predictions are known by these fields: those that ship were made without this one."""
    assert "channels" not in subject(load_recipe("biggan-digits-32"))["networks"]
    assert subject(load_recipe("biggan-digits-32", [GREY]))["networks"]["channels"] == 1


def test_other_numbers_of_channels_are_refused() -> None:
    with pytest.raises(BadInput, match=r"networks\.channels: must be 1 or 3"):
        load_recipe("biggan-digits-32", ["networks.channels=4"])
    grey = digits_set(32, np.arange(20)).in_grey()
    with pytest.raises(BadInput, match="read in grey, but the recipe needs colour"):
        train("biggan-digits-32", {"images": grey}, Path("never"), options=CPU, say=quiet)


def test_weights_for_colours_and_for_grey_start_each_other() -> None:
    """The discriminator judges a grey picture as one with three equal channels, and the generator makes their mean."""
    both = {channels: recipe_for(channels) for channels in (1, 3)}
    networks = {channels: networks_of(recipe) for channels, recipe in both.items()}
    grey = torch.rand(2, 1, 32, 32) * 2 - 1
    z, label = torch.randn(2, latent_size(BigGANNetworks.model_validate(both[3].networks))), torch.tensor([0, 1])

    def made_by(generator: torch.nn.Module, *latents_and_classes: Tensor) -> Tensor:
        assert isinstance(generator, Generator)
        z, classes = latents_and_classes
        return cast(Tensor, generator(z, generator.embed(classes)))

    for theirs, ours in ((3, 1), (1, 3)):
        weights = StartingWeights(Path("weights"), network_tensors(networks[theirs]), both[theirs])
        here = networks_of(both[ours])
        load_networks(here, with_channels(weights, network_tensors(here), both[ours]).tensors, "weights")
        judged = [
            networks_at["D"](grey.expand(-1, channels, -1, -1), label)
            for channels, networks_at in ((theirs, networks[theirs]), (ours, here))
        ]
        torch.testing.assert_close(*judged)
        made = [made_by(n["G"], z, label).atanh().mean(1) for n in (networks[theirs], here)]
        torch.testing.assert_close(*made, atol=1e-5, rtol=1e-4)


def recipe_for(channels: int) -> Recipe:
    return load_recipe("biggan-small-32", [f"networks.channels={channels}", "networks.classes=2"])


def networks_of(recipe: Recipe) -> dict[str, torch.nn.Module]:
    networks = recipe.kind.build(recipe.networks)
    recipe.kind.initialise(recipe.networks, networks, len)
    return {name: network.eval() for name, network in networks.items()}
