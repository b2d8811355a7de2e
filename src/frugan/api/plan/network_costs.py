"""`info`: what a recipe's networks cost."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from frugan.api.devices import use_device
from frugan.api.networks import Weights
from frugan.api.setup import training_of
from frugan.engine.plan import Plan
from frugan.engine.precision import resolve_precision
from frugan.engine.training import networks_used
from frugan.engine.weights import prepared
from frugan.memory.calibration import Peaks, measure_latency, measure_peaks
from frugan.memory.costs import NetworkCost, Run, arithmetic_intensity, bound_by, network_cost, recorded_runs
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe

CAVEAT = "Parameters and MACs alone do not give latency: memory traffic, kernel choice and batch size decide as much."


@dataclass(frozen=True)
class NetworkInfo:
    """What one network costs, counted per sample in inference unless said."""

    parameters: int  # number of them
    macs: int  # multiply-accumulates
    bytes_moved: int  # inputs and outputs of all operations
    intensity: float  # MACs per byte moved
    bound_by: str  # "compute" or "memory", on this machine
    saved_activation_bytes: int  # kept for backward in training, without recompute
    # measured forward of one sample on this machine, weights prepared; None if it was not measured
    latency_seconds: float | None


@dataclass(frozen=True)
class RecipeInfo:
    """What a recipe's networks cost on this machine."""

    name: str  # recipe or file
    recipe: Recipe
    # device, precision: what was measured on
    device: str
    precision: str
    peaks: Peaks  # what the machine reaches
    networks: dict[str, NetworkInfo]  # by name

    def as_json(self) -> dict[str, Any]:
        """For a program to read."""
        return {
            "name": self.name,
            "family": self.recipe.family,
            "trained": self.recipe.about.trained,
            "device": self.device,
            "precision": self.precision,
            "peaks": asdict(self.peaks),
            "networks": {name: asdict(network) for name, network in self.networks.items()},
            "note": CAVEAT,
        }


def _filled(network: nn.Module, device: torch.device) -> nn.Module:
    """Give a network without data some values: timing does not depend on which."""
    network.to_empty(device=device)
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.fill_(0.01)
    return network


def _runs(recipe: Recipe, built: Mapping[str, nn.Module], group: int) -> Mapping[str, Run]:
    """One forward of each network: the family's own, or as its phases call it."""
    own = recipe.kind.forwards(recipe.networks)
    if own:
        return own
    training = training_of(recipe)
    phases = training.phases
    return recorded_runs(networks_used(built, phases), phases, training.stages[0].sources, group)


def info(source: str, overrides: list[str] | None = None, *, device: str = "auto", latency: bool = True) -> RecipeInfo:
    """Count and time the networks of a recipe, or of a run or weights file.

    Args:
        source: built-in recipe, TOML file, run, checkpoint or weights file.
        overrides: `key.sub=value` words for a recipe.
        device: to measure on.
        latency: whether to time a forward.

    Raises:
        BadInput: no such recipe or file.
    """
    path = Path(source)
    if path.suffix != ".toml" and path.exists():
        recipe = Weights.open(path).recipe
    else:
        recipe = load_recipe(source, overrides or [])
    where, _ = use_device(device)
    precision = resolve_precision(recipe.training.precision, where)
    layout = Plan(1, precision).layout(where)
    peaks = measure_peaks(where, precision.dtype)
    group = recipe.training.normalisation_batch or 1
    costs: dict[str, NetworkInfo] = {}
    built = recipe.kind.build(recipe.networks, "meta")
    for name, run in _runs(recipe, built, group).items():
        cost: NetworkCost = network_cost(built[name], run, group, layout=layout)
        seconds = None
        if latency:
            network = _filled(built[name], where)
            with torch.no_grad(), prepared(network, layout):
                seconds = measure_latency(lambda run=run, network=network: run(network, 1), where)  # type: ignore[misc]
        each = cost.per_sample
        costs[name] = NetworkInfo(
            parameters=cost.parameters,
            macs=each.macs,
            bytes_moved=each.bytes_moved,
            intensity=arithmetic_intensity(each.macs, each.bytes_moved),
            bound_by=bound_by(each.macs, each.bytes_moved, peaks.macs_per_s, peaks.bytes_per_s),
            saved_activation_bytes=each.saved_activation_bytes,
            latency_seconds=seconds,
        )
    return RecipeInfo(source, recipe, str(where), precision.name, peaks, costs)
