"""Recorded runs of three steps, each with one more term or option: losses of every sample, gradients, movement.

In float64 what is left is the original's own rounding, and limits are narrow. In fp32 a leaky ReLU of the liae runs
falls on the other side of its kink, which makes 7e-4 of a gradient.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from frugan.contract.dssim import dssim
from frugan.contract.ops import PLAIN
from frugan.faces.saehd.config import SAEHDObjective
from frugan.faces.saehd.phases import FaceTargets, reconstruction
from frugan.setup.ops import ops_of
from parity.saehd.errors import gradient_error, joint_error, loss_error
from parity.saehd.golden import LONG, SHORT, recording
from parity.saehd.runs import Run, first_gradients, run

FIRST, LATER, GRADIENT, MOVEMENT = 3e-6, 1e-5, 5e-5, 5e-5
"""Relative, in float64: losses of the first and of all steps, gradients, movement. Measured: at most 2.7e-6, 3.5e-6,
4.3e-5, 2.6e-5."""

FIRST_FP32, LATER_FP32, GRADIENT_FP32, MOVEMENT_FP32 = 1e-5, 2e-4, 1e-3, 2e-3
"""Measured: df 2.0e-6, 3.1e-6, 1.5e-5, 5.2e-6; liae 5.7e-6, 1.2e-4, 7.2e-4, 8.6e-4."""

IN_FP32 = tuple(f"extras/{name}" for name in ("df-ud_all", "df-ud_gan_nomask", "liae-ud_all", "liae-ud_face_style"))
"""All terms, and the run that strays most."""

OFF: dict[str, dict[str, Any]] = {
    "all": {"clipgrad": False},
    "bg_style": {"bg_style_power": 0.0},
    "blur_out_mask": {"blur_out_mask": False},
    "clipgrad": {"clipgrad": False},
    "eyes_mouth": {"eyes_mouth_prio": False},
    "face_style": {"face_style_power": 0.0},
    "gan": {"gan_power": 0.0},
    "gan_nomask": {"masked_training": True},
    "no_random_warp": {"random_warp": True},
    "nomask": {"masked_training": True},
    "pretrain": {"pretrain": False},
    "true_face": {"true_face_power": 0.0},
}
"""What tells a recording from the usual run."""

IN_SHORT = {
    "extras/df-ud_all",
    *(f"extras/liae-ud_{name}" for name in ("gan_nomask", "no_random_warp", "pretrain")),
}
"""Every term is in one of these; the other recordings have one term each, or the same of another architecture."""


def in_short(*names: str) -> list[Any]:
    """Recordings as parameters; those that are not in short are `long`."""
    return [pytest.param(name, marks=[] if name in IN_SHORT else pytest.mark.long) for name in names]


each_recording = pytest.mark.parametrize("name", in_short(*SHORT))


@cache
def exact(name: str) -> Run:
    return run(recording(name), float64=True)


@each_recording
def test_losses_of_every_sample(name: str) -> None:
    case, ours = recording(name), exact(name)
    assert ours.losses.keys() == {key for key in case.trace if not key.endswith("_step0")}
    assert loss_error(case, ours, 1) <= FIRST
    assert loss_error(case, ours) <= LATER


@each_recording
def test_first_gradients(name: str) -> None:
    case = recording(name)
    ours, recorded = first_gradients(case, float64=True), case.gradients()
    assert ours.keys() == recorded.keys()
    for update, reference in recorded.items():
        assert gradient_error(reference, ours[update]) <= GRADIENT, update


@each_recording
def test_movement(name: str) -> None:
    case, ours = recording(name), exact(name)
    for steps in (1, 3):
        recorded = case.movement(steps)
        assert recorded.keys() <= ours.movement[steps].keys()
        assert joint_error(recorded, ours.movement[steps]) <= MOVEMENT
        for key in ours.movement[steps].keys() - recorded.keys():
            assert not ours.movement[steps][key].any(), f"{key} moved and has no phase"


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_SHORT else pytest.mark.long) for name in IN_FP32]
)
def test_in_fp32(name: str) -> None:
    case = recording(name)
    ours = run(case)
    assert loss_error(case, ours, 1) <= FIRST_FP32
    assert loss_error(case, ours) <= LATER_FP32
    assert joint_error(case.movement(3), ours.movement[3]) <= MOVEMENT_FP32


@pytest.mark.parametrize("name", LONG)
def test_first_gradients_in_fp32(name: str) -> None:
    case = recording(name)
    assert gradient_error(case.gradients()["G"], first_gradients(case)["G"]) <= GRADIENT_FP32


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name.endswith("gan_nomask") else pytest.mark.long)
        for name in SHORT
        if "/liae" in name or "true_face" in name
    ],
)
def test_the_usual_run_is_noticed(name: str) -> None:
    case = recording(name)
    usual = replace(case, options=case.options | OFF[name.split("-ud_")[1]])
    # Clipping and rest show in the second step.
    steps = 2 if name.endswith(("_all", "_clipgrad", "_no_random_warp")) else 1
    ours = run(usual, float64=True, steps=steps)
    losses = {key: value for key, value in ours.losses.items() if key in case.trace}
    assert loss_error(case, replace(ours, losses=losses)) > 2 * LATER


@pytest.mark.parametrize("name", ["extras/liae-ud_no_random_warp", "extras/liae-ud_pretrain"])
def test_liaes_shared_code_rests_without_random_warp(name: str) -> None:
    moved = exact(name).movement[3]
    assert all(moved[key].any() != key.startswith("inter_AB/") for key in recording(name).movement(3))


@pytest.mark.parametrize("name", in_short("extras/df-ud_all", "extras/liae-ud_all"))
def test_samples_together_are_the_mean_and_the_same_update(name: str) -> None:
    case, apart = recording(name), exact(name)
    together = run(case, float64=True, micro_batch=2)
    for key in ("src_loss", "dst_loss", "loss_G_before_update"):
        assert together.losses[key][:, 0].tolist() == pytest.approx(apart.losses[key].mean(1).tolist(), rel=1e-9)
    for key, moved in apart.movement[3].items():
        assert torch.allclose(
            torch.from_numpy(together.movement[3][key]), torch.from_numpy(moved), rtol=1e-4, atol=1e-12
        )


def test_total_variation_as_on_a_gpu_is_noticed() -> None:
    case = recording("extras/liae-ud_gan")
    assert loss_error(case, run(case, float64=True, steps=1, on_cpu=False)) > 2 * FIRST


def test_true_face_stays_in_the_loss_of_pretraining_and_its_discriminator_rests() -> None:
    case = recording("extras/df-ud_true_face")
    pretraining = replace(case, options=case.options | {"pretrain": True})
    _, step, _ = pretraining.training()
    assert [phase.name for phase in step.phases] == ["autoencoder"]
    without = replace(pretraining, options=pretraining.options | {"true_face_power": 0.0})
    ours, other = (run(of, steps=1).losses["loss_G_before_update"] for of in (pretraining, without))
    assert (ours > other).all()


def test_at_256_pixels_two_windows_share_the_weight() -> None:
    random = torch.Generator().manual_seed(0)
    a, b = (torch.rand(1, 3, 256, 256, generator=random) for _ in range(2))
    mask = torch.ones(1, 1, 256, 256)
    objective = SAEHDObjective(masked_training=False)
    losses = reconstruction("src", FaceTargets(a, mask, mask, None), b, mask, objective)
    expected = 5 * dssim(a, b, 22).mean() + 5 * dssim(a, b, 11).mean()
    assert float(losses["src/dssim"]) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("side", [64, 256])
@pytest.mark.parametrize("masked", [True, False])
def test_by_kernels_of_our_own_terms_and_gradients_are_the_same(side: int, masked: bool) -> None:
    """Up to rounding; a resolution with one window, and one with two."""
    random = torch.Generator().manual_seed(6)
    picture, made = (torch.rand(2, 3, side, side, generator=random) for _ in range(2))
    mask, soft, eyes, made_mask = (torch.rand(2, 1, side, side, generator=random) for _ in range(4))
    objective = SAEHDObjective(masked_training=masked, eyes_mouth_prio=True)
    ends = []
    for ops in (ops_of(["dssim"]), PLAIN):
        leaves = [each.clone().requires_grad_() for each in (made, made_mask)]
        targets = FaceTargets(picture, mask, soft, eyes)
        terms = reconstruction("src", targets, leaves[0], leaves[1], objective, ops)
        gradients = torch.autograd.grad(torch.stack(list(terms.values())).sum(), leaves)
        ends.append([*(value.detach() for value in terms.values()), *gradients])
    for own, torchs in zip(*ends, strict=True):
        torch.testing.assert_close(own, torchs, rtol=1e-4, atol=1e-5 * float(torchs.abs().max()))
