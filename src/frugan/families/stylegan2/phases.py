"""StyleGAN2's training step: G, its path lengths every few steps, D, and its gradient penalty every few steps.

Source: Karras et al. 2019 (arXiv 1912.04958), with the order, the gains and the random inputs of the release with
adaptive augmentation (Karras et al. 2020, arXiv 2006.06676). In three ways the release's results depend on its
micro-batches, and these do not: gradients are averaged over micro-batches and not added up, each picture draws its own
place of mixing, and the mean style moves once per update.
"""

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from frugan.augment.augmentation import Augmentation
from frugan.contract.phase import Carried, Draw, Draws, MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.families.stylegan2.config import StyleGAN2Networks, StyleGAN2Objective
from frugan.families.stylegan2.game import StyledGame
from frugan.families.stylegan2.networks import Generator, noise_size
from frugan.objectives import path_length_penalty, path_lengths

PATH_LENGTH = "path_length"
"""Name of the running mean of path lengths among the carried state of phases."""


@dataclass(frozen=True)
class _Game(StyledGame):
    """StyleGAN2's parts: pictures of mixed styles and of noise, and path lengths."""

    networks: StyleGAN2Networks
    objective: StyleGAN2Objective

    def latents(self) -> Draws:
        draws = {"z": Draw("normal", (self.networks.latent_size,))}
        draws["noise"] = Draw("normal", (noise_size(self.networks.sides),), per_image=True)
        if self.objective.style_mixing:
            draws["mixed_z"] = Draw("normal", (self.networks.latent_size,))
            draws["mixing"] = Draw("uniform", (2,))
        return draws

    def generate(self, networks: Networks, micro: MicroBatch, classes: Tensor | None, *, observed: bool) -> Tensor:
        return self._generate(networks, micro, classes)[0]  # the mean style moves in every phase

    def path_length(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        pictures, styles = self._generate(networks, micro, micro.draws.get("y"))
        lengths = path_lengths(pictures, styles, micro.draws["path"], state.loss_scale)
        state.observe(PATH_LENGTH, lengths.mean(), micro.size)
        penalty = path_length_penalty(
            lengths,
            state.read(PATH_LENGTH),
            self.objective.path_length_decay,
            micro.normalisation_batch,
            micro.group_mean,
        )
        # Biases of colours do not change lengths; see `StyledGame.r1`.
        nothing = 0 * pictures[:, :, 0, 0].mean()
        return {"path_length": (self.objective.path_length_weight * penalty.mean() + nothing).float()}

    def _generate(self, networks: Networks, micro: MicroBatch, classes: Tensor | None) -> tuple[Tensor, Tensor]:
        """Pictures [n, C, R, R] of classes [n], and the styles that they are made of [n, styles, style]."""
        generator = cast(Generator, networks["G"])
        draws = micro.draws
        if self.objective.style_mixing:
            both = torch.cat([draws["z"], draws["mixed_z"]])  # [2·n, latent]
            twice = None if classes is None else torch.cat([classes, classes])
            first, second = generator.mapping(both, twice, observed=micro.size).chunk(2)
            takes_first = self._before_crossing(draws["mixing"])
            styles = torch.where(takes_first, generator.broadcast(first), generator.broadcast(second))
        else:
            styles = generator.broadcast(generator.mapping(draws["z"], classes))
        return cast(Tensor, generator.synthesis(styles, draws["noise"])), styles

    def _before_crossing(self, uniforms: Tensor) -> Tensor:
        """Whether layers take the style of the first latent [n, styles, 1].

        Args:
            uniforms: in [0, 1) [n, 2]: whether a picture mixes styles, and from which layer on.
        """
        count = self.networks.styles
        mixed, share = uniforms.unbind(1)  # [n] each
        crossing = torch.where(mixed < self.objective.style_mixing, 1 + (share * (count - 1)).floor(), count)
        return (torch.arange(count, device=uniforms.device) < crossing[:, None])[:, :, None]

    def path_length_phases(self) -> tuple[Phase, ...]:
        """Phase G_path, of the generator's penalty; empty where it has no weight."""
        objective = self.objective
        if not objective.path_length_weight:
            return ()
        phase = Phase(
            name="G_path",
            updates=("G",),
            uses=("G",),
            optimizer="G",
            parts=(self.path_length,),
            draws={**self.drawn(), "path": Draw("normal", self.shape, per_image=True)},
            every=objective.path_length_every,
            fraction=objective.path_length_fraction,
            smaller_groups=True,
            gain=objective.path_length_every,
            penalises_gradients=True,
            carried={PATH_LENGTH: Carried(0.0, partial(_moved, objective.path_length_decay))},
        )
        return (phase,)


def _moved(decay: float, before: Tensor, mean: Tensor, samples: int) -> Tensor:
    """Running mean of path lengths after one more update."""
    return torch.lerp(before, mean, decay)


def phases(networks: StyleGAN2Networks, objective: StyleGAN2Objective) -> tuple[Phase, ...]:
    """Phases G and D, with G_path and D_r1 where the objective has their penalties."""
    game = _Game(networks, objective, Augmentation.of(objective.augmentation))
    return (game.generator_phase(), *game.path_length_phases(), game.discriminator_phase(), *game.penalty_phases())
