"""A small training of any family, begun anew for each thing that is tried on it, on pictures made on the host."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.host_memory import Away, HostCopies
from frugan.accelerator.precision import DTYPES, Precision
from frugan.contract.data import SourceSpec
from frugan.contract.family import Family
from frugan.contract.phase import Networks, Phase
from frugan.engine.plan import Plan
from frugan.engine.run.training import Training
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.optimizer_settings import (
    AdaBeliefSettings,
    AdamSettings,
    OptimizerSettings,
    RMSpropSettings,
    SGDSettings,
)
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.engine.step.update import DrawFeed, PhaseResult, PictureFeed, Probe
from frugan.engine.streams import Streams, derive_seed
from frugan.planning.plan_space import SaverName

SEED = 5
HOST = torch.device("cpu")


@dataclass(frozen=True)
class MadePictures:
    """Samples without meaning of the kind that each source gives."""

    needs: Mapping[str, SourceSpec]  # requirements on each source

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        pictures = [self._one(source, stream, at) for at in range(position, position + count)]
        return {name: torch.stack([one[name] for one in pictures]) for name in pictures[0]}

    def _one(self, source: str, stream: str, at: int) -> dict[str, Tensor]:
        need, random = self.needs[source], torch.Generator().manual_seed(derive_seed(SEED, stream, at))
        return {name: _filled(blank[0], need, random) for name, blank in need.blank(1).items()}


@dataclass(frozen=True)
class PinnedPictures:
    """Pictures in memory that a card copies from by itself, as those of a training are."""

    feed: PictureFeed
    device: torch.device  # the card

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        accelerator = accelerator_of(self.device)
        return {
            name: accelerator.pin(tensor) for name, tensor in self.feed.take(source, stream, position, count).items()
        }


def _filled(blank: Tensor, need: SourceSpec, random: torch.Generator) -> Tensor:
    if blank.dtype == torch.uint8:
        return torch.randint(256, blank.shape, generator=random, dtype=torch.uint8)
    if blank.dtype == torch.int64:
        return torch.randint(need.classes or 1, blank.shape, generator=random)
    values = torch.rand(blank.shape, generator=random)
    return values.round() if blank.ndim and blank.shape[0] == 1 else values  # one channel is a mask


class HostDraws(Streams):
    """Random inputs that are all made on the host: a card's own generator gives other numbers from one seed."""

    def micro_batch(
        self, phase: Phase, step: int, repeat: int, first: int, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        """The large inputs of some images of one update, on the device."""
        micro_batch = super().micro_batch(phase, step, repeat, first, count, HOST)
        return {name: draw.to(device, non_blocking=True) for name, draw in micro_batch.items()}


FP32 = Precision("fp32", torch.float32, "tried")
WEIGHTS_SEED, STREAMS_SEED = 3, 7
RATE = 1e-2
FOUND_SCALE = 256.0
"""A loss scale such as fp16 comes down to; at its first one gradients within losses may be infinite."""
LARGE_EPS = 1e-2
"""Keeps Adam from turning rounding noise in gradients that are truly zero into whole steps."""


def half_precisions(device: torch.device) -> tuple[Precision, ...]:
    """Return the half precisions worth trying: a processor computes fp16 far slower than fp32, older cards have no
    bf16."""
    names = ["bf16"]
    if accelerator_of(device).is_card:
        names = ["fp16", "bf16"] if accelerator_of(device).has_bf16_units else ["fp16"]
    return tuple(Precision(name, DTYPES[name], "tried") for name in names)  # type: ignore[arg-type]


OPTIMIZERS: tuple[OptimizerSettings, ...] = (
    AdamSettings(learning_rate=RATE, eps=LARGE_EPS),
    SGDSettings(learning_rate=RATE / 10, weight_decay=1e-2, nesterov=True),
    RMSpropSettings(learning_rate=RATE, eps=LARGE_EPS, period=7),
    AdaBeliefSettings(learning_rate=RATE, eps=LARGE_EPS),
)
"""Each with all that it has, but for learning-rate dropout: a card draws other weights to stay than a processor."""


def tiny_subject(family: Family, settings: OptimizerSettings = OPTIMIZERS[0], objective: object = None) -> Training:
    """A family as its contract tests have it.

    Args:
        objective: None: every term on.
    """
    return Training.of_family(
        family, objective=objective, settings=settings, ema=EmaSettings(decay=0.9), weights_seed=WEIGHTS_SEED
    )


def other_losses(family: Family) -> Mapping[str, object]:
    """Objectives by the losses that a family knows besides the one that its contract tests have."""
    _, objective = family.tiny()
    field = type(objective).model_fields.get("loss")
    losses = get_args(field.annotation) if field is not None else ()
    return {
        loss: objective.model_copy(update={"loss": loss}) for loss in losses if loss != getattr(objective, "loss", None)
    }


@dataclass(frozen=True)
class Way:
    """Device, precision and memory saving of a step."""

    device: torch.device
    precision: Precision = FP32  # precision of the working weights
    exact: bool = False  # in float64 throughout, in which only faults differ; losses are fp32 all the same
    saver: SaverName | None = None  # one memory saving; None: none
    micro_batch: int | None = None  # samples in one forward; None: the batch


@dataclass
class Trial:
    """A training that has begun."""

    state: TrainingState
    step: Step
    plan: Plan
    sent: "CountedCopies"  # copies of activations that went to host memory

    def run(self) -> list[PhaseResult]:
        """Run the next step."""
        return self.step.run(self.state, self.plan)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training moves, on the host."""
        state = self.state
        tensors = {f"{n}.{k}": v for n, m in state.networks.items() for k, v in m.state_dict().items()}
        tensors |= {f"average of {n}.{k}": v for n, m in state.ema.networks.items() for k, v in m.state_dict().items()}
        tensors |= {f"carried {name}": value for name, value in state.carried.items()}
        for name, optimizer in state.optimizers.items():
            for i, slots in enumerate(optimizer.state.values()):
                tensors |= {f"optimizer {name}.{i}.{slot}": v for slot, v in slots.items()}
        return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}


@dataclass
class CountedCopies(HostCopies):
    """Takes small tensors to host memory too, and counts."""

    count: int = 0  # sent so far

    def is_worth_it(self, tensor: Tensor) -> bool:
        return True

    def send(self, tensor: Tensor) -> Away:
        self.count += 1
        return super().send(tensor)


@dataclass
class _Sending(Probe):
    sent: CountedCopies = field(default_factory=CountedCopies)

    def host_copies(self) -> HostCopies:
        return self.sent


def begin(
    subject: Training,
    way: Way,
    probe: Literal["sending"] | Probe = "sending",
    feeds: tuple[PictureFeed, DrawFeed] | None = None,
) -> Trial:
    """Begin a training; the same each time but for the way.

    Args:
        probe: is told where the step is; "sending": one that lets small tensors go to the host too.
        feeds: of pictures and of random inputs; None: both are made on the host.
    """
    networks = subject.make()
    for network in networks.values():
        network.to(way.device, torch.float64 if way.exact else torch.float32)
    plan = plan_by(subject, networks, way)
    told = _Sending() if probe == "sending" else probe
    pictures, draws = feeds or (MadePictures(subject.stages[0].sources), HostDraws(STREAMS_SEED))
    step = subject.step(pictures, draws, probe=told)
    sent = told.sent if isinstance(told, _Sending) else CountedCopies()
    return Trial(subject.state(plan, way.device, networks=networks), step, plan, sent)


def plan_by(subject: Training, networks: Networks, way: Way) -> Plan:
    """The plan of a way."""
    plan, blocks = Plan(way.micro_batch or subject.batch, way.precision), subject.recomputable(networks)
    savings: dict[SaverName, Callable[[], Plan]] = {
        "micro-batch": lambda: replace(plan, micro_batch=subject.micro_batch),
        "recompute": lambda: replace(plan, recompute=blocks),
        "keep-products": lambda: replace(plan, recompute=blocks, keep_products=True),
        "offload": lambda: replace(plan, recompute=blocks, offload=True, bring_ahead=True),
        "dense-slices": lambda: replace(plan, in_slices=plain_dense(networks)),
        "ema-on-host": lambda: replace(plan, ema_on_host=True),
        "shard-optimizer": lambda: plan,
        "optimizer-on-host": lambda: replace(plan, optimizer_on_host=True),
    }
    return plan if way.saver is None else savings[way.saver]()


def plain_dense(networks: Networks) -> dict[str, tuple[str, ...]]:
    """Every plain dense layer, however small."""
    layers_of = {
        name: tuple(key for key, module in network.named_modules() if type(module) is nn.Linear)
        for name, network in networks.items()
    }
    return {name: layers for name, layers in layers_of.items() if layers}


def run_steps(trial: Trial, count: int) -> None:
    """Train so many steps further."""
    for _ in range(count):
        trial.run()
