"""Subscribers to a training's events: watches that warn, loss history, experiment trackers."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from frugan.accelerator.device import catch_out_of_memory
from frugan.contract.family import GridRequest
from frugan.data.batches import random_order
from frugan.data.formats.picture_set import PictureSet
from frugan.engine.plan import Plan
from frugan.engine.run.events import Event, read_events
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.state.state import TrainingState
from frugan.engine.state.working_weights import prepared_together
from frugan.errors import BadInput
from frugan.metrics.diversity import DiversityRatios, WithinClass, pixel_rows, ratios, within_class
from frugan.recipe.overrides import DEFAULT_OPTIMIZER
from frugan.recipe.recipe import Recipe
from frugan.reporting.loss_history import LossHistory
from frugan.reporting.signs import CollapseSigns, GradientSigns
from frugan.stepmemory.cards import is_spilling
from frugan.training.recovery import init_words
from frugan.training.run import TrainRun
from frugan.wording import score_name

FIRST_LOOK_STEPS = 500
FIRST_LOOK_IMAGES = 10_000
"""Before both of these a generator has learnt too little: its samples may all be alike, or differ as noise does."""
SAMPLES = 32
"""Samples of each class. Real pictures in their places had at least 0.89 of the real distance, as a mean over the
classes, in all of 3,600 draws from six sets; with 16 it went down to 0.83."""
MOST_CLASSES = 10
LEAST_REAL = 10
"""Pictures of a class from which on their distances say what is usual in it."""
MOST_REAL = 200
MOST_REAL_BYTES = 256 * 2**20
"""Real pictures read in all, unless `SAMPLES` of each class are more."""
TWINS_SHARE = 0.25
"""Samples over real pictures of a class, at most, for repetitions to count: a generator that knows nothing but all of
these pictures then seldom repeats itself."""
SEED = 4


@dataclass
class VarietyWatch:
    """Compares the variety within classes of a training's samples with that of its pictures.

    Samples come from the networks that are trained, not from their averages: an average shows a collapse later by as
    many steps as it reaches back. On the digits, of a run that collapsed between steps 400 and 600, its samples had
    0.91 of the real distance at step 600, those of the trained weights 0.58.
    """

    recipe: Recipe  # recipe of the training
    pictures: PictureSet  # pictures of the training

    @cached_property
    def classes(self) -> tuple[int, ...]:
        """Up to `MOST_CLASSES` labels of classes with enough pictures, evenly spaced."""
        counts = np.bincount(self.pictures.labels)
        enough = np.flatnonzero(counts >= LEAST_REAL)
        if not len(enough):
            return ()
        at = np.unique(np.linspace(0, len(enough) - 1, min(MOST_CLASSES, len(enough))).round().astype(np.int64))
        return tuple(int(label) for label in enough[at])

    @cached_property
    def _real(self) -> WithinClass:
        """Distances between real pictures, of each class as many as `MOST_REAL` and `MOST_REAL_BYTES` allow."""
        share = MOST_REAL_BYTES // (len(self.classes) * self.pictures.channels * self.pictures.resolution**2)
        most = min(MOST_REAL, max(SAMPLES, share))
        order = random_order(f"variety/{self.pictures.digest}", len(self.pictures))
        labels = self.pictures.labels[order]
        chosen = {label: np.sort(order[labels == label][:most]) for label in self.classes}
        rows = [pixel_rows(torch.from_numpy(np.array(self.pictures.readable(at)))) for at in chosen.values()]
        numbers = [torch.full((len(of),), label) for label, of in zip(chosen, rows, strict=True)]
        return within_class(torch.cat(rows), torch.cat(numbers))

    def due(self, step: int) -> bool:
        """Return whether variety should be measured after this step."""
        images = step * self.recipe.training.batch
        return bool(self.classes) and step >= FIRST_LOOK_STEPS and images >= FIRST_LOOK_IMAGES

    def measure(self, state: TrainingState, plan: Plan) -> DiversityRatios | None:
        """Measure the present generator's variety without side effects; None: its pictures are not finite."""
        networks = {name: state.networks[name] for name in state.shown}
        request = GridRequest(seed=SEED, classes=self.classes, columns=SAMPLES, micro_batch=plan.micro_batch)
        with torch.no_grad(), prepared_together(networks, plan.layout(state.device)):
            grid = self.recipe.kind.sample(self.recipe.networks, networks, request)  # [classes, SAMPLES, C, R, R]
        return self.compare(grid) if bool(torch.isfinite(grid).all()) else None

    def compare(self, grid: Tensor) -> DiversityRatios:
        """Compare samples with the real pictures.

        Args:
            grid: in [-1, 1], a row for each of `classes` [classes, samples, C, R, R].
        """
        labels = torch.tensor(self.classes).repeat_interleave(grid.shape[1])
        samples = within_class(pixel_rows(grid.flatten(0, 1)), labels)
        return ratios(samples, self._real, real_share=TWINS_SHARE)


def _variety_watch(run: TrainRun) -> VarietyWatch | None:
    """Return a watch for a class-conditional training; None for any other."""
    needs = run.recipe.sources
    if len(needs) != 1:
        return None
    ((name, need),) = needs.items()
    pictures = run.sources[name]
    if need.classes is None or not isinstance(pictures, PictureSet):
        return None
    return VarietyWatch(run.recipe, pictures)


def watch(run: TrainRun, device: torch.device) -> LossHistory:
    """Subscribe the loss history and the watches, which warn of what looks wrong, to a run's events.

    That is a collapse, by losses, gradients or variety; parameters that get no gradient, and fp16 that turns gradients
    into zeros; and, once, at a checkpoint, a driver that moves a full card's memory to the host (Windows).

    Returns:
        The run's losses so far, which grow.
    """
    losses = LossHistory.of(run.folder.events) if run.is_first else LossHistory()
    collapse, gradients = CollapseSigns(retry=partial(slower_command, run)), GradientSigns()
    if run.is_first:
        for event in read_events(run.folder.events):  # of a run that goes on, however often it was stopped
            with suppress(LookupError, TypeError, ValueError, AttributeError):  # an event of another version
                list(collapse.look(event))  # its lines were told then
    spilling = False

    def look(event: Event) -> None:
        nonlocal spilling
        losses.add(event)
        told, over = [*collapse.look(event), *gradients.look(event)], collapse.over  # a warning is an event itself
        for line in told:
            run.warn(int(event["step"]), line)
        for line in over:
            run.warning_over(int(event["step"]), line)
        if event["event"] == "checkpoint" and not spilling and is_spilling(device):
            spilling = True
            run.choose(
                "the card is full: this system's driver may be moving memory to the computer's own, which is many "
                "times slower; close other programs, or resume with a smaller --memory"
            )

    run.log.subscribe(look)
    return losses


GENERATOR = "G"
"""Name of the generator's optimizer in every family that has one of its own."""


def slower_command(run: TrainRun) -> str | None:
    """Return a command line that starts a new run with half the generator's learning rate.

    None where its pictures are in no file, or the generator has no optimizer of its own.
    """
    optimizers = run.recipe.optimizers
    generator = optimizers.get(GENERATOR, optimizers.get(DEFAULT_OPTIMIZER))
    if run.command is None or generator is None or GENERATOR not in run.recipe.kind.optimizers:
        return None
    rates = {"learning_rate": generator.learning_rate, "final_learning_rate": generator.final_learning_rate}
    words = [f"optimizers.{GENERATOR}.{key}={rate / 2:g}" for key, rate in rates.items() if rate is not None]
    for option, value in zip(("--init", "--init-classes"), init_words(run.folder), strict=True):
        words += [] if value is None else [option, value]
    words += ["--out", str(RunFolder(run.folder.path.resolve()).unused().path)]  # "." has no name to add a number to
    return f"{run.command} {shlex.join(words)}"


def variety_measurement(run: TrainRun) -> Callable[[TrainingState, Plan], None]:
    """Return a callback that measures the variety within classes when due, and logs it."""
    watch = _variety_watch(run)
    return lambda state, plan: None if watch is None else _measure(run, watch, state, plan)


def _measure(run: TrainRun, watch: VarietyWatch, state: TrainingState, plan: Plan) -> None:
    if not watch.due(state.step):
        return
    ratios = None
    with catch_out_of_memory() as messages:
        ratios = watch.measure(state, plan)
    for message in messages:
        run.choose(f"variety within classes not measured at step {state.step:,}, memory ran out: {message}")
    if ratios is not None:
        names = watch.pictures.class_names
        mean, nearest = (
            {names[label]: round(ratio, 4) for label, ratio in by_label.items()}
            for by_label in (ratios.mean, ratios.nearest)
        )
        run.log.write("variety", step=state.step, mean=mean, nearest=nearest)


Follow = Callable[[Event], None]

_OF_A_PHASE = ("gradient_norm", "loss_scale", "skipped", "learning_rate")


def has_tensorboard() -> bool:
    """Return whether the TensorBoard package can be imported."""
    return find_spec("tensorboard") is not None


@contextmanager
def following(run: Path, *, tensorboard: bool, wandb_project: str | None) -> Iterator[Follow]:
    """Yield a subscriber that forwards events to TensorBoard and Weights & Biases while the block is open.

    Args:
        run: folder; TensorBoard's files go into its folder `tensorboard`.
        tensorboard: write them.
        wandb_project: on Weights & Biases; None: send nothing there.

    Raises:
        BadInput: what is asked for is not installed.
    """
    with ExitStack() as opened:
        followers: list[Follow] = []
        if tensorboard:
            followers.append(opened.enter_context(_tensorboard(run)))
        if wandb_project is not None:
            followers.append(opened.enter_context(_wandb(run, wandb_project)))

        def follow(event: Event) -> None:
            for follower in followers:
                follower(event)

        yield follow


def scalars(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of an event by name ("D/real", "scores/fid")."""
    numbers: dict[str, Any] = {}
    if event.get("event") == "step":
        numbers = _of_a_step(event)
    elif event.get("event") == "metrics":
        network = event.get("provenance", {}).get("network")
        numbers = {f"scores/{score_name(name, network)}": value for name, value in event["scores"].items()}
    elif event.get("event") == "variety" and event["mean"]:
        numbers = {f"variety/{name}": fmean(event[name].values()) for name in ("mean", "nearest")}
    return {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}


def _of_a_step(event: Mapping[str, Any]) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for phase, entry in event["phases"].items():
        numbers |= {f"{phase}/{term}": value for term, value in entry["terms"].items()}
        numbers |= {f"{phase}/{name}": entry[name] for name in _OF_A_PHASE if name in entry}
    numbers |= {name: event[name] for name in ("images_per_second", "memory_bytes") if event.get(name)}
    numbers |= {f"card/{name}": value for name, value in event.get("card", {}).items() if name != "samples"}
    numbers |= event.get("carried", {})
    numbers |= {f"singular values/{layer}": value for layer, value in event.get("singular_values", {}).items()}
    return numbers


@contextmanager
def _tensorboard(run: Path) -> Iterator[Follow]:
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise BadInput("--tensorboard: TensorBoard is not installed: pip install 'frugan[report]'") from error
    writer = SummaryWriter(str(run / "tensorboard"))

    def follow(event: Event) -> None:
        for name, value in scalars(event).items():
            writer.add_scalar(name, value, event["step"])
        for path in _grids(run, event):
            with Image.open(path) as grid:
                pixels = np.asarray(grid.convert("RGB"))
            writer.add_image(_kind(path), pixels, event["step"], dataformats="HWC")

    try:
        yield follow
    finally:
        writer.close()


@contextmanager
def _wandb(run: Path, project: str) -> Iterator[Follow]:
    try:
        import wandb  # noqa: PLC0415  (an extra of its own)
    except ImportError as error:
        raise BadInput(f"--wandb {project}: Weights & Biases is not installed: pip install wandb") from error
    session = wandb.init(
        project=project, name=run.name, dir=str(run), id=RunFolder(run).called_at_wandb(), resume="allow"
    )

    def follow(event: Event) -> None:
        if event.get("event") == "start":
            session.config.update(event["recipe"], allow_val_change=True)
        values: dict[str, Any] = dict(scalars(event))
        values |= {_kind(path): wandb.Image(str(path)) for path in _grids(run, event)}
        if values:
            session.log({**values, "step": event["step"]})

    try:
        yield follow
    finally:
        session.finish()


def _grids(run: Path, event: Mapping[str, Any]) -> list[Path]:
    return [run / name for name in event.get("paths", ())] if event.get("event") == "snapshot" else []


def _kind(path: Path) -> str:
    """ "step-000000200-samples.png" -> "samples"."""
    return path.stem.split("-", 2)[-1]
