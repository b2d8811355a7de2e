"""`demo`: the whole main job on data that comes with the package, on a CPU, in minutes: digits, faces, styles."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from frugan.api.networks import Weights, networks_from
from frugan.api.progress import Say
from frugan.api.sample.networks import newest_grid_of, provenance
from frugan.api.sample.sampling import sample
from frugan.api.train.run import TrainingOptions, TrainingResult
from frugan.api.train.training import train
from frugan.contract.family import GridRequest, StyleMixing
from frugan.data.digits import SPLIT_SEED, digits_set, split_digits
from frugan.data.faces.drawn_faces import FACES, Unseen, unseen_faces, write_drawn_faces
from frugan.data.faces.geometry import opencv
from frugan.data.picture_set import PictureSet
from frugan.engine.events import Event
from frugan.engine.run_folder import RunFolder
from frugan.engine.threads import threads_put_back
from frugan.engine.weights import prepared
from frugan.errors import BadInput
from frugan.families.saehd.config import SAEHDNetworks
from frugan.families.saehd.networks import code_of, decode, encode, swap_code
from frugan.files import Folders
from frugan.metrics.digit_classifier import DigitClassifier, class_accuracy, trained_on_generated
from frugan.recipe.loading import load_recipe
from frugan.recipe.overrides import differences
from frugan.recipe.recipe import Recipe
from frugan.report.grids import write_grid


def demo_folder(name: str, recipe_name: str, say: Say) -> Path:
    """The folder `name` among the runs, where a demo goes on; name-2, name-3 ... past runs of another recipe.

    So whoever has run the demo of another version gets today's, and keeps theirs.

    Args:
        recipe_name: of today's demo.
        say: is told of the runs that are left alone.
    """
    recipe, runs = load_recipe(recipe_name), Folders.from_environment().runs
    for number in count(1):
        folder = runs / (name if number == 1 else f"{name}-{number}")
        if not RunFolder(folder).exists or _goes_on(folder, recipe):
            break
        say(f"{folder} is a run of another recipe: left as it is")
    return folder


def _goes_on(folder: Path, recipe: Recipe) -> bool:
    """Whether a run can be resumed by a recipe."""
    try:
        before = load_recipe(str(folder))
    except BadInput:  # of a version whose fields are no longer known
        return False
    return before.family == recipe.family and all(each.changeable for each in differences(before, recipe).values())


DIGITS_RECIPE = "biggan-digits-32"
PER_CLASS = 200


@dataclass(frozen=True)
class DemoResult:
    """What the demo found."""

    class_accuracy: float  # share of generated digits that the classifier takes for the class asked for
    trained_on_generated: float  # accuracy on unseen real digits of the same classifier fitted on generated ones
    classifier_accuracy: float  # accuracy on unseen real digits of the classifier fitted on real ones
    seconds: float  # wall time of everything
    run: Path  # the run folder
    # samples, interpolation: the last grids
    samples: Path
    interpolation: Path
    style_mixing: Path | None = None  # a grid of one digit's styles; None: the networks have none


def _pictures(digits: PictureSet) -> tuple[Tensor, Tensor]:
    """[N, 3, R, R] in [-1, 1], and labels [N]."""
    return torch.from_numpy(digits.pictures.copy()).float() / 127.5 - 1, torch.from_numpy(digits.labels)


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
        pictures, labels = _pictures(unseen)
        classifier = DigitClassifier.fit(*_pictures(real))
        generated, asked = _generated(result.run)
        of_generated = class_accuracy(classifier, generated, asked)
        of_unseen = class_accuracy(classifier, pictures, labels)
        by_generated = trained_on_generated(generated, asked, pictures, labels)
    grids = RunFolder(result.run).samples
    return DemoResult(
        class_accuracy=of_generated,
        trained_on_generated=by_generated,
        classifier_accuracy=of_unseen,
        seconds=time.perf_counter() - began,
        run=result.run,
        samples=newest_grid_of(grids, "samples"),
        interpolation=newest_grid_of(grids, "interpolation"),
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
    (mixed,) = sample(result.run, result.run / "style-mixing", request, device="cpu", say=lambda line: None)
    return replace(result, style_mixing=mixed)


FACES_RECIPE = "saehd-demo-64"
SHOWN = 6
TITLES = ("D", "swap", "truth", "S", "SS")


@dataclass(frozen=True)
class FaceDemoResult:
    """What the demo found, on moments that no weight was fitted to; errors are mean absolute differences, 0 to 1."""

    swap_error: float  # between the swap and the source person drawn in the same moment, inside the face
    unswapped_error: float  # between the destination's face as it is and the same truth: what doing nothing would give
    reconstruction_error: float  # of source faces, inside the face
    seconds: float  # wall time of everything
    run: Path  # the run folder
    workspace: Path  # the drawn faces, laid out as DeepFaceLab does
    # preview, comparison: the last preview; destination, swap and truth side by side
    preview: Path
    comparison: Path


def _unseen(which: Unseen) -> tuple[Tensor, Tensor]:
    """Pictures [N, 3, R, R], BGR, and masks [N, 1, R, R], fp32 in [0, 1], of a person in moments that nobody learnt."""
    faces = unseen_faces(which)
    pictures = torch.from_numpy(faces.pictures).permute(0, 3, 1, 2).float() / 255
    return pictures.contiguous(), torch.from_numpy(faces.masks)[:, None]


def _error(made: Tensor, truth: Tensor, mask: Tensor) -> float:
    return float(((made - truth).abs() * mask).sum() / (mask.sum() * 3))


def _judge(run: Path, folder: Path) -> tuple[float, float, float, Path]:
    """Swap and reconstruct unseen faces; the three errors and the picture."""
    weights = Weights.open(run)
    networks, recipe = networks_from(weights), weights.recipe
    archi = SAEHDNetworks.model_validate(recipe.networks.model_dump()).letters
    source, inside_source = _unseen(Unseen.SOURCE)
    destination, _ = _unseen(Unseen.DESTINATION)
    truth, inside_truth = _unseen(Unseen.TRUTH)
    with torch.no_grad(), prepared(torch.nn.ModuleDict(networks)):
        vectors = encode(networks, destination)
        swap, _ = decode(archi, networks, swap_code(archi, networks, vectors), "src")
        vectors = encode(networks, source)
        again, _ = decode(archi, networks, code_of(archi, networks, vectors, "src"), "src")
    columns = (destination, swap, truth, source, again)
    grid = torch.stack([column[:SHOWN] for column in columns], 1).flip(2) * 2 - 1  # [rows, columns, 3, R, R], RGB
    path = folder / "comparison.png"
    write_grid(grid.clamp(-1, 1), path, provenance(recipe, 0), titles=TITLES)
    swap_error, unswapped_error = (_error(made, truth, inside_truth) for made in (swap, destination))
    return swap_error, unswapped_error, _error(again, source, inside_source), path


def demo_faces(out: Path, *, say: Say, show: Callable[[Event], None]) -> FaceDemoResult | TrainingResult:
    """Train `saehd-demo-64` on two drawn people, and judge the swap by what was drawn of the one in the other's place.

    Args:
        out: folder for the run and the workspace; an interrupted demo goes on.
        say: is given a line for every automatic choice.
        show: is given every event.

    Returns:
        What it found; or the training that was stopped, not judged.

    Raises:
        BadInput: OpenCV is missing.
    """
    began = time.perf_counter()
    opencv()
    run, workspace = out / "run", out / "workspace"
    if not workspace.is_dir():
        write_drawn_faces(workspace)
    say(f"data: {FACES} drawn faces of each of two people who do not exist, in {workspace}")
    recipe = load_recipe(FACES_RECIPE)
    options = TrainingOptions(device="cpu")
    result = train(recipe, workspace, run, options=options, say=say, show=show)
    if not result.finished:
        return result
    with threads_put_back():
        torch.set_num_threads(result.threads)  # as many as were fastest in training
        swap, unswapped, again, comparison = _judge(result.run, out)
    return FaceDemoResult(
        swap_error=swap,
        unswapped_error=unswapped,
        reconstruction_error=again,
        seconds=time.perf_counter() - began,
        run=run,
        workspace=workspace,
        preview=newest_grid_of(RunFolder(run).samples, "preview"),
        comparison=comparison,
    )
