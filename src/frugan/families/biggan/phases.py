"""BigGAN's training step: the discriminator learns to tell real from generated pictures, then the generator to fool it.

Source: Brock et al. 2018 (arXiv 1809.11096). The release judges real and generated pictures in one concatenated
forward. Nothing in the discriminator looks across samples, so two parts give the same gradients in half the memory.
R1 and R2 have a phase of their own, every few steps (Karras et al. 2019, arXiv 1912.04958, appendix B).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from frugan.augment.augmentation import Augmentation
from frugan.contract.phase import Draw, Draws, MicroBatch, Networks, Part, Phase, PhaseState, Terms
from frugan.data.picture_needs import real_pictures
from frugan.families.biggan.config import BigGANNetworks, BigGANObjective
from frugan.families.biggan.networks import Discriminator, Generator, latent_size
from frugan.objectives import ADVERSARIAL_LOSSES, AdversarialLoss, add_orthogonal_gradient, r1_penalty, relativistic


@dataclass(frozen=True)
class _Game:
    """Parts in which the discriminator judges each picture by itself."""

    loss: AdversarialLoss
    augmentation: Augmentation
    r1_gamma: float  # strength of R1
    r2_gamma: float  # strength of R2

    def real(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        outputs = _judge(self.augmentation, networks, real_pictures(micro), _labels(micro), "real", micro, state)
        self.augmentation.observe(outputs, micro, state)
        return {"real": self.loss.real(outputs)}

    def fake(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        classes = micro.draws["y"]
        with torch.no_grad():
            pictures = _generate(networks, micro, classes)
        return {"fake": self.loss.fake(_judge(self.augmentation, networks, pictures, classes, "fake", micro, state))}

    def generator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        classes = micro.draws["y"]
        pictures = _generate(networks, micro, classes)
        outputs = _judge(self.augmentation, networks, pictures, classes, "fake", micro, state)
        return {"adversarial": self.loss.generator(outputs)}

    def r1(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        terms, outputs = _r1(self.r1_gamma, self.augmentation, networks, micro, state)
        self.augmentation.observe(outputs, micro, state, counts=False)
        return terms

    def r2(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        return _r2(self.r2_gamma, self.augmentation, networks, micro.draws["y"], micro, state)


@dataclass(frozen=True)
class _PairedGame:
    """Parts in which the discriminator tells which of two pictures of one class is real."""

    augmentation: Augmentation
    r1_gamma: float  # strength of R1
    r2_gamma: float  # strength of R2

    def discriminator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        with torch.no_grad():
            pictures = _generate(networks, micro, _labels(micro))
        real, fake = self._real(networks, micro, state), self._fake(networks, pictures, micro, state)
        self.augmentation.observe(real - fake, micro, state)
        return {"relativistic": relativistic(real, fake)}

    def generator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        with torch.no_grad():
            real = self._real(networks, micro, state)
        fake = self._fake(networks, _generate(networks, micro, _labels(micro)), micro, state)
        return {"adversarial": relativistic(fake, real)}

    def r1(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        terms, _ = _r1(self.r1_gamma, self.augmentation, networks, micro, state)
        return terms  # outputs for single pictures have no meaningful sign here, so they steer no augmentation

    def r2(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        return _r2(self.r2_gamma, self.augmentation, networks, _labels(micro), micro, state)

    def _real(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Tensor:
        """Outputs for the real pictures [n, 1]."""
        return _judge(self.augmentation, networks, real_pictures(micro), _labels(micro), "real", micro, state)

    def _fake(self, networks: Networks, pictures: Tensor, micro: MicroBatch, state: PhaseState) -> Tensor:
        """Outputs for pictures that were generated for the classes of the real ones [n, 1]."""
        return _judge(self.augmentation, networks, pictures, _labels(micro), "fake", micro, state)


def _r1(
    gamma: float, augmentation: Augmentation, networks: Networks, micro: MicroBatch, state: PhaseState
) -> tuple[Terms, Tensor]:
    """R1, and the discriminator's outputs for the real pictures [n, 1]."""
    pictures = real_pictures(micro).requires_grad_()
    shown = augmentation.apply(pictures, micro, state, "real")
    outputs = cast(Discriminator, networks["D"])(shown, _labels(micro), differentiable_twice=True)
    return {"r1": gamma * r1_penalty(outputs, pictures, state.loss_scale).mean()}, outputs


def _r2(
    gamma: float,
    augmentation: Augmentation,
    networks: Networks,
    classes: Tensor,
    micro: MicroBatch,
    state: PhaseState,
) -> Terms:
    """R2, R1's penalty at generated pictures, from which the generator does not learn."""
    with torch.no_grad():
        pictures = _generate(networks, micro, classes)
    shown = augmentation.apply(pictures.requires_grad_(), micro, state, "fake")
    outputs = cast(Discriminator, networks["D"])(shown, classes, differentiable_twice=True)
    return {"r2": gamma * r1_penalty(outputs, pictures, state.loss_scale).mean()}


def _judge(
    augmentation: Augmentation,
    networks: Networks,
    pictures: Tensor,
    classes: Tensor,
    name: str,
    micro: MicroBatch,
    state: PhaseState,
) -> Tensor:
    """Outputs of the discriminator [n, 1] for augmented pictures [n, C, R, R]."""
    shown = augmentation.apply(pictures, micro, state, name)
    return cast(Tensor, cast(Discriminator, networks["D"])(shown, classes))


def _generate(networks: Networks, micro: MicroBatch, classes: Tensor) -> Tensor:
    generator = cast(Generator, networks["G"])
    return cast(Tensor, generator(micro.draws["z"], generator.embed(classes)))


def _labels(micro: MicroBatch) -> Tensor:
    return micro.pictures["images"]["labels"]


def _orthogonal(network: str, strength: float, networks: Networks) -> None:
    # The paper leaves out the class embedding that the generator's blocks share.
    parameters = (p for name, p in networks[network].named_parameters() if name != "shared.weight")
    add_orthogonal_gradient(parameters, strength)


def phases(
    networks: BigGANNetworks, objective: BigGANObjective, loss: AdversarialLoss | None = None
) -> tuple[Phase, ...]:
    """Phases D (repeated `discriminator_steps` times), D_r1 where a penalty is wanted, and G if it learns.

    Args:
        networks: the recipe's section `networks`.
        objective: the recipe's section `objective`.
        loss: loss of another package, in place of `objective.loss`.
    """
    augmentation = Augmentation.of(objective.augmentation)
    steps = objective.discriminator_steps
    shape = (networks.channels, networks.resolution, networks.resolution)
    draws: dict[str, Draw] = {"z": Draw("normal", (latent_size(networks),))}
    d_parts: tuple[Part, ...]
    r1: Part
    r2: Part
    g_parts: tuple[Part, ...]
    g_sources: tuple[str, ...]
    g_sees: tuple[str, ...]
    if loss is None and objective.loss == "relativistic":
        pairs = _PairedGame(augmentation, objective.r1_gamma, objective.r2_gamma)
        d_parts, r1, r2, g_parts = (pairs.discriminator,), pairs.r1, pairs.r2, (pairs.generator,)
        g_sources, g_sees = ("images",), ("real", "fake")
    else:
        loss = loss or ADVERSARIAL_LOSSES[objective.loss]
        game = _Game(loss, augmentation, objective.r1_gamma, objective.r2_gamma)
        d_parts, r1, r2, g_parts = (game.real, game.fake), game.r1, game.r2, (game.generator,)
        g_sources, g_sees = (), ("fake",)
        draws["y"] = Draw("classes", classes=networks.classes)

    def orthogonal(network: str, strength: float) -> Callable[[Networks], None] | None:
        return partial(_orthogonal, network, strength) if strength else None

    discriminator = Phase(
        name="D",
        updates=("D",),
        uses=("D", "G"),
        optimizer="D",
        parts=d_parts,
        draws={**draws, **augmentation.draws("real", "fake", shape=shape)},
        sources=("images",),
        repeats=steps,
        shared_data=steps == 1,
        grad_hook=orthogonal("D", objective.discriminator_orthogonality),
        carried=augmentation.carried(),
    )
    penalties: dict[str, Part] = {}
    if objective.r1_gamma:
        penalties["real"] = r1
    if objective.r2_gamma:
        penalties["fake"] = r2
    every = objective.r1_every
    penalty = [_penalty_phase(penalties, augmentation, draws, shape, every)] if penalties else []
    generator = Phase(
        name="G",
        updates=("G",),
        uses=("D", "G"),
        optimizer="G",
        parts=g_parts,
        draws={**draws, **augmentation.draws(*g_sees, shape=shape)},
        sources=g_sources,
        grad_hook=orthogonal("G", objective.generator_orthogonality),
        carried=augmentation.carried(),
    )
    return (
        discriminator,
        *penalty,
        *((generator,) if objective.generator_learns else ()),
    )


def _penalty_phase(
    parts: Mapping[str, Part],
    augmentation: Augmentation,
    draws: Draws,
    shape: tuple[int, int, int],
    every: int,
) -> Phase:
    """Phase of the discriminator's penalties, at "real" pictures of `shape`, at "fake" ones, or at both."""
    generates = "fake" in parts
    return Phase(
        name="D_r1",
        updates=("D",),
        uses=("D", "G") if generates else ("D",),
        optimizer="D",
        parts=tuple(parts.values()),
        draws={**(draws if generates else {}), **augmentation.draws(*parts, shape=shape)},
        sources=("images",),
        every=every,
        gain=every,
        penalises_gradients=True,
        carried=augmentation.carried(),
    )
