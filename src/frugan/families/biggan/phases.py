"""BigGAN's training step: the discriminator learns to tell real from generated, then the generator to pass.

Source: Brock et al. 2018 (arXiv 1809.11096). The release judges real and generated pictures in one concatenated
forward; nothing in the discriminator looks across samples, so two parts give the same gradients in half the memory.
"""

from functools import partial
from typing import cast

import torch
from torch import Tensor

from frugan.families.biggan.config import BigGANNetworks, BigGANObjective
from frugan.families.biggan.discriminator import Discriminator
from frugan.families.biggan.generator import Generator, latent_size
from frugan.objectives.adversarial import ADVERSARIAL_LOSSES, AdversarialLoss
from frugan.objectives.orthogonal import add_orthogonal_gradient
from frugan.phase import Draw, MicroBatch, Networks, Part, Phase, PhaseState, Terms


def _generate(networks: Networks, micro: MicroBatch) -> Tensor:
    generator = cast(Generator, networks["G"])
    return cast(Tensor, generator(micro.draws["z"], generator.embed(micro.draws["y"])))


def _real(loss: AdversarialLoss, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
    data = micro.pictures["images"]
    pictures = data["pictures"].float() / 127.5 - 1
    return {"real": loss.real(cast(Discriminator, networks["D"])(pictures, data["labels"]))}


def _fake(loss: AdversarialLoss, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
    with torch.no_grad():
        pictures = _generate(networks, micro)
    return {"fake": loss.fake(cast(Discriminator, networks["D"])(pictures, micro.draws["y"]))}


def _generator(loss: AdversarialLoss, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
    outputs = cast(Discriminator, networks["D"])(_generate(networks, micro), micro.draws["y"])
    return {"adversarial": loss.generator(outputs)}


def _orthogonal(network: str, strength: float, networks: Networks) -> None:
    # The paper leaves out the class embedding that the generator's blocks share.
    parameters = (p for name, p in networks[network].named_parameters() if name != "shared.weight")
    add_orthogonal_gradient(parameters, strength)


def phases(networks: BigGANNetworks, objective: BigGANObjective) -> tuple[Phase, ...]:
    """Phases D (repeated `discriminator_steps` times) and G."""
    loss = ADVERSARIAL_LOSSES[objective.loss]
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
            draws=draws,
            on_masters=partial(_orthogonal, name, strength) if strength else None,
            **extra,  # type: ignore[arg-type]
        )

    steps = objective.discriminator_steps
    return (
        phase(
            "D",
            (partial(_real, loss), partial(_fake, loss)),
            objective.discriminator_orthogonality,
            sources=("images",),
            repeats=steps,
            shared_data=steps == 1,
        ),
        phase("G", (partial(_generator, loss),), objective.generator_orthogonality),
    )
