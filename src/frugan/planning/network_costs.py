"""`info`: what a recipe's networks cost, by running them on tensors without data; no formula about any model."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from frugan.accelerator.precision import resolve_precision
from frugan.contract.data import SourceSpec
from frugan.contract.layers import Observer
from frugan.contract.phase import MicroBatch, Phase, PhaseState
from frugan.engine.plan import Layout, Plan
from frugan.engine.run.training import networks_used
from frugan.engine.state.working_weights import prepared, working_weights
from frugan.engine.streams import Streams
from frugan.errors import checked
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.setup.devices import explain_out_of_memory, use_device
from frugan.setup.networks import Weights
from frugan.setup.recipe_setup import build_networks, training_of
from frugan.stepmemory.calibration import Peaks, measure_latency, measure_peaks
from frugan.stepmemory.work import MacCounter, SavedActivations, TrafficCounter
from frugan.torch_internals import FakeTensorMode

Run = Callable[[nn.Module, int], object]
"""(network, samples) -> anything: one forward, on inputs that it makes by `torch.empty` (which costs nothing)."""


@dataclass(frozen=True)
class Cost:
    """An amount of work."""

    macs: int  # multiply-accumulates of convolutions, matrix products and attention, in inference
    bytes_moved: int  # inputs and outputs of every operation, in inference
    saved_activation_bytes: int  # kept for backward when the network is trained, without recompute


@dataclass(frozen=True)
class NetworkCost:
    """Costs of one forward of a network."""

    parameters: int  # number of them; a shared one counts once
    per_sample: Cost  # what one more sample adds
    per_call: Cost  # what is left at no samples: preparing the weights (spectral norm, casts) and reading them

    def at(self, samples: int) -> Cost:
        """Cost of a forward of `samples` samples, weights prepared anew for it."""
        return _combine(self.per_call, self.per_sample, lambda call, sample: call + samples * sample)


def network_cost(
    network: nn.Module, run: Run, batch: int = 1, *, layout: Layout | None = None, device: torch.device | str = "cpu"
) -> NetworkCost:
    """Measure what one forward of a network costs, from forwards of `batch` and of twice as many samples.

    Nothing is computed and no memory is taken: the network is copied to fake tensors, on which torch picks the kernels
    of `device`. (On the meta device attention would take the path that stores the whole map.)

    Args:
        network: outside a phase, on any device, meta included; it is left as it is.
        run: one forward; it finds tensors without data wherever it makes some, so it may not read values.
        batch: samples; a whole number of normalisation groups if the network has any.
        layout: dtype and memory format of the weights; default: fp32 as they are. Give the one that will be trained
            with: it changes traffic and activations by more than the size of a number (torch's fused attention refuses
            values that are not contiguous, as NCHW pictures make them).
        device: whose kernels; a CPU build of torch knows only "cpu".

    Raises:
        ValueError: batch below 1.
    """
    if batch < 1:
        raise ValueError(f"batch {batch}: expected at least one sample; try 1, or the size of a normalisation group")
    layout = layout or Layout()
    with FakeTensorMode(allow_non_fake_inputs=True):
        dataless = without_data(network, torch.device(device))
        small, large = (_measure(dataless, run, samples, layout) for samples in (batch, 2 * batch))
    per_sample = _combine(large, small, lambda more, less: round((more - less) / batch))
    per_call = _combine(small, per_sample, lambda all_, sample: all_ - batch * sample)
    return NetworkCost(sum(p.numel() for p in network.parameters()), per_sample, per_call)


def _combine(a: Cost, b: Cost, how: Callable[[int, int], int]) -> Cost:
    return Cost(
        how(a.macs, b.macs),
        how(a.bytes_moved, b.bytes_moved),
        how(a.saved_activation_bytes, b.saved_activation_bytes),
    )


def without_data(network: nn.Module, device: torch.device) -> nn.Module:
    """Copy a network with every parameter and buffer replaced by a fake tensor; call under a FakeTensorMode."""
    replaced: dict[int, object] = {}
    for tensor in (*network.parameters(), *network.buffers()):
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        is_parameter = isinstance(tensor, nn.Parameter)
        replaced[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
    return copy.deepcopy(network, replaced)


def _measure(network: nn.Module, run: Run, samples: int, layout: Layout) -> Cost:
    """Run inference for arithmetic and traffic, and a training forward for what it saves."""
    with torch.no_grad(), MacCounter() as macs, TrafficCounter() as traffic, prepared(network, layout):
        run(network, samples)
    masters: tuple[Tensor, ...] = (*network.parameters(), *network.buffers())
    network.train()
    with working_weights({"network": network}, {"network": layout}, ("network",), Observer()):
        activations = SavedActivations((*masters, *network.parameters()))
        with torch.enable_grad(), activations.watch():
            run(network, samples)
    return Cost(macs.macs(), traffic.bytes_moved, activations.saved_bytes)


def recorded_runs(
    networks: Mapping[str, nn.Module], phases: Sequence[Phase], needs: Mapping[str, SourceSpec], group: int
) -> dict[str, Run]:
    """One forward of each network on zeros, shaped as what its first call in a training step is given.

    The parts of all phases run once on tensors without data, and what whole networks are called with is noted.

    Args:
        networks: those that phases use, outside a phase, on any device.
        needs: what each data source has to give.
        group: samples that networks normalise over together.

    Raises:
        ValueError: no phase calls one of the networks as a whole.
    """
    samples = 3 * group  # not 1, which is the size of many a dimension
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        device = torch.device("cpu")
        dataless = {name: without_data(network, device).train() for name, network in networks.items()}
        for name, network in dataless.items():

            def note(_: nn.Module, args: tuple[Any, ...], words: dict[str, Any], name: str = name) -> None:
                calls.setdefault(name, (args, words))

            network.register_forward_pre_hook(note, with_kwargs=True)
        for phase in phases:
            pictures = {source: needs[source].blank(samples) for source in phase.sources}
            streams = Streams(0)
            draws = {**streams.batch(phase, 0, 0, samples), **streams.micro_batch(phase, 0, 0, 0, samples, device)}
            carried = {name: _without_value(value.initial) for name, value in phase.carried.items()}
            for part in phase.parts:
                part(dataless, MicroBatch(pictures, draws, samples), PhaseState(carried, _without_value(1.0)))
    if missing := [name for name in networks if name not in calls]:
        raise ValueError(
            f"no phase calls the whole of {', '.join(missing)}: the family's `forwards` must say how it runs"
        )
    return {name: _replay(*calls[name], samples) for name in networks}


def _without_value(values: float | tuple[float, ...]) -> Tensor:
    """State that a phase carries, without data."""
    return torch.zeros((len(values),) if isinstance(values, tuple) else ())


def _replay(args: tuple[Any, ...], words: dict[str, Any], recorded: int) -> Run:
    """The call of a network with zeros, and as many samples as one likes, in place of its tensors."""

    def run(network: nn.Module, samples: int) -> object:
        device = next(network.parameters()).device

        def zeros(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            size = value.shape
            shape = (samples, *size[1:]) if size[:1] == (recorded,) else size
            return torch.zeros(shape, dtype=value.dtype, device=device)

        return network(*map(zeros, args), **{name: zeros(value) for name, value in words.items()})

    return run


def arithmetic_intensity(macs: float, bytes_moved: float) -> float:
    """Multiply-accumulates per byte moved; infinite if nothing moves."""
    return macs / bytes_moved if bytes_moved else math.inf


def bound_by(
    macs: float, bytes_moved: float, peak_macs_per_s: float, bytes_per_s: float
) -> Literal["compute", "memory"]:
    """Which of a machine's two limits the work meets first, by the roofline model.

    Source: Williams et al. 2009, "Roofline: an insightful visual performance model for multicore architectures".

    Raises:
        ValueError: a peak that is not positive.
    """
    if peak_macs_per_s <= 0 or bytes_per_s <= 0:
        raise ValueError(f"peaks {peak_macs_per_s} MAC/s and {bytes_per_s} B/s: expected both above 0; measure_peaks")
    return "compute" if macs / peak_macs_per_s >= bytes_moved / bytes_per_s else "memory"


CAVEAT = "Parameters and MACs alone do not give latency: memory traffic, kernel choice and batch size decide as much."


@dataclass(frozen=True)
class NetworkInfo:
    """Costs of one network, per sample in inference unless said."""

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
    """Costs of a recipe's networks on this machine."""

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
    forwards = recipe.kind.forwards(recipe.networks)
    if forwards:
        return forwards
    training = training_of(recipe)
    phases = training.phases
    return recorded_runs(networks_used(built, phases), phases, training.stages[0].sources, group)


@checked
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
    with explain_out_of_memory(where, "the device's peaks were measured"):
        peaks = measure_peaks(where, precision.dtype)
    group = recipe.training.normalisation_batch or 1
    costs: dict[str, NetworkInfo] = {}
    built = build_networks(recipe, "meta")
    for name, run in _runs(recipe, built, group).items():
        cost: NetworkCost = network_cost(built[name], run, group, layout=layout)
        seconds = None
        if latency:
            with explain_out_of_memory(where, f"{name} was timed"), torch.no_grad():
                network = _filled(built[name], where)
                with prepared(network, layout):
                    seconds = measure_latency(lambda run=run, network=network: run(network, 1), where)  # type: ignore[misc]
        sample = cost.per_sample
        costs[name] = NetworkInfo(
            parameters=cost.parameters,
            macs=sample.macs,
            bytes_moved=sample.bytes_moved,
            intensity=arithmetic_intensity(sample.macs, sample.bytes_moved),
            bound_by=bound_by(sample.macs, sample.bytes_moved, peaks.macs_per_s, peaks.bytes_per_s),
            saved_activation_bytes=sample.saved_activation_bytes,
            latency_seconds=seconds,
        )
    return RecipeInfo(source, recipe, str(where), precision.name, peaks, costs)
