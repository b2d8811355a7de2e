"""StyleGAN3's training step: G, D, and D's gradient penalty every few steps.

Source: Karras et al. 2021 (arXiv 2106.12423), with the random inputs of its release: no styles are mixed and no path
lengths counted, and the generator's averages move in the discriminator's phase alone. Gradients are averaged over
micro-batches, where the release adds them up.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from frugan.augment.augmentation import Augmentation
from frugan.contract.phase import Carried, Draw, Draws, MicroBatch, Networks, Phase, PhaseState
from frugan.families.stylegan2.game import StyledGame
from frugan.families.stylegan3.config import StyleGAN3Networks, StyleGAN3Objective
from frugan.families.stylegan3.networks import Generator
from frugan.nn.linear_maps import conv2d

BLURRED = "blurred"
"""Name of the number of images since the start of the blur, among the carried state of phases."""
REACH = 3
"""Pixels that the blur reaches on each side, in deviations."""


@dataclass(frozen=True)
class _Game(StyledGame):
    """StyleGAN3's parts, with a blur of all pictures that fades."""

    networks: StyleGAN3Networks
    objective: StyleGAN3Objective

    def latents(self) -> Draws:
        return {"z": Draw("normal", (self.networks.latent_size,))}

    def generate(self, networks: Networks, micro: MicroBatch, classes: Tensor | None, *, observed: bool) -> Tensor:
        generator = cast(Generator, networks["G"])
        w = generator.mapping(micro.draws["z"], classes, observed=None if observed else 0)
        return cast(Tensor, generator.synthesis(generator.broadcast(w), observed=observed))

    def carried(self) -> dict[str, Carried]:
        carried = dict(super().carried())
        if self.objective.blur:
            carried[BLURRED] = Carried(0.0, _counted)
        return carried

    def shown(self, pictures: Tensor, name: str, micro: MicroBatch, state: PhaseState) -> Tensor:
        """Change pictures [n, C, R, R] as the discriminator shall see them: blurred, and then augmented."""
        if self.objective.blur:
            left = (1 - state.read(BLURRED) / self.objective.blur_images).clamp_min(0)
            pictures = blurred(pictures, self.objective.blur * left, round(REACH * self.objective.blur))
        return super().shown(pictures, name, micro, state)

    def observe(self, outputs: Tensor, micro: MicroBatch, state: PhaseState) -> None:
        super().observe(outputs, micro, state)
        if self.objective.blur:
            state.observe(BLURRED, state.read(BLURRED), micro.size)


def _counted(before: Tensor, _: Tensor, samples: int) -> Tensor:
    """Number of images after one more update."""
    return before + samples


def blurred(pictures: Tensor, deviation: Tensor, most: int) -> Tensor:
    """Blur by taps of 2^-(i/deviation)², up to 3 deviations away; beside a picture lies grey. At 0 nothing changes.

    Args:
        pictures: [n, C, R, R].
        deviation: in pixels, scalar.
        most: pixels on each side that the taps are made for.
    """
    away = torch.arange(-most, most + 1, device=pictures.device, dtype=pictures.dtype).abs()
    reached = away <= (REACH * deviation).floor()
    taps = torch.where(reached, torch.exp2(-(away / deviation.clamp_min(1e-6)).square()), torch.zeros_like(away))
    taps = (taps / taps.sum()).to(pictures.dtype)
    planes = pictures.flatten(0, 1)[:, None]  # [n·C, 1, R, R]
    for kernel, (y, x) in ((taps[:, None], (most, 0)), (taps[None], (0, most))):
        padded = torch.nn.functional.pad(planes, (x, x, y, y))
        planes = conv2d(padded, kernel[None, None])
    return planes.view_as(pictures)


def phases(networks: StyleGAN3Networks, objective: StyleGAN3Objective) -> tuple[Phase, ...]:
    """Phases G and D, with D_r1 where the objective has a penalty."""
    game = _Game(networks, objective, Augmentation.of(objective.augmentation))
    return (game.generator_phase(), game.discriminator_phase(), *game.penalty_phases())
