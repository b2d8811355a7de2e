"""`demo`: the whole main job on embedded data, on a CPU, in minutes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from frugan.api.demo.stopped_demo import StoppedDemo
from frugan.api.networks import networks_from
from frugan.api.progress import Say
from frugan.api.sample.sample_grids import newest_sheet
from frugan.api.train.options import TrainingOptions
from frugan.api.train.result import TrainingResult
from frugan.api.train.training import train
from frugan.api.weights import Weights
from frugan.contract.family import SheetRequest
from frugan.data.digits import SPLIT_SEED, digits_set, split_digits
from frugan.data.picture_set import PictureSet
from frugan.engine.events import Event
from frugan.engine.prepared import prepared
from frugan.engine.run_folder import RunFolder
from frugan.engine.threads import threads_put_back
from frugan.metrics.digit_classifier import DigitClassifier, class_accuracy, trained_on_generated
from frugan.recipe.loading import load_recipe

RECIPE = "biggan-digits-32"
PER_CLASS = 200


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Attributes:
        class_accuracy: share of generated digits that the classifier takes for the class asked for.
        trained_on_generated: accuracy on unseen real digits of the same classifier fitted on generated ones.
        classifier_accuracy: accuracy on unseen real digits of the classifier fitted on real ones.
        seconds: wall time of everything.
        run: the run folder.
        samples, interpolation: the last sheets.
    """

    class_accuracy: float
    trained_on_generated: float
    classifier_accuracy: float
    seconds: float
    run: Path
    samples: Path
    interpolation: Path


def _pictures(digits: PictureSet) -> tuple[Tensor, Tensor]:
    """[N, 3, R, R] in [-1, 1], and labels [N]."""
    return torch.from_numpy(digits.pictures.copy()).float() / 127.5 - 1, torch.from_numpy(digits.labels)


def _generated(run: Path) -> tuple[Tensor, Tensor]:
    """PER_CLASS digits of each class from the run's averaged generator: [N, 3, R, R], and the classes asked for [N]."""
    weights = Weights.open(run)
    networks = networks_from(weights)
    request = SheetRequest(seed=3, classes=range(10), columns=PER_CLASS, micro_batch=100)
    with prepared(networks["G"]):
        sheet = weights.recipe.kind.sample(weights.recipe.networks, networks, request)  # [10, PER_CLASS, 3, R, R]
    return sheet.flatten(0, 1), torch.arange(10).repeat_interleave(PER_CLASS)


def demo(out: Path, *, recipe_name: str = RECIPE, say: Say, show: Callable[[Event], None]) -> DemoResult | StoppedDemo:
    """Train a recipe on half of the 1,797 digits and judge what it generates by the other half.

    Neither the generator nor the classifier sees the other half.

    Args:
        out: run folder; an interrupted demo goes on.
        recipe_name: built in, of digits by class.
        say: is given a line for every automatic choice.
        show: is given every event.

    Returns:
        What it found; or where it was stopped, not judged.
    """
    began = time.perf_counter()
    recipe = load_recipe(recipe_name)
    resolution = next(iter(recipe.kind.sources(recipe.networks, recipe.objective).values())).resolution
    fit_on, test_on = split_digits(SPLIT_SEED)
    real, unseen = digits_set(resolution, fit_on), digits_set(resolution, test_on)
    say(f"data: {len(real)} of 1,797 handwritten digits (UCI, CC BY 4.0) to learn from, {len(unseen)} kept unseen")
    result: TrainingResult = train(
        recipe, {"images": real}, out, options=TrainingOptions(device="cpu"), say=say, show=show
    )
    if not result.finished:
        return StoppedDemo(result.run, result.step)
    with threads_put_back():
        torch.set_num_threads(result.threads)  # as many as were fastest in training
        pictures, labels = _pictures(unseen)
        classifier = DigitClassifier.fit(*_pictures(real))
        generated, asked = _generated(result.run)
        of_generated = class_accuracy(classifier, generated, asked)
        of_unseen = class_accuracy(classifier, pictures, labels)
        by_generated = trained_on_generated(generated, asked, pictures, labels)
    sheets = RunFolder(result.run).samples
    return DemoResult(
        class_accuracy=of_generated,
        trained_on_generated=by_generated,
        classifier_accuracy=of_unseen,
        seconds=time.perf_counter() - began,
        run=result.run,
        samples=newest_sheet(sheets, "samples"),
        interpolation=newest_sheet(sheets, "interpolation"),
    )
