"""AMP's recorded runs: losses of every sample, first gradients, movement, statistics. In float64."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from frugan.accelerator.precision import Precision
from frugan.contract.phase import Networks, Phase
from frugan.engine.plan import Plan
from frugan.engine.run.training import Training
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.optimizer_settings import AdaBeliefSettings
from frugan.engine.state.piecewise_optimizer import PiecewiseOptimizer
from frugan.engine.state.state import TrainingState
from frugan.faces.amp.config import AMPObjective
from frugan.faces.amp.family import AMPFamily
from frugan.faces.amp.networks import INTERS, decode, dst_code, encode, exact_subset, mixed_code, morphed_code
from frugan.faces.amp.phases import CHANNELS
from parity.amp.golden import SCOPES, arrays, as_uniform, built, chosen, double, networks_of, random_of, record
from parity.float64 import InFloat64
from parity.saehd.errors import gradient_error, joint_error
from parity.saehd.golden import BATCH, Batches, nchw
from parity.saehd.weights import Array, file_key, from_file, to_file

LOSS, LATER, GRADIENT, JUDGE_GRADIENT, MOVEMENT, STATISTICS = 1e-6, 1e-5, 2e-5, 1e-4, 5e-5, 5e-5
"""Relative: losses of the first and of all steps; single numbers of gradients, of the discriminator's after the
original has rounded an update; all movements and statistics together. Measured: 6.9e-7, 2.8e-6, 1.1e-5, 4.5e-5,
1.3e-5."""

CASES = ("plain", "gan", "gan_clip_blurout", "lr_dropout")
PERIOD, SHARE = 500, 0.3


@dataclass(frozen=True)
class RecordedChoices:
    """Feeds the engine random numbers that make the recorded choices of channels."""

    options: Mapping[str, Any]
    seed: int

    def batch(self, phase: Phase, step: int, repeat: int, count: int) -> dict[str, Tensor]:
        """See `DrawFeed`."""
        name = f"{'zGAN' if phase.name == 'patch_discriminator' else 'z'}#{step}"
        channels, factor = self.options["inter_dims"], self.options["morph_factor"]
        return {CHANNELS: as_uniform(chosen(self.seed, name, count, channels, factor))}

    def micro_batch(
        self, phase: Phase, step: int, repeat: int, first: int, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        """Return none: they are all drawn for the batch."""
        return {}

    def update_seed(self, phase: Phase, step: int, repeat: int) -> int:
        """See `DrawFeed`."""
        return 0


@dataclass(frozen=True)
class Run:
    """What a run left."""

    losses: dict[str, Array]  # by the recordings' names; [steps, micro-batches]
    movement: dict[int, dict[str, Array]]  # steps done (1 and all) -> graph key -> change since the start
    gradients: dict[str, dict[str, Array]]  # optimizer -> graph key -> first gradient
    state: TrainingState  # at the end


def graph_key(network: str, parameter: str) -> str:
    return f"{SCOPES.get(network, network)}/{file_key(parameter)}"


def named(networks: Networks) -> dict[str, nn.Parameter]:
    return {
        graph_key(name, key): parameter
        for name, network in networks.items()
        for key, parameter in network.named_parameters()
    }


def run(case: Any, *, steps: int | None = None, micro_batch: int = 1, **overrides: Any) -> Run:
    """Run a recording's first steps, or all; micro-batches of one keep the losses of the samples apart.

    Args:
        overrides: other options of the objective.
    """
    options = case["options"]
    fields = {name: options[name] for name in AMPObjective.model_fields if name in options} | overrides
    drops = options["lr_dropout"] != "n"
    settings = AdaBeliefSettings(
        clip_norm=1.0 if options["clipgrad"] else None, **({"period": PERIOD} if drops else {})
    )
    with InFloat64():
        training = Training.of_family(
            AMPFamily(),
            networks_of(options),
            AMPObjective(**fields),
            settings=settings,
            ema=EmaSettings(),
            batch=BATCH,
        )
        training = replace(training, averaged={}, normalisation_batch=None)
        plan = Plan(micro_batch, Precision("fp32", torch.float32, "parity"))
        state = training.state(plan, torch.device("cpu"), networks=double(built(options, case["seed"])))
        step = training.step(Batches(torch.float64), RecordedChoices(options, case["seed"]))
        gradients: dict[str, dict[str, Array]] = {}

        def catching(phase: Phase) -> Phase:
            def catch(networks: Networks) -> None:
                moved = named({name: networks[name] for name in phase.trainable})
                found = {key: to_file(p.grad).copy() for key, p in moved.items() if p.grad is not None}
                gradients.setdefault(phase.name, found)

            return replace(phase, grad_hook=catch)

        step = replace(step, phases=tuple(map(catching, step.phases)))
        first = {key: value.detach().clone() for key, value in named(state.networks).items()}
        losses: list[dict[str, list[float]]] = []
        movement: dict[int, dict[str, Array]] = {}
        for done in range(1, (steps or case["steps"]) + 1):
            before = {key: value.detach().clone() for key, value in named(state.networks).items()}
            results = {result.phase: result for result in step.run(state, plan)}
            if drops:
                hold_back(case["seed"], done - 1, before, named(state.networks))
            terms = results["autoencoder"].terms
            row = {f"{side}_loss": summed(terms, f"{side}/") for side in ("src", "dst")}
            row["loss_G_before_update"] = summed(terms, "")
            if "patch_discriminator" in results:
                row["loss_GAN_D"] = summed(results["patch_discriminator"].terms, "")
            losses.append(row)
            if done in (1, case["steps"]):
                now = named(state.networks)
                movement[done] = {key: to_file(value.detach() - first[key]) for key, value in now.items()}
    return Run({name: np.array([row[name] for row in losses]) for name in losses[0]}, movement, gradients, state)


def summed(terms: Mapping[str, Tensor], prefix: str) -> list[float]:
    chosen_terms = [value for name, value in terms.items() if name.startswith(prefix)]
    values: list[float] = torch.stack(chosen_terms).sum(0).tolist()
    return values


@torch.no_grad()
def hold_back(seed: int, step: int, before: Mapping[str, Tensor], after: Mapping[str, nn.Parameter]) -> None:
    """Put back what the recorded learning-rate dropout did not move."""
    for key, value in after.items():
        drawn = random_of(seed, f"{key}#{step}").uniform(size=to_file(value).shape)
        value.copy_(torch.where(from_file(drawn < SHARE), value, before[key]))


def recorded(name: str) -> Any:
    return record(f"{name}.json")


@cache
def exact(name: str) -> Run:
    return run(recorded(name))


def loss_error(name: str, ours: Run, steps: int | None = None) -> float:
    trace = arrays(f"{name}.npz")
    return max(
        float(abs(losses[:steps] / trace[key][: len(losses)][:steps] - 1).max()) for key, losses in ours.losses.items()
    )


def fingerprints(values: Mapping[str, Any]) -> dict[str, Array]:
    return {key: np.array(value) for key, value in values.items()}


@pytest.mark.parametrize("name", CASES)
def test_losses_of_every_sample(name: str) -> None:
    assert exact(name).losses.keys() == {key for key in arrays(f"{name}.npz") if "loss" in key}
    assert loss_error(name, exact(name), 1) <= LOSS
    assert loss_error(name, exact(name)) <= LATER


@pytest.mark.parametrize("name", CASES)
def test_first_gradients(name: str) -> None:
    case, ours = recorded(name), exact(name).gradients
    assert gradient_error(fingerprints(case["grads_step0"]), ours["autoencoder"]) <= GRADIENT
    if "gan_grads_step0" in case:
        assert gradient_error(fingerprints(case["gan_grads_step0"]), ours["patch_discriminator"]) <= JUDGE_GRADIENT


@pytest.mark.parametrize("name", CASES)
def test_movement(name: str) -> None:
    """Inter networks do not move at all: in the original no optimizer has them."""
    case, ours = recorded(name), exact(name)
    for steps in (1, case["steps"]):
        expected = fingerprints(case["weight_delta"][f"step{steps}"])
        moved = {key: value for key, value in ours.movement[steps].items() if key in expected}
        assert joint_error(expected, moved) <= MOVEMENT
        assert not any(value.any() for key, value in ours.movement[steps].items() if key.startswith(INTERS))


@pytest.mark.parametrize("name", CASES)
def test_statistics(name: str) -> None:
    expected = fingerprints(recorded(name)["opt"])
    optimizer = exact(name).state.optimizers["autoencoder"]
    assert isinstance(optimizer, PiecewiseOptimizer)
    ours = {
        f"{slot}_{graph_key(network, key)}".replace(":", "_") + ":0": to_file(optimizer.state_of(parameter)[slot])
        for slot in ("ms", "vs")
        for network in ("encoder", "decoder")
        for key, parameter in exact(name).state.networks[network].named_parameters()
    }
    expected.pop("iters:0")
    assert ours.keys() == expected.keys()
    assert joint_error(expected, ours) <= STATISTICS


def test_first_pictures() -> None:
    case, trace = recorded("plain"), arrays("plain.npz")
    nets = double(built(case["options"], case["seed"]))
    with torch.no_grad():
        src, dst = (Batches(torch.float64).take(side, side, 0, 1)["warped"] for side in ("src", "dst"))
        vectors, code = encode(nets, src), encode(nets, dst)
        z = exact_subset(as_uniform(chosen(case["seed"], "z#0", 1, case["options"]["inter_dims"], 0.5)), 0.5)
        ours = dict(zip(("dst_dst", "dst_mask"), decode(nets, dst_code(nets, code)), strict=True))
        ours["src_src"] = decode(nets, mixed_code(nets, vectors, z))[0]
        swap = decode(nets, morphed_code(nets, code, 0.5))
        ours |= dict(zip(("src_dst_morph0.5", "src_dst_mask_morph0.5"), swap, strict=True))
    for key, value in ours.items():
        assert (value - nchw(trace[f"pred0_{key}"])).abs().max() <= 1e-6, key


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("plain", {"morph_factor": 0.4}),
        ("plain", {"blur_out_mask": True}),
        ("gan", {"gan_power": 0.101}),
        ("gan_clip_blurout", {"blur_out_mask": False}),
    ],
)
def test_another_option_is_noticed(name: str, overrides: dict[str, Any]) -> None:
    assert loss_error(name, run(recorded(name), steps=1, **overrides), 1) > 10 * LOSS


def test_inter_networks_move_where_they_shall() -> None:
    """The extension is off by default, and the first losses are the same."""
    trained = run(recorded("plain"), steps=1, train_inters=True)
    assert loss_error("plain", trained, 1) <= LOSS
    assert all(value.any() for key, value in trained.movement[1].items() if not key.startswith("GAN/"))
    assert AMPObjective().train_inters is False


def test_samples_together_are_the_mean_and_the_same_update() -> None:
    apart, together = exact("gan"), run(recorded("gan"), micro_batch=2)
    for key, losses in apart.losses.items():
        np.testing.assert_allclose(together.losses[key][:, 0], losses.mean(1), rtol=1e-9)
    for key, moved in apart.movement[3].items():
        np.testing.assert_allclose(together.movement[3][key], moved, rtol=1e-4, atol=1e-12)
