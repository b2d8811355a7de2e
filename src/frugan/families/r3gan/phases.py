"""R3GAN's training step: the discriminator on pairs of pictures with two gradient penalties, then the generator.

Source: Huang et al. 2024 (arXiv 2501.05441), section 2. The two phases see different real pictures. The generated
picture of a pair has the class of the real one.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from frugan.augment.augmentation import Augmentation
from frugan.contract.phase import Draw, MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.data.picture_needs import real_pictures
from frugan.families.r3gan.config import R3GANNetworks, R3GANObjective
from frugan.objectives import r1_by_differences, r1_penalty, relativistic


@dataclass(frozen=True)
class _Game:
    """Parts of all phases. A tensor of pairs has the real pictures first, and then the generated ones."""

    networks: R3GANNetworks  # settings of the networks
    objective: R3GANObjective
    augmentation: Augmentation

    def generator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        classes = self._labels(micro)
        with torch.no_grad():
            shown = self.augmentation.apply(real_pictures(micro), micro, state, "real")
            real = networks["D"](shown, classes)
        pictures = networks["G"](micro.draws["z"], classes)
        fake = networks["D"](self.augmentation.apply(pictures, micro, state, "fake"), classes)
        return {"adversarial": relativistic(fake, real)}

    def discriminator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        outputs = self._judge(networks, self._pairs(networks, micro), micro, state)
        return self._relativistic(outputs, micro, state)

    def penalised_discriminator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        pairs = self._penalised_pairs(networks, micro)
        outputs = self._judge(networks, pairs, micro, state)
        return self._relativistic(outputs, micro, state) | self._penalties(networks, pairs, outputs, micro, state)

    def penalties(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        pairs = self._penalised_pairs(networks, micro)
        outputs = self._judge(networks, pairs, micro, state)
        terms = self._penalties(networks, pairs, outputs, micro, state)
        # Biases have no gradient here. They get one of 0, so that the optimizer counts this update for them too.
        return {name: term + 0 * outputs.float().mean() for name, term in terms.items()}

    def _pairs(self, networks: Networks, micro: MicroBatch) -> Tensor:
        """Real pictures and generated ones [2·n, C, R, R]."""
        with torch.no_grad():
            generated = networks["G"](micro.draws["z"], self._labels(micro))
            return torch.cat([real_pictures(micro), generated])

    def _penalised_pairs(self, networks: Networks, micro: MicroBatch) -> Tensor:
        """Pairs as of `_pairs`, which take a gradient if penalties are exact."""
        return self._pairs(networks, micro).requires_grad_(self.objective.penalty == "exact")

    def _judge(self, networks: Networks, pairs: Tensor, micro: MicroBatch, state: PhaseState) -> Tensor:
        """Outputs of the discriminator [2·n, 1] for augmented pairs [2·n, C, R, R]."""
        shown = self.augmentation.apply(pairs, micro, state, "real", "fake")
        classes = self._labels(micro)
        twice = None if classes is None else torch.cat([classes, classes])
        return cast(Tensor, networks["D"](shown, twice))

    def _relativistic(self, outputs: Tensor, micro: MicroBatch, state: PhaseState) -> Terms:
        real, fake = outputs.chunk(2)
        self.augmentation.observe(real - fake, micro, state)
        return {"relativistic": relativistic(real, fake)}

    def _penalties(
        self, networks: Networks, pairs: Tensor, outputs: Tensor, micro: MicroBatch, state: PhaseState
    ) -> Terms:
        """R1 and R2 of pairs [2·n, C, R, R] with the discriminator's outputs [2·n, 1]."""
        if self.objective.penalty == "exact":
            penalties = r1_penalty(outputs, pairs, state.loss_scale)
        else:
            deviation = self.objective.penalty_noise
            noise = micro.draws["noise"].transpose(0, 1).flatten(0, 1)  # [2·n, C, R, R]
            noisy = self._judge(networks, pairs + deviation * noise.to(pairs.dtype), micro, state)
            penalties = r1_by_differences(outputs, noisy, deviation)
        gamma = state.between(self.objective.gamma, self.objective.final_gamma)
        r1, r2 = (gamma * penalties).chunk(2)  # [n] each
        return {"r1": r1.mean(), "r2": r2.mean()}

    def _labels(self, micro: MicroBatch) -> Tensor | None:
        return micro.pictures["images"]["labels"] if self.networks.classes is not None else None


def phases(networks: R3GANNetworks, objective: R3GANObjective) -> tuple[Phase, ...]:
    """Phases D and G; penalties are part of D, or have a phase D_penalty every few steps."""
    augmentation = Augmentation.of(objective.augmentation)
    game = _Game(networks, objective, augmentation)
    shape = (networks.channels, networks.resolution, networks.resolution)
    draws = {"z": Draw("normal", (networks.latent_size,)), **augmentation.draws("real", "fake", shape=shape)}
    always, exact = objective.penalty_every == 1, objective.penalty == "exact"
    noise = {} if exact else {"noise": Draw("normal", (2, *shape), per_image=True)}
    discriminator = Phase(
        name="D",
        updates=("D",),
        uses=("D", "G"),
        optimizer="D",
        parts=(game.penalised_discriminator if always else game.discriminator,),
        draws=draws | noise if always else draws,
        sources=("images",),
        shared_data=False,
        penalises_gradients=always and exact,
        carried=augmentation.carried(),
    )
    penalty = Phase(
        name="D_penalty",
        updates=("D",),
        uses=("D", "G"),
        optimizer="D",
        parts=(game.penalties,),
        draws=draws | noise,
        sources=("images",),
        shared_data=False,
        every=objective.penalty_every,
        gain=objective.penalty_every,
        penalises_gradients=exact,
        carried=augmentation.carried(),
    )
    generator = Phase(
        name="G",
        updates=("G",),
        uses=("D", "G"),
        optimizer="G",
        parts=(game.generator,),
        draws=draws,
        sources=("images",),
        shared_data=False,
        carried=augmentation.carried(),
    )
    return (discriminator, generator) if always else (discriminator, penalty, generator)
