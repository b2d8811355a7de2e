"""Networks that draw samples, from a run or a weights file to a device, and the family's grids of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from frugan.accelerator.device import disable_reduced_precision
from frugan.accelerator.precision import Precision, resolve_precision
from frugan.contract.family import GridRequest, Previews, spread
from frugan.engine.plan import Layout, Plan
from frugan.engine.run.checkpoint import STATE_FILE
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.state.state import TrainingState
from frugan.engine.state.working_weights import prepared_together
from frugan.errors import BadInput
from frugan.files import read_json
from frugan.progress import Say
from frugan.recipe.recipe import Recipe
from frugan.reporting.grids import loss_strip, many_files, not_finite, write_grid
from frugan.setup.devices import use_device
from frugan.setup.networks import Weights, networks_from
from frugan.setup.recipe_setup import with_pictures


def provenance(recipe: Recipe, step: int) -> dict[str, str]:
    """Return the texts that a generated picture carries about itself."""
    return {
        "Software": "frugan",
        "Description": f"synthetic: made by a {recipe.family} network at {_when(recipe, step)}",
        "Recipe": recipe.about.summary or recipe.family,
    }


def _when(recipe: Recipe, step: int) -> str:
    """Return the step in words, with the kind of training that it is a step of, where that is not the usual one."""
    return f"step {step:,}" + ("" if recipe.preliminary is None else f" of {recipe.preliminary.name}")


def write_sample(
    recipe: Recipe,
    networks: Mapping[str, nn.Module],
    request: GridRequest,
    path: Path,
    step: int,
    class_names: Sequence[str],
    say: Say,
    losses: Mapping[str, Sequence[float]] = MappingProxyType({}),
    told: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Tensor, list[Path]]:
    """Draw a grid with prepared networks, and write it with what stands above and beside it.

    Args:
        step: of training.
        class_names, say, losses: see `write_grids`.
        told: further texts in the file.

    Returns:
        The grid [rows, columns, C, R, R] in [-1, 1], and its file, or files where it is large.
    """
    grid = recipe.kind.sample(recipe.networks, networks, request)
    if line := not_finite(grid):
        say(f"{path.name}: {line}")
    above = partial(loss_strip, losses, _when(recipe, step)) if losses else None
    titles, labels = request.titles, _row_labels(request, len(grid), class_names)
    if request.mixing is not None:
        titles = ("", *map(str, request.mixing.columns))
        labels = ("seed", *(f"seed {seed}" for seed in request.mixing.rows))
    elif request.seeds and request.interpolate is None:
        titles = tuple(map(str, request.seeds))
    paths = write_grid(grid, path, provenance(recipe, step) | dict(told), above, titles, labels)
    if line := many_files(paths):
        say(f"{path.name}: {line}")
    return grid, paths


def _row_labels(request: GridRequest, rows: int, names: Sequence[str]) -> tuple[str, ...]:
    """Return the label of each row of a grid: the name of its class, or its number where it has no name.

    Args:
        request: that the grid was made by.
        rows: of the grid.
        names: of the classes, by number; may be empty.

    Returns:
        Empty where rows are no classes: interpolations, faces.
    """
    if request.classes is None or request.interpolate is not None or len(request.classes) != rows:
        return ()
    if set(request.classes) == {0} and len(names) <= 1:
        return ()  # a network without classes
    return tuple(names[number] if number < len(names) else f"class {number}" for number in request.classes)


def write_grids(
    recipe: Recipe,
    state: TrainingState,
    plan: Plan,
    run: RunFolder,
    previews: Previews | None,
    losses: Mapping[str, Sequence[float]],
    class_names: Sequence[str],
    say: Say,
) -> list[Path]:
    """Write the family's grids of the averaged networks, or of the networks where none is averaged.

    Of more classes than there are rows each snapshot shows other ones.

    Args:
        run: whose earlier snapshots are counted, and where these go.
        losses: side -> loss of every step so far, drawn above each grid; may be empty.
        class_names: by number, to stand before the rows; may be empty.
        say: is told of pictures that are not finite: no reason to end a training.

    Returns:
        Their paths.
    """
    run.samples.mkdir(parents=True, exist_ok=True)
    sheet = len({step for step, _, _ in run.grids() if step < state.step})
    networks, layout = state.shown, plan.layout(state.device)
    if plan.ema_on_host and state.ema.networks and state.device.type != "cpu":
        # The card's precision may be one that this processor is slow in.
        host = torch.device("cpu")
        layout = replace(plan, precision=resolve_precision("auto", host)).layout(host)
    paths: list[Path] = []
    with torch.no_grad(), prepared_together(networks, layout):
        for name, request in recipe.kind.snapshots(recipe.networks).items():
            classes = spread(request.classes, request.rows, sheet) if request.classes is not None else None
            shown = replace(with_pictures(recipe, request, previews), classes=classes, micro_batch=plan.micro_batch)
            path = run.samples / f"step-{state.step:09d}-{name}.png"
            paths += write_sample(recipe, networks, shown, path, state.step, class_names, say, losses)[1]
    return paths


MOST_AT_ONCE = 16
"""Samples in one forward on a machine of which nothing is known, if nothing is said."""


@dataclass(frozen=True)
class Opened:
    """Networks that draw samples."""

    weights: Weights  # weights that they were loaded from
    networks: dict[str, nn.Module]  # averaged ones, where training averages
    layout: Layout  # layout of their working weights

    @property
    def recipe(self) -> Recipe:
        """Recipe that the networks were trained by."""
        return self.weights.recipe

    @property
    def provenance(self) -> dict[str, str]:
        """Texts that pictures carry about themselves."""
        return provenance(self.recipe, self.weights.step)


def device_and_precision(weights: Weights, requested: str, say: Say) -> tuple[torch.device, Precision]:
    """Choose the device and the precision that networks of a weights file run in, and report both.

    Raises:
        BadInput: there is no such device.
    """
    device, why = use_device(requested)
    say(f"weights: {weights.path}")
    say(f"device: {device} ({why})")
    precision = resolve_precision(weights.recipe.training.precision, device)
    if precision.warning:
        say(f"precision {precision.name}: {precision.warning}")
    return device, precision


def open_networks(source: str | Path | Weights, device: str, say: Say) -> Opened:
    """Networks of a run, a checkpoint or a weights file, in the recipe's precision.

    Raises:
        BadInput: no such weights, or without the network that draws.
    """
    weights = Weights.open(source, say)
    where, precision = device_and_precision(weights, device, say)
    disable_reduced_precision()
    networks = networks_to_draw(weights, where)
    layout = Plan(GridRequest().micro_batch, precision).layout(where)
    return Opened(weights, networks, layout)


def networks_to_draw(weights: Weights, device: torch.device) -> dict[str, nn.Module]:
    """Networks of a weights file, in evaluation mode.

    Raises:
        BadInput: the one that draws is not among them.
    """
    networks = networks_from(weights, device)
    missing = set(weights.recipe.kind.averaged()) - set(networks)
    if missing:
        raise BadInput(f"{weights.path}: holds no {', '.join(sorted(missing))}, which draws the samples")
    for network in networks.values():
        network.eval()
    return networks


def default_micro_batch(weights: Weights) -> int:
    """Samples to draw at once: no more than a run was trained with, which takes less memory than training did."""
    state = read_json(weights.path.parent / STATE_FILE)
    try:
        return min(int(state["plan"]["micro_batch"]), MOST_AT_ONCE)
    except (ValueError, KeyError, TypeError):
        return MOST_AT_ONCE  # no run, or of another program
