"""Networks that draw samples: from a run, a checkpoint or a weights file to a device."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from frugan.api.machine.devices import use_device
from frugan.api.networks import networks_from
from frugan.api.progress import Say
from frugan.api.sample.sample_grids import provenance
from frugan.api.weights import Weights
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
        weights: where they come from.
        networks: averaged ones, where training averages.
        layout: of their working weights.
    """

    weights: Weights
    networks: dict[str, nn.Module]
    layout: Layout

    @property
    def recipe(self) -> Recipe:
        """That they were trained by."""
        return self.weights.recipe

    @property
    def provenance(self) -> dict[str, str]:
        """What pictures say about themselves."""
        return provenance(self.recipe, self.weights.step)


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


def open_networks(source: str | Path | Weights, device: str, say: Say) -> Opened:
    """Networks of a run, a checkpoint or a weights file, in the recipe's precision.

    Raises:
        BadInput: no such weights, or without the network that draws.
    """
    weights = Weights.open(source, say)
    where, precision = device_and_precision(weights, device, say)
    pin_arithmetic()
    networks = networks_from(weights, where)
    missing = set(weights.recipe.kind.averaged()) - set(networks)
    if missing:
        raise BadInput(f"{weights.path}: holds no {', '.join(sorted(missing))}, which draws the samples")
    for network in networks.values():
        network.eval()
    layout = Plan(SheetRequest().micro_batch, precision).layout(where)
    return Opened(weights, networks, layout)


def default_micro_batch(weights: Weights) -> int:
    """Samples to draw at once: no more than a run was trained with, which takes less memory than training did."""
    try:
        state = json.loads((weights.path.parent / STATE_FILE).read_text("utf-8"))
        trained = int(state["plan"]["micro_batch"])
    except (OSError, ValueError, KeyError, TypeError):
        return MOST_AT_ONCE  # no run, or of another program
    return min(trained, MOST_AT_ONCE)
