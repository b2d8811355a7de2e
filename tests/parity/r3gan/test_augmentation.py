"""R3GAN's augmentation: ADA's pipeline, in which colours change half as often, and both phases through it."""

import math

import torch
from torch import Tensor

from frugan.augment.ada import Ada
from frugan.augment.augmentation import AugmentationSettings
from frugan.families.r3gan.config import R3GANObjective
from parity.r3gan.golden import load, read_json, tensors
from parity.r3gan.updates import phase_of, run_alone
from parity.test_ada import DRAWN_NORMALS, DRAWN_UNIFORMS

LIMIT = 1e-5
OPERATIONS = ("blit", "geometry", "colour", "cutout")
CUTOUT_PLACES = (27, 26)
"""The original's draws of the square's centre, and of whether there is one; there is neither filter nor noise."""


def our_draws(recorded: dict[str, Tensor], prefix: str) -> tuple[Tensor, Tensor]:
    """The original's draws as our columns: uniforms [N, 29] and normals [N, 12]."""
    start = f"{prefix}draw"
    draws = {
        int(key.removeprefix(start)[:3]): value.flatten(1) if value.ndim > 1 else value[:, None]
        for key, value in recorded.items()
        if key.startswith(start)
    }
    uniforms = torch.ones(len(draws[0]), Ada.uniforms)
    normals = torch.zeros(len(draws[0]), Ada.normals)
    first = torch.cat([draws[i] for i in DRAWN_UNIFORMS], 1)
    uniforms[:, : first.shape[1]] = first
    centre, acts = (draws[i] for i in CUTOUT_PLACES)
    uniforms[:, -3:] = torch.cat([centre, acts], 1)
    own = torch.cat([draws[i] for i in DRAWN_NORMALS], 1)
    normals[:, : own.shape[1]] = own
    return uniforms, normals


def changed(colour_share: float) -> float:
    """Largest difference from the recorded pictures."""
    recorded = tensors("pipe/recorded_p0.7.safetensors")
    pictures = recorded["x_u8"].float() / 127.5 - 1
    made = Ada(OPERATIONS, colour_share)(pictures, *our_draws(recorded, ""), torch.tensor(0.7))
    return float((made - recorded["y"]).abs().max())


def test_pictures() -> None:
    assert changed(0.5) <= LIMIT
    assert changed(1.0) > 0.01


def test_both_phases_through_it() -> None:
    """Losses, penalties and gradients, at a probability that the course has led to."""
    recorded, values = tensors("pipe/phases_uncond16_p0.6.safetensors"), read_json("pipe/pipe.json")
    augmentation = AugmentationSettings(
        method="ada", operations=OPERATIONS, probability=0.6, target=None, colour_share=0.5
    )
    objective = R3GANObjective(gamma=50.0, augmentation=augmentation)
    case = load("uncond16")
    for name in ("D", "G"):
        draws: dict[str, Tensor] = {}
        for which in ("real", "fake"):
            uniforms, normals = our_draws(recorded, f"{name}.{which}.")
            draws |= {f"augment_{which}.uniform": uniforms, f"augment_{which}.normal": normals}
        update = run_alone(case, phase_of(case, name, objective), case.build(), draws)
        loss = update.terms["relativistic" if name == "D" else "adversarial"]
        assert abs(loss / float(recorded[f"{name}.adv"].mean()) - 1) <= LIMIT
        if name == "D":
            for penalty in ("r1", "r2"):
                reference = 25 * float(recorded[f"D.{penalty}"].mean())
                assert abs(update.terms[penalty] / reference - 1) <= LIMIT
        norm = torch.cat([gradient.flatten() for gradient in update.gradients.values()]).norm()
        reference = math.sqrt(sum(value**2 for value in values[f"{name}.gradnorm"].values()))
        assert abs(float(norm) / reference - 1) <= 1e-4
