"""Runs recorded training again, with faults on demand."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from frugan.contract.phase import Phase
from frugan.engine.state.ema import Ema, EmaSettings
from frugan.engine.state.state import TrainingState
from parity.float64 import Float64Recording, InFloat64
from parity.golden import Case, Recording

ORTHOGONALITY = {"train_plain": 0.0, "train_ortho": 1e-3}
LOSSES = ("G_loss", "D_loss_real", "D_loss_fake")


class RepeatedInputs(Recording):
    """A fault: the second accumulation sees the first one's inputs; where none accumulate, the second D step."""

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        """See `Recording`."""
        d_step = position // self.case.batch % int(self.case.options["num_D_steps"])
        data = super().take(source, stream, position - self.case.batch if d_step == 1 else position, count)
        return {name: self._repeated(value) for name, value in data.items()}

    def batch(self, phase: Phase, step: int, repeat: int, count: int) -> dict[str, Tensor]:
        """See `Recording`."""
        data = super().batch(phase, step, 0 if repeat == 1 else repeat, count)
        return {name: self._repeated(value) for name, value in data.items()}

    def _repeated(self, value: Tensor) -> Tensor:
        size = int(self.case.options["batch_size"])
        return torch.cat([value[:size]] * (len(value) // size))


@dataclass(frozen=True)
class Trace:
    """What a run of some iterations left."""

    losses: list[dict[str, float]]  # of each iteration, as the original reports them
    # iterations done (1 and 3) -> "network.key" -> value; networks "G", "D" and "G_ema"
    states: dict[int, dict[str, Tensor]]
    # "network.parameter" -> L2 norms of Adam's first and second moments at the end
    moments: dict[str, tuple[float, float]]
    wrong_average: dict[int, dict[str, Tensor]]  # iterations done -> state of an average whose decay was 10 % off
    # iterations done -> state of the average as the original forms it, `d·average + (1 - d)·G` in the networks' dtype:
    # in fp32 the two factors do not add up to 1 exactly
    originals_average: dict[int, dict[str, Tensor]]
    last: TrainingState  # the training state at the end


def run(
    case: Case,
    which: str = "train_plain",
    *,
    iterations: int = 3,
    float64: bool = False,
    momentum: float | None = None,
    repeated_inputs: bool = False,
    originals: bool = True,
    perturbation: int | None = None,
) -> Trace:
    """Run the first iterations of a recording.

    Args:
        case: the recording.
        which: "train_plain" or "train_ortho".
        iterations: how many.
        float64: in float64.
        momentum: fault: beta2 of both optimizers.
        repeated_inputs: fault: `RepeatedInputs`.
        originals: False: weights are prepared once per phase, which the originals do not.
        perturbation: seed of a change of all first weights by a rounding error.
    """
    dtype = torch.float64 if float64 else torch.float32
    state, step, plan = case.training(ORTHOGONALITY[which], dtype, momentum)
    feed: Recording = Float64Recording(case) if float64 else Recording(case)
    if repeated_inputs:
        feed = RepeatedInputs(case)
    step = replace(step, pictures=feed, draws=feed, originals=originals)
    if perturbation is not None:
        perturb(state, perturbation)
    wrong = state.ema.settings
    faulty = Ema(state.networks, {"G": "average"}, _wrong_decay(wrong), on_host=False)
    losses: list[dict[str, float]] = []
    states: dict[int, dict[str, Tensor]] = {}
    wrong_average: dict[int, dict[str, Tensor]] = {}
    average = dict(snapshot({"G_ema": state.ema.networks["G"]}))
    originals_average: dict[int, dict[str, Tensor]] = {}
    for done in range(1, iterations + 1):
        with InFloat64() if float64 else nullcontext():
            results = step.run(state, plan)
        faulty.update(done, case.batch, {"G": torch.tensor(True)})
        decay = state.ema.settings.decay_at(done, case.batch)
        for key, value in state.networks["G"].state_dict().items():
            average[f"G_ema.{key}"] = average[f"G_ema.{key}"] * decay + value * (1 - decay)
        d, g = (next(r for r in reversed(results) if r.phase == name) for name in ("D", "G"))
        losses.append(
            {
                "G_loss": float(g.terms["adversarial"][-1]) / len(g.weights),
                "D_loss_real": float(d.terms["real"][-1]),
                "D_loss_fake": float(d.terms["fake"][-1]),
            }
        )
        if done in (1, 3):
            states[done] = snapshot(state.networks | {"G_ema": state.ema.networks["G"]})
            wrong_average[done] = snapshot({"G_ema": faulty.networks["G"]})
            originals_average[done] = dict(average)
    return Trace(losses, states, _moments(state), wrong_average, originals_average, state)


def _wrong_decay(settings: EmaSettings) -> EmaSettings:
    """A decay 10 % off, in force from the recorded start on; from the first step where the recording ends before."""
    started = settings.start.amount <= 3
    start = settings.start if started else type(settings.start).parse("0 steps")
    return settings.model_copy(update={"decay": 0.9 * settings.decay, "start": start})


@torch.no_grad()
def perturb(state: TrainingState, seed: int) -> None:
    """Change every weight by a rounding error of fp32, drawn from a normal distribution of half a unit."""
    random = torch.Generator().manual_seed(seed)
    for network in state.networks.values():
        for parameter in network.parameters():
            parameter.mul_(1 + 2.0**-24 * torch.randn(parameter.shape, generator=random, dtype=torch.float64))


def snapshot(networks: Mapping[str, torch.nn.Module]) -> dict[str, Tensor]:
    """Copies of all parameters and buffers as "network.key"."""
    return {f"{name}.{key}": value.clone() for name, net in networks.items() for key, value in net.state_dict().items()}


def _moments(state: TrainingState) -> dict[str, tuple[float, float]]:
    norms: dict[str, tuple[float, float]] = {}
    for name in ("G", "D"):
        for key, parameter in state.networks[name].named_parameters():
            adam = state.optimizers[name].state[parameter]
            norms[f"{name}.{key}"] = (float(adam["exp_avg"].norm()), float(adam["exp_avg_sq"].norm()))
    return norms
