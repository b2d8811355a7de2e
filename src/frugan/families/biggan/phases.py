"""BigGAN's training step: the discriminator learns to tell real from generated, then the generator to pass.

Source: Brock et al. 2018 (arXiv 1809.11096). The release judges real and generated pictures in one concatenated
forward; nothing in the discriminator looks across samples, so two parts give the same gradients in half the memory.
R1 comes in a phase of its own, every few steps (Karras et al. 2019, arXiv 1912.04958, appendix B).
"""

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from frugan.augment.augmentation import Augmentation
from frugan.families.biggan.config import BigGANNetworks, BigGANObjective
from frugan.families.biggan.discriminator import Discriminator
from frugan.families.biggan.generator import Generator, latent_size
from frugan.objectives.adversarial import ADVERSARIAL_LOSSES, AdversarialLoss
from frugan.objectives.gradient_penalty import r1_penalty
from frugan.objectives.orthogonal import add_orthogonal_gradient
from frugan.phase import Draw, MicroBatch, Networks, Part, Phase, PhaseState, Terms


@dataclass(frozen=True)
class _Game:
    """The parts of the phases.

    Attributes:
        loss: of the game.
        augmentation: what the discriminator sees.
        r1_gamma: strength of R1.
    """

    loss: AdversarialLoss
    augmentation: Augmentation
    r1_gamma: float

    def real(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        outputs = self._judge(networks, _real_pictures(micro), micro.pictures["images"]["labels"], "real", micro, state)
        self.augmentation.observe(outputs, micro, state)
        return {"real": self.loss.real(outputs)}

    def fake(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        with torch.no_grad():
            pictures = _generate(networks, micro)
        return {"fake": self.loss.fake(self._judge(networks, pictures, micro.draws["y"], "fake", micro, state))}

    def generator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        outputs = self._judge(networks, _generate(networks, micro), micro.draws["y"], "fake", micro, state)
        return {"adversarial": self.loss.generator(outputs)}

    def r1(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        pictures = _real_pictures(micro).requires_grad_()
        outputs = self._judge(networks, pictures, micro.pictures["images"]["labels"], "real", micro, state)
        self.augmentation.observe(outputs, micro, state, counts=False)
        return {"r1": self.r1_gamma * r1_penalty(outputs, pictures, state.loss_scale).mean()}

    def _judge(
        self, networks: Networks, pictures: Tensor, classes: Tensor, name: str, micro: MicroBatch, state: PhaseState
    ) -> Tensor:
        """The discriminator's outputs [n, 1] on augmented pictures."""
        shown = self.augmentation.apply(pictures, name, micro, state)
        return cast(Tensor, cast(Discriminator, networks["D"])(shown, classes))


def _generate(networks: Networks, micro: MicroBatch) -> Tensor:
    generator = cast(Generator, networks["G"])
    return cast(Tensor, generator(micro.draws["z"], generator.embed(micro.draws["y"])))


def _real_pictures(micro: MicroBatch) -> Tensor:
    return micro.pictures["images"]["pictures"].float() / 127.5 - 1


def _orthogonal(network: str, strength: float, networks: Networks) -> None:
    # The paper leaves out the class embedding that the generator's blocks share.
    parameters = (p for name, p in networks[network].named_parameters() if name != "shared.weight")
    add_orthogonal_gradient(parameters, strength)


def phases(networks: BigGANNetworks, objective: BigGANObjective) -> tuple[Phase, ...]:
    """Phases D (repeated `discriminator_steps` times), D_r1 where the objective asks for it, and G."""
    augmentation = Augmentation.of(objective.augmentation)
    game = _Game(ADVERSARIAL_LOSSES[objective.loss], augmentation, objective.r1_gamma)
    draws = {
        "z": Draw("normal", (latent_size(networks),)),
        "y": Draw("classes", classes=networks.classes),
    }

    def phase(name: str, parts: tuple[Part, ...], strength: float, **extra: object) -> Phase:
        return Phase(
            name=name,
            updates=(name,),
            uses=("D", "G"),
            optimizer=name,
            parts=parts,
            on_masters=partial(_orthogonal, name, strength) if strength else None,
            carried=augmentation.carried(),
            **extra,  # type: ignore[arg-type]
        )

    steps = objective.discriminator_steps
    found = [
        phase(
            "D",
            (game.real, game.fake),
            objective.discriminator_orthogonality,
            draws={**draws, **augmentation.draws("real", "fake")},
            sources=("images",),
            repeats=steps,
            shared_data=steps == 1,
        )
    ]
    if objective.r1_gamma:
        found.append(
            Phase(
                name="D_r1",
                updates=("D",),
                uses=("D",),
                optimizer="D",
                parts=(game.r1,),
                draws=augmentation.draws("real"),
                sources=("images",),
                every=objective.r1_every,
                gain=objective.r1_every,
                carried=augmentation.carried(),
            )
        )
    found.append(
        phase(
            "G",
            (game.generator,),
            objective.generator_orthogonality,
            draws={**draws, **augmentation.draws("fake")},
        )
    )
    return tuple(found)
