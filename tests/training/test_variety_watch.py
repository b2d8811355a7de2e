"""Collapse is seen where it is, and never in real pictures; a training does not notice that it is looked at."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import load_file
from torch import Tensor

from frugan.contract.family import GridRequest
from frugan.data.digits import SPLIT_SEED, digits_set, split_digits
from frugan.data.formats.picture_set import PictureSet, picture_digest
from frugan.engine.run.checkpoint import EMA_FILE, NETWORKS_FILE
from frugan.engine.run.events import read_events
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.state.working_weights import prepared
from frugan.metrics.diversity import DiversityRatios
from frugan.recipe.loading import load_recipe
from frugan.reporting.report import view
from frugan.reporting.run_report import VARIETY
from frugan.reporting.signs import CollapseSigns
from frugan.setup.networks import Weights, networks_from
from frugan.training.observers import FIRST_LOOK_IMAGES, FIRST_LOOK_STEPS, LEAST_REAL, SAMPLES, SEED, VarietyWatch
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from limits import Limit, place_of
from training.pictures import RECIPE, write_pictures, write_recipe

DRAWS = 20
FIXTURES = Path(__file__).parents[1] / "golden" / "collapse"


def watch_of(pictures: NDArray[np.uint8], labels: NDArray[np.int64]) -> VarietyWatch:
    names = tuple(f"class {number}" for number in range(int(labels.max()) + 1))
    digest = picture_digest(pictures, labels)
    return VarietyWatch(load_recipe("biggan-digits-32"), PictureSet(pictures, labels, names, True, digest))


def warnings(watch: VarietyWatch, grid: Tensor) -> list[str]:
    ratios = watch.compare(grid)
    mean, nearest = ({str(label): ratio for label, ratio in each.items()} for each in (ratios.mean, ratios.nearest))
    return list(CollapseSigns().look({"event": "variety", "step": 600, "mean": mean, "nearest": nearest}))


def digits() -> VarietyWatch:
    """The demo's training half."""
    pictures = digits_set(32, split_digits(SPLIT_SEED)[0])
    return watch_of(pictures.pictures, pictures.labels)


def digits_of_one_class() -> VarietyWatch:
    pictures = digits_set(32, split_digits(SPLIT_SEED)[0])
    return watch_of(pictures.pictures, np.zeros_like(pictures.labels))


def letters() -> VarietyWatch:
    """Black on white, of 4 sizes at 9 places; a few classes have few pictures."""
    pictures, labels = [], []
    for number, letter in enumerate("AIMOSWX"):
        for place in range(36 if number < 5 else 12):
            image = Image.new("RGB", (32, 32), "white")
            at = (14 + place % 3 * 2, 14 + place // 3 % 3 * 2)
            font = ImageFont.load_default(size=14 + 3 * (place // 9))
            ImageDraw.Draw(image).text(at, letter, "black", font=font, anchor="mm")
            pictures.append(np.asarray(image).transpose(2, 0, 1))
            labels.append(number)
    return watch_of(np.stack(pictures), np.array(labels))


def drawn_faces() -> VarietyWatch:
    """Of two people; see the fixture's README."""
    with np.load(FIXTURES / "drawn-faces.npz") as arrays:
        pictures = arrays["pictures"]  # uint8 [2, 32, 3, 16, 16]
    return watch_of(pictures.reshape(-1, *pictures.shape[2:]), np.repeat(np.arange(2), pictures.shape[1]))


@pytest.mark.parametrize("made", [digits, digits_of_one_class, letters, drawn_faces])
def test_real_pictures_are_never_called_alike(made: Callable[[], VarietyWatch]) -> None:
    """Drawn anew many times in place of samples; with repetition, as a generator that knows nothing else would."""
    watch, random = made(), np.random.default_rng(0)
    members = [np.flatnonzero(watch.pictures.labels == label) for label in watch.classes]
    for _ in range(DRAWS):
        at = np.stack([random.choice(each, SAMPLES, replace=len(each) < 2 * SAMPLES) for each in members])
        grid = torch.from_numpy(watch.pictures.pictures[at]).float() / 127.5 - 1  # [classes, SAMPLES, 3, R, R]
        assert warnings(watch, grid) == []


def test_grey_samples_are_compared_with_grey_pictures() -> None:
    """Pictures that differ by colour and hardly by grey: real ones, turned grey, in the places of grey samples."""
    random = np.random.default_rng(0)
    red = random.integers(0, 256, (64, 1, 8, 8))
    pictures = np.concatenate([red, 255 - red, np.full_like(red, 128)], 1).astype(np.uint8)
    watch = watch_of(pictures, np.zeros(64, np.int64))
    in_grey = replace(watch, pictures=watch.pictures.in_grey())
    grid = torch.from_numpy(in_grey.pictures[np.arange(SAMPLES)]).float()[None] / 127.5 - 1  # [1, SAMPLES, 1, R, R]
    assert in_grey.compare(grid).mean[0] == pytest.approx(1, abs=0.05)
    assert watch.compare(grid).mean[0] < 0.6  # beside the colours they would pass for alike


def test_two_collapsed_runs_are_told_at_step_600() -> None:
    """Digits that the trained weights of two runs of the demo's recipe drew there; see the fixture's README."""
    whole = digits()
    small = F.adaptive_avg_pool2d(torch.from_numpy(whole.pictures.pictures.copy()).float(), 16).round()
    watch = watch_of(small.to(torch.uint8).numpy(), whole.pictures.labels)
    with np.load(FIXTURES / "digits-at-step-600.npz") as arrays:
        runs = [torch.from_numpy(arrays[name]) for name in ("seed_0", "seed_1")]  # uint8 [10, 16, 16, 16]
    for grey in runs:
        grid = (grey.float() / 127.5 - 1)[:, :, None].expand(-1, -1, 3, -1, -1)
        (told,) = warnings(watch, grid)
        assert "of 10 classes are more alike than real pictures" in told


def test_a_class_that_shows_one_picture_is_named() -> None:
    watch = digits()
    at = np.stack([np.flatnonzero(watch.pictures.labels == label)[:SAMPLES] for label in watch.classes])
    grid = torch.from_numpy(watch.pictures.pictures[at]).float() / 127.5 - 1
    grid[4] = grid[4, :1] + 0.01 * torch.randn(grid[4].shape, generator=torch.Generator().manual_seed(0))
    (told,) = warnings(watch, grid)
    assert "samples of 1 of 10 classes" in told
    assert "lowest: 4 0.0" in told


def test_classes_with_pictures_enough_are_looked_at_evenly() -> None:
    labels = np.repeat(np.arange(40), np.where(np.arange(40) % 2, LEAST_REAL, LEAST_REAL - 1))
    watch = watch_of(np.zeros((len(labels), 3, 4, 4), np.uint8), labels)
    assert watch.classes == (1, 5, 9, 13, 17, 23, 27, 31, 35, 39)
    none = watch_of(np.zeros((5, 3, 4, 4), np.uint8), np.zeros(5, np.int64))
    assert none.classes == ()


def test_real_pictures_are_read_within_bounds(limit: Limit) -> None:
    def read() -> list[int]:
        return [len(ranked) + 1 for ranked in digits()._real.ranked.values()]

    assert min(read()) > 80
    limit("real pictures of a class", 50)
    assert set(read()) == {50}
    limit("bytes of real pictures", 10 * 40 * 3 * 32 * 32)
    assert set(read()) == {40}
    limit("bytes of real pictures", 1)
    assert set(read()) == {SAMPLES}


def variety_events(run: Path) -> list[int]:
    return [event["step"] for event in read_events(run / "events.jsonl") if event["event"] == "variety"]


@dataclass(frozen=True)
class Looked:
    """Two runs of one recipe, "plain" and "watched" from its first step on."""

    folder: Path  # of both
    lines: list[str]  # said in the watched one
    grids: list[Tensor]  # compared in it


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Looked:
    result = Looked(tmp_path_factory.mktemp("looked"), [], [])
    compare = VarietyWatch.compare

    def comparing(watch: VarietyWatch, grid: Tensor) -> DiversityRatios:
        result.grids.append(grid)
        return compare(watch, grid)

    pictures = write_pictures(result.folder / "pictures", each=LEAST_REAL)
    recipe = write_recipe(result.folder, RECIPE.replace('snapshot_every = "4 steps"', 'snapshot_every = "2 steps"'))
    options = TrainingOptions(device="cpu")
    train(recipe, pictures, result.folder / "plain", options=options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*place_of("steps before a first look"), 2)  # grids are drawn after the first step too
        patch.setattr(*place_of("images before a first look"), 1)
        patch.setattr(*place_of("least variety"), 1000.0)
        patch.setattr(VarietyWatch, "compare", comparing)
        train(recipe, pictures, result.folder / "watched", options=options, say=result.lines.append)
    return result


@pytest.mark.long
def test_training_does_not_notice_that_it_is_looked_at(looked: Looked) -> None:
    """Weights, averages, optimizers: bit for bit."""
    assert variety_events(looked.folder / "plain") == []  # too early to call samples alike
    assert variety_events(looked.folder / "watched") == [2, 4]
    for file in ("networks", "ema", "optimizers"):
        newest = f"checkpoints/step-000000004/{file}.safetensors"
        plain, watched = (load_file(looked.folder / name / newest) for name in ("plain", "watched"))
        assert plain.keys() == watched.keys()
        assert all(torch.equal(plain[key], watched[key]) for key in plain)


def test_what_is_seen_is_said_once(looked: Looked) -> None:
    (told,) = [line for line in looked.lines if "more alike than real pictures" in line]
    assert told.startswith("warning: samples of 2 of 2 classes")
    assert "hell " in told
    events = read_events(looked.folder / "watched" / "events.jsonl")
    assert [event["step"] for event in events if event["event"] == "warning"] == [2]
    shown = view(RunFolder(looked.folder / "watched"), "run").charts[VARIETY]
    assert {name: curve.steps for name, curve in shown.items()} == {
        "mean distance": [2, 4],
        "to the nearest neighbour": [2, 4],
    }


def test_the_weights_that_are_trained_are_looked_at(looked: Looked) -> None:
    """Not their averages, which show a collapse later."""

    def drawn(file: str) -> Tensor:
        weights = Weights.open(looked.folder / "watched" / "checkpoints" / "step-000000004" / file)
        networks = networks_from(weights)
        request = GridRequest(seed=SEED, classes=(0, 1), columns=SAMPLES, micro_batch=4)
        with prepared(networks["G"]):
            return weights.recipe.kind.sample(weights.recipe.networks, networks, request)

    torch.testing.assert_close(looked.grids[-1], drawn(NETWORKS_FILE), rtol=0, atol=1e-5)
    assert (looked.grids[-1] - drawn(EMA_FILE)).abs().max() > 1e-3


def test_nothing_is_looked_at_before_a_generator_has_learnt() -> None:
    watch = digits()
    assert FIRST_LOOK_STEPS * watch.recipe.training.batch > FIRST_LOOK_IMAGES
    assert not watch.due(20)
    assert not watch.due(FIRST_LOOK_STEPS - 1)
    assert watch.due(FIRST_LOOK_STEPS)
    small = replace(
        watch, recipe=load_recipe("biggan-digits-32", ["training.batch=8", "training.normalisation_batch=8"])
    )
    assert not small.due(FIRST_LOOK_STEPS)
    assert small.due(FIRST_LOOK_IMAGES // 8)
