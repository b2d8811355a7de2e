"""XSeg's losses and first gradients against recorded ones, both in float64, and a whole recorded training."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from frugan.contract.ops import PLAIN
from frugan.engine.state.optimizer_settings import RMSpropSettings, create_optimizer
from frugan.faces.xseg.networks import XSeg
from frugan.faces.xseg.phases import grey, grey_loss, mask_loss
from parity.saehd.errors import joint_error
from parity.saehd.weights import Array, file_key, from_file, to_file
from parity.xseg.golden import SCOPE, SIDE, arrays, fill, masks, nchw, random_of, record

LOSS, GRADIENT, TRACE, MOVEMENT = 1e-5, 1e-5, 5e-5, 1e-3
"""Relative. Measured: losses 1e-9 at the first step; the last of five steps differs by at most 2e-5."""

PARTS = ("normal", "pretrain")


def network(case: Any) -> XSeg:
    built = XSeg(SIDE, case["base"])
    fill(built, case["seed"])
    return built.double()


def losses_of(built: XSeg, part: str, batch: int) -> Tensor:
    """Losses of the samples of a recorded batch [2]."""
    batches = arrays("batches.npz")
    if part == "normal":
        picture, target = nchw(batches[f"mask_x{batch}"]), masks(batches[f"mask_t{batch}"])
        terms = [mask_loss(logits[None], mask[None]) for logits, mask in zip(built(picture), target, strict=True)]
    else:
        picture, target = nchw(batches[f"pretrain_x{batch}"]), nchw(batches[f"pretrain_t{batch}"])
        logits = built(picture, skips=False)
        terms = [grey_loss(one[None], wanted[None], PLAIN) for one, wanted in zip(logits, target, strict=True)]
    return torch.stack([torch.stack(list(of.values())).sum() for of in terms])


@cache
def first(part: str) -> tuple[Array, dict[str, Array]]:
    """Losses of the first step, and gradients of their sum by the names of the original's graph."""
    built = network(record(f"{part}.json"))
    losses = losses_of(built, part, 0)
    losses.sum().backward()
    gradients = {
        f"{SCOPE}/{file_key(key)}": to_file(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        for key, parameter in built.named_parameters()
    }
    return losses.detach().numpy(), gradients


@pytest.mark.parametrize("part", PARTS)
def test_first_losses(part: str) -> None:
    np.testing.assert_allclose(first(part)[0], record(f"{part}.json")["losses"][0], rtol=LOSS)


@pytest.mark.parametrize("part", PARTS)
def test_first_gradients(part: str) -> None:
    recorded = {key: np.array(values) for key, values in record(f"{part}.json")["grads_step0"].items()}
    assert joint_error(recorded, first(part)[1]) <= GRADIENT


@pytest.mark.parametrize("fault", ["mean of two windows", "no weight"])
def test_another_loss_is_noticed(fault: str) -> None:
    """A fault of one per cent in either of its terms is far beyond the limit."""
    terms = {"mean of two windows": (1.01, 1.0), "no weight": (1.0, 1.01)}[fault]
    batches, built = arrays("batches.npz"), network(record("pretrain.json"))
    with torch.no_grad():
        logits = built(nchw(batches["pretrain_x0"]), skips=False)
        loss = grey_loss(logits, nchw(batches["pretrain_t0"]), PLAIN)
    faulty = terms[0] * loss["faces/dssim"] + terms[1] * loss["faces/mse"]
    assert abs(float(faulty) / np.mean(record("pretrain.json")["losses"][0]) - 1) > 50 * LOSS


def test_grey_is_opencvs_of_the_same_face() -> None:
    batches = arrays("batches.npz")
    ours = grey(nchw(batches["pretrain_x0"]))
    assert (ours - nchw(batches["pretrain_t0"])).abs().max() <= 1.01 / 255  # both are rounded to bytes


def test_five_steps() -> None:
    """With the recorded masks of the dropout: what they hold back is put back after each update."""
    case = record("normal.json")
    built = network(case)
    named = {f"{SCOPE}/{file_key(key)}": parameter for key, parameter in built.named_parameters()}
    settings = RMSpropSettings(learning_rate=case["lr"])
    optimizer = create_optimizer(settings, named)
    before = {key: value.detach().clone() for key, value in named.items()}
    for step, recorded in enumerate(case["losses"]):
        optimizer.zero_grad()
        losses = losses_of(built, "normal", step % 2)
        np.testing.assert_allclose(losses.detach().numpy(), recorded, rtol=TRACE if step else LOSS)
        losses.sum().backward()
        kept = {key: value.detach().clone() for key, value in named.items()}
        rate = settings.rate_at(0.0)
        optimizer.update(torch.tensor(True), learning_rate=rate, period=None, share=None, seed=0)
        with torch.no_grad():
            for key, value in named.items():
                drawn = random_of(case["seed"], f"{key}#{step}").uniform(size=to_file(value).shape)
                moves = from_file(drawn < case["lr_dropout"])
                value.copy_(torch.where(moves, value, kept[key]))
        if step in (0, len(case["losses"]) - 1):
            moved = {key: to_file(value.detach() - before[key]) for key, value in named.items()}
            expected = {key: np.array(values) for key, values in case["weight_delta"][f"step{step + 1}"].items()}
            assert joint_error(expected, moved) <= MOVEMENT
