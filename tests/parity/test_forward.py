"""Every recorded forward: training and evaluation, outputs and what the layers remember."""

from collections.abc import Mapping
from functools import cache
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from frugan.families.biggan.networks import Generator
from frugan.nn.batch_norm import RunningStatisticsNorm
from parity.golden import CASES, FOLDER, Case
from parity.passes import eval_forward, train_forward

LIMIT = 1e-5
"""Of the largest value; where ten times the original's recorded rounding is more, that.

Measured: at most 5e-6 (generator, training), 2e-6 (evaluation), 4e-7 (discriminator), 8e-7 (buffers); deep128's
generator 7e-5 in training (ten times its rounding: 5e-4), 5e-6 in evaluation, 3e-6 in its buffers.
"""

TRAINED = {"G": "fwd.G_train", "D": "fwd.D_train"}


@cache
def load(name: str) -> Case:
    return Case.load(name)


def generate(case: Case, samples: int = 2) -> dict[str, Tensor]:
    return {"z": case.data["fwd.z"][:samples], "y": case.data["fwd.y"][:samples]}


def run_generator(network: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    generator = cast(Generator, network)
    return cast(Tensor, generator(inputs["z"], generator.embed(inputs["y"])))


def pictures(case: Case) -> Tensor:
    return (case.pictures(0)[:2].float() / 255 - 0.5) * 2


def check(case: Case, recording: str, out: Tensor) -> None:
    assert error(case, recording, out) <= limit(case, recording), recording


def error(case: Case, recording: str, out: Tensor) -> float:
    reference = case.data[recording]
    assert out.shape == reference.shape
    return float((out - reference).abs().max() / reference.abs().max())


def limit(case: Case, recording: str) -> float:
    rounding = case.record["fp32_vs_fp64_noise"].get(recording, 0.0)
    return max(LIMIT, 10 * float(rounding) / float(case.data[recording].abs().max()))


def check_buffers(case: Case, name: str, network: nn.Module) -> None:
    prefix = f"fwd.{name}_buf_after_train."
    recorded = {key.removeprefix(prefix): value for key, value in case.data.items() if key.startswith(prefix)}
    ours = dict(network.named_buffers())
    assert recorded.keys() == ours.keys()
    # What a network remembers is as exact as what it puts out.
    for key, reference in recorded.items():
        difference = float((ours[key] - reference).abs().max() / reference.abs().max())
        assert difference <= limit(case, TRAINED[name]), key


@pytest.mark.parametrize("name", CASES)
def test_generator(name: str) -> None:
    case = load(name)
    generator = case.built()["G"]
    first = eval_forward(generator, lambda g: run_generator(g, generate(case, 1)))
    check(case, "fwd.G_eval_init", first)
    check(case, "fwd.G_train", train_forward(generator, lambda g: run_generator(g, generate(case))))
    check_buffers(case, "G", generator)
    check(case, "fwd.G_eval_after_one_train", eval_forward(generator, lambda g: run_generator(g, generate(case))))


@pytest.mark.parametrize("name", CASES)
def test_discriminator(name: str) -> None:
    case = load(name)
    discriminator = case.built()["D"]
    x, y = pictures(case), case.data["fwd.yx"]
    check(case, "fwd.D_eval_init", eval_forward(discriminator, lambda d: d(x, y)))
    check(case, "fwd.D_train", train_forward(discriminator, lambda d: d(x, y)))
    check_buffers(case, "D", discriminator)
    check(case, "fwd.D_eval_after_one_train", eval_forward(discriminator, lambda d: d(x, y)))


@pytest.mark.parametrize("name", CASES)
def test_wrong_batch_norm_eps_is_noticed(name: str) -> None:
    case = load(name)
    generator = case.built()["G"]
    for module in generator.modules():
        if isinstance(module, RunningStatisticsNorm):
            module.eps *= 10
    out = train_forward(generator, lambda g: run_generator(g, generate(case)))
    assert error(case, "fwd.G_train", out) > 2 * limit(case, "fwd.G_train")


@pytest.mark.parametrize(
    "name", ["sngan64", *(pytest.param(e, marks=pytest.mark.long) for e in ("sagan64", "cifar32"))]
)
def test_one_power_iteration_too_many_is_noticed(name: str) -> None:
    # The others' first weights are orthogonal: all their singular values are 1, and no iteration changes a thing.
    case = load(name)
    discriminator = case.built()["D"]
    x, y = pictures(case), case.data["fwd.yx"]
    train_forward(discriminator, lambda d: d(x, y))
    assert error(case, "fwd.D_train", train_forward(discriminator, lambda d: d(x, y))) > 2 * limit(case, "fwd.D_train")
    with pytest.raises(AssertionError):
        check_buffers(case, "D", discriminator)


@pytest.mark.parametrize("name", CASES)
def test_wrong_class_is_noticed(name: str) -> None:
    case = load(name)
    other = (case.data["fwd.yx"] + 1) % case.options["n_classes"]
    out = eval_forward(case.built()["D"], lambda d: d(pictures(case), other))
    assert error(case, "fwd.D_eval_init", out) > 2 * limit(case, "fwd.D_eval_init")


def test_every_case_is_here() -> None:
    assert {path.name.split(".")[0] for path in FOLDER.glob("*.json.gz")} == set(CASES)
    assert torch.get_num_threads() == 1, "the limits were measured with one thread"
