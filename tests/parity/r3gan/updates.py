"""Phases run again on recorded inputs: one alone, and whole iterations."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from frugan.accelerator.precision import Precision
from frugan.contract.phase import MicroBatch, Phase, PhaseState
from frugan.engine.durations import Course, Duration
from frugan.engine.plan import Layout, Plan
from frugan.engine.run.training import Training
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.optimizer_settings import AdamSettings
from frugan.engine.state.state import TrainingState
from frugan.engine.state.working_weights import working_weights
from frugan.engine.step.step import Step
from frugan.engine.step.update import PhaseResult
from frugan.families.r3gan.config import R3GANObjective
from frugan.families.r3gan.family import R3GANFamily
from frugan.families.r3gan.phases import phases
from parity.float64 import InFloat64
from parity.r3gan.golden import Case, load, tensors


def in_dtype(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """The engine in float64 where that is asked for."""
    return InFloat64() if dtype == torch.float64 else nullcontext()


@dataclass(frozen=True)
class Update:
    """One backward of one phase."""

    terms: dict[str, float]  # losses by name
    gradients: dict[str, Tensor]  # of the updated network's masters, by parameter


def run_alone(
    case: Case,
    phase: Phase,
    networks: dict[str, nn.Module],
    draws: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Update:
    """Losses and gradients of one phase on the first four recorded inputs."""
    pictures = {"pictures": case.io("real_u8")[:4].to(dtype)}
    if (labels := case.classes(case.io("label")[:4])) is not None:
        pictures["labels"] = labels
    given = {"z": case.io("z")[:4], **(draws or {})}
    micro = MicroBatch({"images": pictures}, {name: value.to(dtype) for name, value in given.items()}, 4)
    used, terms = {key: networks[key] for key in phase.uses}, dict[str, float]()
    with in_dtype(dtype):
        state = PhaseState({}, torch.ones((), dtype=torch.float32))
        with working_weights(used, dict.fromkeys(used, Layout()), phase.updates, None) as working:
            for part in phase.parts:
                own_terms = part(networks, micro, state)
                torch.stack(list(own_terms.values())).sum().backward()
                terms |= {key: float(term.detach()) for key, term in own_terms.items()}
            for weights in working.values():
                weights.carry()
    (updated,) = phase.updates
    gradients = {key: p.grad for key, p in networks[updated].named_parameters() if p.grad is not None}
    return Update(terms, gradients)


def phase_of(case: Case, name: str, objective: R3GANObjective | None = None) -> Phase:
    """A phase of a recording."""
    objective = objective or R3GANObjective(gamma=case.settings["gamma"])
    return next(phase for phase in phases(case.networks, objective) if phase.name == name)


@dataclass(frozen=True)
class Iterations:
    """Feeds the engine recorded iterations: each phase its own row."""

    case: Case
    inputs: str  # folder of the recording
    first: int  # number of the first iteration
    dtype: torch.dtype

    def _row(self, phase: str, name: str, at: int) -> Tensor:
        return tensors(f"{self.inputs}/steps_in.safetensors")[f"step.{phase}.{name}"][at - self.first]

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        phase, at = stream.removeprefix("images/"), position // self.case.settings["batch"]
        pictures = {"pictures": self._row(phase, "real_u8", at).to(self.dtype)}
        labels = self.case.classes(self._row(phase, "label", at))
        return pictures if labels is None else pictures | {"labels": labels}

    def batch(self, phase: Phase, step: int, repeat: int, count: int) -> Mapping[str, Tensor]:
        return {"z": self._row(phase.name, "z", step).to(self.dtype)}

    def micro_batch(
        self, phase: Phase, step: int, repeat: int, first: int, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        return {}

    def update_seed(self, phase: Phase, step: int, repeat: int) -> int:
        return 0


@dataclass(frozen=True)
class Trained:
    """Recorded iterations, run again."""

    state: TrainingState
    results: list[list[PhaseResult]]
    steps: list[dict[str, dict[str, Tensor]]]  # network -> its state, after each iteration


def settings_of(case: Case) -> tuple[R3GANObjective, AdamSettings, EmaSettings, Course]:
    """What changes during a recording's iterations."""
    s = case.settings["sched"]
    objective = R3GANObjective(gamma=s["gamma"]["base_value"], final_gamma=s["gamma"]["final_value"])
    adam = AdamSettings(
        learning_rate=s["lr"]["base_value"],
        final_learning_rate=s["lr"]["final_value"],
        beta1=0.0,
        beta2=s["beta2"]["base_value"],
        final_beta2=s["beta2"]["final_value"],
        eps=1e-8,
    )
    ema = EmaSettings(
        schedule="half-life",
        half_life_images=s["ema"]["base_value"],
        final_half_life_images=s["ema"]["final_value"],
        start=Duration.parse("0 steps"),
    )
    return objective, adam, ema, Course(s["lr"]["total_nimg"], cosine=True)


def train(
    name: str,
    dtype: torch.dtype = torch.float32,
    *,
    iterations: int = 3,
    networks: dict[str, nn.Module] | None = None,
    faulty: Mapping[str, Any] | None = None,
) -> Trained:
    """Run recorded iterations.

    Args:
        networks: that they begin with; None: the recording's.
        faulty: fields of the optimizers' settings that are wrong, to see that it is noticed.
    """
    case = load(name)
    networks = networks or case.build(dtype)
    objective, adam, ema, course = settings_of(case)
    adam = adam.model_copy(update=dict(faulty or {}))
    plan = Plan(case.settings["batch"], Precision("fp32", torch.float32, "parity"))
    training = Training.of_family(
        R3GANFamily(), case.networks, objective, settings=adam, ema=ema, batch=case.settings["batch"]
    )
    training = replace(training, course=course, normalisation_batch=None)
    first = case.settings["start_nimg"] // case.settings["batch"]
    feed = Iterations(case, name, first, dtype)
    tensors(f"{name}/steps_in.safetensors")  # read here: float64 would be taken for what the file holds
    results, steps = [], []
    with in_dtype(dtype):
        state = training.state(plan, torch.device("cpu"), networks=networks)
        state.step = first
        step: Step = training.step(feed, feed)
        for _ in range(iterations):
            results.append(step.run(state, plan))
            now = {**state.networks, "G_ema": state.ema.networks["G"]}
            steps.append({key: {n: v.clone() for n, v in net.state_dict().items()} for key, net in now.items()})
    return Trained(state, results, steps)
