"""Quick96 against recorded numbers of the original at its real size.

All but the trace is computed in float64, so that what is left is the original's own rounding.
"""

import zlib
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from frugan.accelerator.precision import Precision
from frugan.contract.family import NoObjective
from frugan.contract.phase import MicroBatch, PhaseState
from frugan.engine.plan import Plan
from frugan.engine.run.training import Training
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.optimizer_settings import RMSpropSettings
from frugan.engine.streams import Streams
from frugan.faces.quick96 import phases as quick96
from frugan.faces.quick96.config import ARCHI
from frugan.faces.quick96.family import Quick96Family
from frugan.faces.quick96.phases import phases
from frugan.faces.saehd.leras_names import in_files_order, key_of, shape_in_file
from frugan.faces.saehd.networks import code_of, decode, encode, swap_code
from frugan.objectives import gaussian_blur
from parity.float64 import InFloat64
from parity.quick96.golden import BATCH, NETWORKS, Batches, arrays, built, record
from parity.saehd.errors import fingerprint, joint_error
from parity.saehd.weights import Array, from_file, graph_key, to_file

PICTURES, LOSS, GRADIENT, TRACE, MOVEMENT = 1e-6, 1e-5, 1e-5, 3e-4, 1e-3
"""Relative but for pictures. RMSprop's first steps are of one size whatever the gradient, so that rounding decides
where it is nearly 0: the third loss differs by 1.1e-4."""


@cache
def first_weights() -> dict[str, nn.Module]:
    return built(torch.float64)


@pytest.mark.long
def test_parameters_are_the_originals_in_its_order() -> None:
    for name, recorded in record()["nets"].items():
        ours = [[key_of(key), list(shape_in_file(p))] for key, p in in_files_order(first_weights()[name])]
        assert ours == [entry[:2] for entry in recorded]
        for (_, parameter), (_, shape, expected) in zip(in_files_order(first_weights()[name]), recorded, strict=True):
            np.testing.assert_allclose(fingerprint(to_file(parameter)), expected, rtol=1e-6, atol=np.prod(shape) * 1e-9)


def test_faces_and_masks() -> None:
    networks, batches = first_weights(), Batches(torch.float64)
    with InFloat64(), torch.no_grad():
        src, dst = (encode(networks, batches.take(side, side, 0, 1)["target"]) for side in ("src", "dst"))
        src_src, _ = decode(ARCHI, networks, code_of(ARCHI, networks, src, "src"), "src")
        dst_dst, dst_mask = decode(ARCHI, networks, code_of(ARCHI, networks, dst, "dst"), "dst")
        swap, swap_mask = decode(ARCHI, networks, swap_code(ARCHI, networks, dst), "src")
    ours = {"src_src": src_src, "dst_dst": dst_dst, "dst_mask": dst_mask, "src_dst": swap, "swap_mask": swap_mask}
    for name, recorded in arrays("view.npz").items():
        assert np.abs(ours[name].permute(0, 2, 3, 1).numpy() - recorded).max() <= PICTURES, name


def first_step() -> tuple[list[float], dict[str, Array]]:
    """Losses of the samples, and gradients of their sum by the names of the original's graph."""
    networks, batches, (phase,) = first_weights(), Batches(torch.float64), phases()
    state, losses = PhaseState({}, torch.ones(())), []
    with InFloat64():
        for sample in range(BATCH):
            pictures = {side: batches.take(side, side, sample, 1) for side in ("src", "dst")}
            terms: list[Tensor] = []
            for part in phase.parts:
                terms += part(networks, MicroBatch(pictures, {}, 1), state).values()
            loss = torch.stack(terms).sum()
            if loss.requires_grad:
                loss.backward()
            losses.append(float(loss.detach()))
    gradients = {
        graph_key(name, key): to_file(torch.zeros_like(p) if p.grad is None else p.grad)
        for name, network in networks.items()
        for key, p in network.named_parameters()
    }
    for network in networks.values():
        network.zero_grad()
    return losses, gradients


def test_first_losses() -> None:
    with torch.no_grad():
        np.testing.assert_allclose(first_step()[0], record()["loss_G_step0"], rtol=LOSS)


@pytest.mark.long
def test_first_gradients() -> None:
    recorded = {key: np.array(values) for key, values in record()["grads_step0"].items()}
    assert joint_error(recorded, first_step()[1]) <= GRADIENT


def test_another_blur_of_the_mask_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """SAEHD's is clipped and doubled."""
    monkeypatch.setattr(quick96, "gaussian_blur", lambda mask, radius: gaussian_blur(mask, radius).clamp(0, 0.5) * 2)
    networks, pictures = first_weights(), {s: Batches(torch.float64).take(s, s, 0, 1) for s in ("src", "dst")}
    with InFloat64(), torch.no_grad():
        losses = [
            torch.stack(
                list(part(networks, MicroBatch(pictures, {}, 1), PhaseState({}, torch.ones(()))).values())
            ).sum()
            for part in phases()[0].parts
        ]
    assert abs(float(sum(losses)) / record()["loss_G_step0"][0] - 1) > 100 * LOSS


def seed_of(seed: int, name: str) -> int:
    return (seed * 1000003 + zlib.crc32(name.encode())) & 0x7FFFFFFF


class Dropped:
    """Holds back what the recordings' learning-rate dropout held back, after each update."""

    def __init__(self, networks: dict[str, nn.Module]) -> None:
        self.named = {graph_key(n, k): p for n, network in networks.items() for k, p in network.named_parameters()}
        self.before = {key: value.detach().clone() for key, value in self.named.items()}

    @torch.no_grad()
    def after(self, step: int) -> None:
        case = record()
        for key, value in self.named.items():
            random = np.random.RandomState(seed_of(case["seed"], f"{key}#{step}"))
            moves = from_file(random.uniform(size=to_file(value).shape) < case["lr_dropout"])
            value.copy_(torch.where(moves, value, self.before[key]))
            self.before[key] = value.detach().clone()


FIRST_STEP = 1
"""Of the recorded ones as the engine counts: the third of them is a replay."""


def trace() -> tuple[list[list[float]], dict[str, Array]]:
    """Mean losses of both sides at each recorded step, and how far all weights moved; in fp32, by the engine."""
    networks = built(torch.float32)
    plan = Plan(BATCH, Precision("fp32", torch.float32, "parity"))
    settings = RMSpropSettings(learning_rate=record()["lr"])
    training = Training.of_family(
        Quick96Family(), NETWORKS, NoObjective(), settings=settings, ema=EmaSettings(), batch=BATCH
    )
    state = training.state(plan, torch.device("cpu"), networks=networks)
    dropped, losses = Dropped(networks), []
    first = dict(dropped.before)
    state.step = FIRST_STEP
    step = training.step(Batches(torch.float32, FIRST_STEP), Streams(0))
    for done in range(len(record()["losses"])):
        (result,) = step.run(state, plan)
        terms = {name: float(value) for name, value in result.terms.items()}
        losses.append([sum(v for name, v in terms.items() if name.startswith(side)) for side in ("src/", "dst/")])
        dropped.after(done)
    return losses, {key: to_file(value.detach() - first[key]) for key, value in dropped.named.items()}


@pytest.mark.long
def test_three_steps() -> None:
    """New, new, and the second batch again as it is."""
    losses, moved = trace()
    np.testing.assert_allclose(losses, record()["losses"], rtol=TRACE)
    steps = len(losses)
    recorded = {key: np.array(values) for key, values in record()["weight_delta"][f"step{steps}"].items()}
    assert joint_error(recorded, moved) <= MOVEMENT
