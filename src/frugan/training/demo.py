"""`demo`: the whole main job on digits that come with the package, on a CPU, in minutes; and the same by styles."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from frugan.contract.family import GridRequest, StyleMixing
from frugan.data.digits import SPLIT_SEED, as_tensors, digits_set, split_digits
from frugan.engine.run.events import Event
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.run.threads import threads_put_back
from frugan.engine.state.working_weights import prepared
from frugan.metrics.digit_classifier import DigitClassifier, class_accuracy, trained_on_generated
from frugan.progress import Say
from frugan.recipe.loading import load_recipe
from frugan.sampling.sampling import sample
from frugan.setup.networks import Weights, networks_from
from frugan.training.run import TrainingOptions, TrainingResult
from frugan.training.training import train

DIGITS_RECIPE = "biggan-digits-32"
PER_CLASS = 200


@dataclass(frozen=True)
class DemoResult:
    """Scores of the demo, and where its files are."""

    class_accuracy: float  # share of generated digits that the classifier takes for the class asked for
    trained_on_generated: float  # accuracy on unseen real digits of the same classifier fitted on generated ones
    classifier_accuracy: float  # accuracy on unseen real digits of the classifier fitted on real ones
    seconds: float  # wall time of everything
    run: Path  # the run folder
    samples: Path  # last grid of samples
    interpolation: Path  # last grid of interpolations
    style_mixing: Path | None = None  # a grid of one digit's styles; None: the networks have none


def _generated(run: Path) -> tuple[Tensor, Tensor]:
    """PER_CLASS digits of each class from the run's averaged generator: [N, 3, R, R], and the classes asked for [N]."""
    weights = Weights.open(run)
    networks = networks_from(weights)
    request = GridRequest(seed=3, classes=range(10), columns=PER_CLASS, micro_batch=100)
    with prepared(networks["G"]):
        grid = weights.recipe.kind.sample(weights.recipe.networks, networks, request)  # [10, PER_CLASS, 3, R, R]
    return grid.flatten(0, 1), torch.arange(10).repeat_interleave(PER_CLASS)


def demo(
    out: Path, *, recipe_name: str = DIGITS_RECIPE, say: Say, show: Callable[[Event], None]
) -> DemoResult | TrainingResult:
    """Train a recipe on half of the 1,797 digits and judge what it generates by the other half.

    Neither the generator nor the classifier sees the other half.

    Args:
        out: run folder; an interrupted demo goes on.
        recipe_name: built in, of digits by class.
        say: is given a line for every automatic choice.
        show: is given every event.

    Returns:
        What it found; or the training that was stopped, not judged.
    """
    began = time.perf_counter()
    recipe = load_recipe(recipe_name)
    resolution = next(iter(recipe.sources.values())).resolution
    fit_on, test_on = split_digits(SPLIT_SEED)
    real, unseen = digits_set(resolution, fit_on), digits_set(resolution, test_on)
    say(f"data: {len(real)} of 1,797 handwritten digits (UCI, CC BY 4.0) to learn from, {len(unseen)} kept unseen")
    result = train(recipe, {"images": real}, out, options=TrainingOptions(device="cpu"), say=say, show=show)
    if not result.finished:
        return result
    with threads_put_back():
        torch.set_num_threads(result.threads)  # as many as were fastest in training
        pictures, labels = as_tensors(unseen)
        classifier = DigitClassifier.fit(*as_tensors(real))
        generated, class_labels = _generated(result.run)
        of_generated = class_accuracy(classifier, generated, class_labels)
        of_unseen = class_accuracy(classifier, pictures, labels)
        by_generated = trained_on_generated(generated, class_labels, pictures, labels)
    folder = RunFolder(result.run)
    return DemoResult(
        class_accuracy=of_generated,
        trained_on_generated=by_generated,
        classifier_accuracy=of_unseen,
        seconds=time.perf_counter() - began,
        run=result.run,
        samples=folder.newest_grid("samples"),
        interpolation=folder.newest_grid("interpolation"),
    )


STYLEGAN2_RECIPE = "stylegan2-digits-32"
MIXED_CLASS = 3
MIXING = StyleMixing(rows=(1, 2, 3, 4), columns=(5, 6, 7, 8), layers=(0, 1, 2))
"""Layers up to 8 pixels: the shape is the columns', the stroke the rows'."""


def demo_stylegan2(
    out: Path, *, say: Callable[[str], None], show: Callable[[Event], None]
) -> DemoResult | TrainingResult:
    """Train `stylegan2-digits-32` on half of the digits, judge it by the other half, and mix styles.

    Args:
        out: run folder; an interrupted demo goes on.
        say: is given a line for every automatic choice.
        show: is given every event.

    Returns:
        What it found; or the training that was stopped, not judged.
    """
    result = demo(out, recipe_name=STYLEGAN2_RECIPE, say=say, show=show)
    if isinstance(result, TrainingResult):
        return result
    request = GridRequest(classes=(MIXED_CLASS,), mixing=MIXING)
    out = result.run / "style-mixing"
    (mixed,) = sample(result.run, out, request, replace_files=True, device="cpu", say=lambda line: None)
    return replace(result, style_mixing=mixed)
