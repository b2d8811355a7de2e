"""Phases run again on recorded inputs: one alone, and whole iterations."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from frugan.accelerator.precision import Precision
from frugan.contract.layers import Observer
from frugan.contract.phase import MicroBatch, Phase, PhaseState
from frugan.engine.durations import Duration
from frugan.engine.plan import Layout, Plan
from frugan.engine.run.training import Stage, Training
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.optimizer_settings import AdamSettings, with_lazy_phases
from frugan.engine.state.state import TrainingState
from frugan.engine.state.working_weights import working_weights
from frugan.engine.step.update import PhaseResult
from frugan.families.stylegan2.family import StyleGAN2Family
from frugan.families.stylegan2.phases import PATH_LENGTH, phases
from parity.stylegan2.golden import Case

ORIGINAL_NAMES = {"G": "Gmain", "G_path": "Greg", "D": "Dmain", "D_r1": "Dreg"}
"""In the order in which an iteration runs them."""


def own_noise(generator: nn.Module, count: int) -> Tensor:
    """The layers' constant noise as a phase's draw [count, noise numbers]."""
    parts = [b.flatten() for key, b in generator.named_buffers() if key.endswith("noise_const")]
    return torch.cat(parts).expand(count, -1)


def on_the_release_side(noise: Tensor, generator: nn.Module) -> Tensor:
    """Move what rounding alone puts on one side of an activation's kink to the side that the release's puts it on.

    In res64_cond one activation of b32.conv1 is 3.4e-8 in float64 (the next nearest 2.6e-6), and the release computed
    it below 0: slope and gradients differ by up to 4e-3 by that alone. Its pixel gets 1e-6 less of noise.
    """
    layer = generator.get_submodule("synthesis.b32.conv1")
    strength = float(layer.noise_strength.detach())  # type: ignore[operator]
    sides = (4, 8, 8, 16, 16, 32)  # of the layers before it
    noise = noise.clone()
    noise[1, sum(side * side for side in sides) + 8 * 32 + 23] -= 1e-6 / strength
    return noise


@dataclass(frozen=True)
class Update:
    """One backward of one phase from the first state.

    Attributes:
        observer: what the layers saw.
    """

    terms: dict[str, float]  # losses by name
    gradients: dict[str, Tensor]  # of the updated network's masters, by parameter; those that got any
    networks: dict[str, nn.Module]
    path_length: Tensor | None  # mean of path lengths that was observed, in G_path


def update_alone(case: Case, name: str) -> Update:
    """Losses and gradients of one phase without its gain; what its layers saw is committed."""
    networks = case.build()
    phase = next(phase for phase in phases(case.networks, case.objective) if phase.name == name)
    count = 2 if name == "G_path" else 4
    draws = {"z": case.io("z")[:count], "noise": own_noise(networks["G"], count)}
    if case.name == "res64_cond":
        draws["noise"] = on_the_release_side(draws["noise"], networks["G"])
    classes, labels = case.classes(case.io("c")[:count]), case.classes(case.io("real_c")[:count])
    if classes is not None:
        draws["y"] = classes
    if name == "G_path":
        draws["path"] = case.data["loss.pl_noise_raw"]
    pictures = {"pictures": case.io("real_u8")[:count]} | ({} if labels is None else {"labels": labels})
    micro = MicroBatch({"images": pictures}, draws, count)
    state = PhaseState(dict.fromkeys(phase.carried, case.data["loss.pl_mean_before"]), torch.ones(()))
    observer, terms = Observer(), dict[str, float]()
    used = {key: networks[key] for key in phase.uses}
    with working_weights(used, dict.fromkeys(used, Layout()), phase.updates, observer) as working:
        for part in phase.parts:
            own_terms = part(networks, micro, state)
            torch.stack(list(own_terms.values())).sum().backward()
            terms |= {key: float(term.detach()) for key, term in own_terms.items()}
        for weights in working.values():
            weights.carry()
    observer.commit(None)
    (updated,) = phase.updates
    gradients = {key: p.grad for key, p in networks[updated].named_parameters() if p.grad is not None}
    seen = state.observed().get(PATH_LENGTH)
    return Update(terms, gradients, networks, None if seen is None else seen[0])


@dataclass(frozen=True)
class Iterations:
    """Feeds the engine recorded iterations."""

    case: Case
    generator: nn.Module

    @property
    def batch(self) -> int:
        return int(self.case.settings["batch"])

    @property
    def rounds(self) -> int:
        """Micro-batches of the release."""
        return self.batch // int(self.case.settings["batch_gpu"])

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        at = position // self.batch
        labels = self.case.classes(self.case.data["steps_in.step_real_c"][at])
        pictures = {"pictures": self.case.data["steps_in.step_real_u8"][at]}
        return pictures if labels is None else pictures | {"labels": labels}

    def batch_rows(self, phase: Phase, values: Tensor) -> Tensor:
        """A phase's rows of an iteration's latents or labels [4·batch, ..]: the first half of each round for G_path."""
        own = values.view(4, self.rounds, -1, *values.shape[1:])[list(ORIGINAL_NAMES).index(phase.name)]
        return (own[:, : own.shape[1] // 2] if phase.name == "G_path" else own).flatten(0, 1)

    def batch_of(self, phase: Phase, step: int) -> dict[str, Tensor]:
        inputs = {"z": self.batch_rows(phase, self.case.data["steps_in.step_z"][step])}
        classes = self.case.classes(self.case.data["steps_in.step_gen_c"][step])
        return inputs if classes is None else inputs | {"y": self.batch_rows(phase, classes)}


@dataclass(frozen=True)
class Draws:
    """Random inputs of recorded iterations."""

    iterations: Iterations

    def batch(self, phase: Phase, step: int, repeat: int, count: int) -> Mapping[str, Tensor]:
        return self.iterations.batch_of(phase, step)

    def micro_batch(
        self, phase: Phase, step: int, repeat: int, first: int, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        noise = self.iterations.case.data["steps_in.step_pl_noise"][step].flatten(0, 1)[first : first + count]
        return {"noise": own_noise(self.iterations.generator, count), "path": noise}

    def update_seed(self, phase: Phase, step: int, repeat: int) -> int:
        return 0


def train(case: Case, iterations: int, *, lazy: bool = True) -> tuple[TrainingState, list[list[PhaseResult]]]:
    """Run recorded iterations.

    Args:
        lazy: False: a fault: rates and betas stay as they are.
    """
    networks, o = case.build(), case.settings
    feed = Iterations(case, networks["G"])
    # The release adds up the gradients of its micro-batches.
    run = tuple(replace(p, gain=p.gain * feed.rounds) for p in phases(case.networks, case.objective))
    plain = AdamSettings(learning_rate=o["lr"], beta1=0.0, beta2=0.99, eps=1e-8, lazy_regularisation=lazy)
    settings = {name: with_lazy_phases(plain, run, name) for name in ("G", "D")}
    ema = EmaSettings(
        schedule="half-life",
        half_life_images=o["ema_kimg"] * 1000,
        half_life_share=o["ema_ramp"],
        start=Duration.parse("0 steps"),
    )
    plan = Plan(o["batch_gpu"], Precision("fp32", torch.float32, "parity"))
    training = Training.of_family(
        StyleGAN2Family(),
        case.networks,
        case.objective,
        settings=plain,
        ema=ema,
        batch=feed.batch,
        normalisation_batch=o["mbstd"],
    )
    training = replace(training, stages=(Stage(run, settings),), averaged={"G": "copy"})
    state = training.state(plan, torch.device("cpu"), networks=networks)
    step = training.step(feed, Draws(feed))
    if feed.rounds == 1:  # one micro-batch: its groups stride
        rows = _strided(case)
        step = replace(step, pictures=_Reordered(feed, rows), draws=_ReorderedDraws(Draws(feed), rows))
    return state, [step.run(state, plan) for _ in range(iterations)]


def _strided(case: Case) -> Tensor:
    from parity.stylegan2.golden import grouped  # noqa: PLC0415

    return grouped(int(case.settings["batch"]), int(case.settings["mbstd"]))


@dataclass(frozen=True)
class _Reordered:
    """Pictures in the order in which groups in a row are the release's."""

    feed: Iterations
    rows: Tensor

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        return {key: value[self.rows] for key, value in self.feed.take(source, stream, position, count).items()}


@dataclass(frozen=True)
class _ReorderedDraws:
    """The same of random inputs; path lengths look at all samples, in any order."""

    draws: Draws
    rows: Tensor

    def batch(self, phase: Phase, step: int, repeat: int, count: int) -> Mapping[str, Tensor]:
        inputs = self.draws.batch(phase, step, repeat, count)
        return {k: v[self.rows] for k, v in inputs.items()} if phase.name != "G_path" else inputs

    def micro_batch(
        self, phase: Phase, step: int, repeat: int, first: int, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        return self.draws.micro_batch(phase, step, repeat, first, count, device)

    def update_seed(self, phase: Phase, step: int, repeat: int) -> int:
        return 0
