"""Networks that draw samples: from a run, a checkpoint or a weights file to a device."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from frugan.api.machine.devices import use_device
from frugan.api.networks import networks_from
from frugan.api.progress import Say, quiet
from frugan.api.sample.sample_grids import provenance
from frugan.api.weights import Weights, read_weights, step_of, weights_file
from frugan.contract.family import SheetRequest
from frugan.engine.arithmetic import pin_arithmetic
from frugan.engine.checkpoint import STATE_FILE
from frugan.engine.layout import Layout
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision, resolve_precision
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe

MOST_AT_ONCE = 16
"""Samples in one forward on a machine of which nothing is known, if nothing is said."""


@dataclass(frozen=True)
class Opened:
    """Networks that draw samples.

    Attributes:
        recipe: that they were trained by.
        networks: averaged ones, where training averages.
        layout: of their working weights.
        device: where they are.
        weights: their file.
        class_names: what labels mean, in their order; empty: nobody knows.
    """

    recipe: Recipe
    networks: dict[str, nn.Module]
    layout: Layout
    device: torch.device
    weights: Path
    class_names: tuple[str, ...]

    @property
    def provenance(self) -> dict[str, str]:
        """What pictures say about themselves."""
        return provenance(self.recipe, step_of(self.weights))


def device_and_precision(weights: Weights, asked: str, say: Say) -> tuple[torch.device, Precision]:
    """Where networks of a weights file run, and in which precision; both are said.

    Raises:
        BadInput: no such device here.
    """
    device, why = use_device(asked)
    say(f"weights: {weights.path}")
    say(f"device: {device} ({why})")
    precision = resolve_precision(weights.recipe.training.precision, device)
    if precision.warning:
        say(f"precision {precision.name}: {precision.warning}")
    return device, precision


def open_networks(source: str | Path, device: str, say: Say) -> Opened:
    """Networks of a run, a checkpoint or a weights file, in the recipe's precision.

    Raises:
        BadInput: no such weights, or without the network that draws.
    """
    weights = read_weights(weights_file(Path(source), say=say))
    recipe = weights.recipe
    where, precision = device_and_precision(weights, device, say)
    pin_arithmetic()
    networks = networks_from(weights, where)
    missing = set(recipe.kind.averaged()) - set(networks)
    if missing:
        raise BadInput(f"{weights.path}: holds no {', '.join(sorted(missing))}, which draws the samples")
    for network in networks.values():
        network.eval()
    layout = Plan(SheetRequest().micro_batch, precision).layout(where)
    return Opened(recipe, networks, layout, where, weights.path, weights.class_names)


def default_micro_batch(source: str | Path) -> int:
    """Samples to draw at once: no more than a run was trained with, which takes less memory than training did."""
    try:  # what is damaged is told of when the weights are opened
        state = json.loads((weights_file(Path(source), say=quiet).parent / STATE_FILE).read_text("utf-8"))
        trained = int(state["plan"]["micro_batch"])
    except (OSError, ValueError, KeyError, TypeError):
        return MOST_AT_ONCE  # no run, or of another program
    return min(trained, MOST_AT_ONCE)
