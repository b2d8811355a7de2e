"""Runs recorded training again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState
from frugan.engine.state.piecewise_optimizer import PiecewiseOptimizer
from frugan.engine.state.state import TrainingState
from frugan.engine.step.step import Step
from frugan.engine.step.update import PhaseResult
from frugan.faces.saehd import phases
from frugan.faces.saehd.networks import code_of, decode, encode, swap_code
from parity.float64 import InFloat64
from parity.saehd import weights
from parity.saehd.golden import BATCH, Batches, Recording
from parity.saehd.weights import Array
from parity.traces import perturb

UPDATES = {"autoencoder": "G", "code_discriminator": "D_code", "patch_discriminator": "GAN_D"}
"""Phase -> the recordings' name for it."""

LOSSES = {"src_loss": "src/", "dst_loss": "dst/", "loss_G_before_update": ""}
"""The recordings' names -> how the names of the terms begin that are added up."""


@dataclass(frozen=True)
class Run:
    """What a run left."""

    # by the recordings' names; a column for each micro-batch. [steps, micro-batches].
    losses: dict[str, Array]
    movement: dict[int, dict[str, Array]]  # steps done (1 and all) -> graph key -> change since the start
    state: TrainingState  # at the end


def run(
    recording: Recording,
    *,
    float64: bool = False,
    steps: int | None = None,
    micro_batch: int = 1,
    on_cpu: bool = True,
    perturbation: int | None = None,
) -> Run:
    """Run a recording's first steps, or all.

    Args:
        on_cpu: False: total variation as on a GPU.
        perturbation: seed of a change of all first weights by a rounding error.
    """
    with _as_recorded(float64, on_cpu):
        state, step, plan = recording.training(_dtype(float64), micro_batch)
        if perturbation is not None:
            perturb(state, perturbation)
        first = weights.flat(state.networks)
        losses: list[dict[str, list[float]]] = []
        movement: dict[int, dict[str, Array]] = {}
        for done in range(1, (steps or recording.steps) + 1):
            judged = {
                f"loss_{UPDATES[phase.name]}_before_update": _judged(step, phase, state) for phase in step.phases[1:]
            }
            result = step.run(state, plan)[0]
            losses.append(judged | {name: _summed(result, prefix) for name, prefix in LOSSES.items()})
            if done in (1, recording.steps):
                movement[done] = {key: value - first[key] for key, value in weights.flat(state.networks).items()}
    return Run({name: np.array([row[name] for row in losses]) for name in losses[0]}, movement, state)


def final_weights(of: Run) -> dict[str, dict[str, Array]]:
    """Network -> key in its file -> weights at the end, laid out as there."""
    networks = of.state.networks.items()
    return {
        name: {weights.file_key(key): weights.to_file(p) for key, p in network.named_parameters()}
        for name, network in networks
    }


def statistics(of: Run) -> dict[str, dict[str, Array]]:
    """Slot -> key in the file of the autoencoder's optimizer -> its statistic at the end, laid out as there."""
    optimizer = of.state.optimizers["autoencoder"]
    assert isinstance(optimizer, PiecewiseOptimizer)
    return {
        slot: {
            weights.slot_key(slot, network, key): weights.to_file(optimizer.state_of(parameter)[slot])
            for network in of.state.moves["autoencoder"]
            for key, parameter in of.state.networks[network].named_parameters()
        }
        for slot in optimizer.slots
    }


def pictures(case: Recording, networks: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Both sides, the destination's mask and the swap of the first sample, by the recordings' names."""
    archi, batches = case.networks.letters, Batches()
    with torch.no_grad():
        src, dst = (encode(networks, batches.take(side, side, 0, 1)["warped"]) for side in ("src", "dst"))
        src_src, _ = decode(archi, networks, code_of(archi, networks, src, "src"), "src")
        dst_dst, dst_mask = decode(archi, networks, code_of(archi, networks, dst, "dst"), "dst")
        swap, swap_mask = decode(archi, networks, swap_code(archi, networks, dst), "src")
    return {"src_src": src_src, "dst_dst": dst_dst, "dst_dstm": dst_mask, "src_dst": swap, "src_dstm": swap_mask}


def first_gradients(recording: Recording, *, float64: bool = False) -> dict[str, dict[str, Array]]:
    """Gradients of every phase at the first weights, before clipping.

    Returns:
        "G", "D_code", "GAN_D" -> graph key -> gradient, laid out as in the files.
    """
    gradients: dict[str, dict[str, Array]] = {}

    def catching(phase: Phase) -> Phase:
        def catch(networks: Networks) -> None:
            gradients[UPDATES[phase.name]] = {
                weights.graph_key(name, key): weights.to_file(parameter.grad).copy()
                for name in phase.trainable
                for key, parameter in networks[name].named_parameters()
                if parameter.grad is not None
            }

        return replace(phase, grad_hook=catch)

    with _as_recorded(float64, True):
        state, step, plan = recording.training(_dtype(float64))
        # So small a rate moves nothing: all phases see the first weights.
        settings = {name: of.model_copy(update={"learning_rate": 1e-30}) for name, of in step.settings.items()}
        replace(step, phases=tuple(map(catching, step.phases)), settings=settings).run(state, plan)
    return gradients


def total_variation_of_rows_and_columns(x: Tensor) -> Tensor:
    """What the original computes on a CPU, in whose layout axes 1 and 2 are rows and columns. [B, C, H, W] -> [B]."""
    rows, columns = x[:, :, 1:] - x[:, :, :-1], x[:, :, :, 1:] - x[:, :, :, :-1]
    return rows.square().sum((1, 2, 3)) + columns.square().sum((1, 2, 3))


@contextmanager
def _as_recorded(float64: bool, on_cpu: bool) -> Iterator[None]:
    name = "total_variation_of_channels_and_rows"
    with (
        InFloat64() if float64 else nullcontext(),
        patch.object(phases, name, total_variation_of_rows_and_columns) if on_cpu else nullcontext(),
    ):
        yield


def _dtype(float64: bool) -> torch.dtype:
    return torch.float64 if float64 else torch.float32


@torch.no_grad()
def _judged(step: Step, phase: Phase, state: TrainingState) -> list[float]:
    """A discriminator's loss on each sample, as it stands before the step."""
    losses: list[float] = []
    for sample in range(BATCH):
        position = state.step * BATCH + sample
        pictures = {source: step.pictures.take(source, source, position, 1) for source in phase.sources}
        micro, own = MicroBatch(pictures, {}, 1), PhaseState({}, torch.ones(()))
        values = [value for part in phase.parts for value in part(state.networks, micro, own).values()]
        losses.append(float(torch.stack(values).sum()))
    return losses


def _summed(result: PhaseResult, prefix: str) -> list[float]:
    values = [value for name, value in result.terms.items() if name.startswith(prefix)]
    summed: list[float] = torch.stack(values).sum(0).tolist()
    return summed
