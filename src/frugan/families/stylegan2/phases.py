"""StyleGAN2's training step: G, its path lengths every few steps, D, and its gradient penalty every few steps.

Source: Karras et al. 2019 (arXiv 1912.04958), with the order, the gains and the random inputs of the release with
adaptive augmentation (Karras et al. 2020, arXiv 2006.06676). In three ways the release's results depend on its
micro-batches, and these do not: gradients are averaged over micro-batches and not added up, each picture draws its own
place of mixing, and the mean style moves once per update.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from frugan.augment.augmentation import Augmentation
from frugan.contract.phase import Carried, Draw, MicroBatch, Networks, Part, Phase, PhaseState, Terms
from frugan.data.picture_needs import real_pictures
from frugan.families.stylegan2.config import StyleGAN2Networks, StyleGAN2Objective
from frugan.families.stylegan2.networks import Generator, noise_size
from frugan.objectives import (
    non_saturating_fake,
    non_saturating_generator,
    non_saturating_real,
    path_length_penalty,
    path_lengths,
    r1_penalty,
    relativistic,
)

PATH_LENGTH = "path_length"
"""Name of the running mean of path lengths among the carried state of phases."""


@dataclass(frozen=True)
class _Game:
    """Parts of all phases."""

    networks: StyleGAN2Networks  # settings of the networks
    objective: StyleGAN2Objective
    augmentation: Augmentation

    def generator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        classes = micro.draws.get("y")
        pictures, _ = self._generate(networks, micro, classes)
        outputs = self._judge(networks, pictures, classes, "fake", micro, state)
        return {"adversarial": non_saturating_generator(outputs)}

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
        # Biases of colours do not change lengths. They get a gradient of 0, so that the optimizer's second moments of
        # them decay like all others.
        nothing = 0 * pictures[:, :, 0, 0].mean()
        return {"path_length": (self.objective.path_length_weight * penalty.mean() + nothing).float()}

    def fake(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        classes = micro.draws.get("y")
        with torch.no_grad():
            pictures, _ = self._generate(networks, micro, classes)
        outputs = self._judge(networks, pictures, classes, "fake", micro, state)
        return {"fake": non_saturating_fake(outputs)}

    def real(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        outputs = self._judge(networks, real_pictures(micro), self._labels(micro), "real", micro, state)
        self.augmentation.observe(outputs, micro, state)
        return {"real": non_saturating_real(outputs)}

    def paired_discriminator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        classes = self._labels(micro)
        with torch.no_grad():
            pictures, _ = self._generate(networks, micro, classes)
        real = self._judge(networks, real_pictures(micro), classes, "real", micro, state)
        fake = self._judge(networks, pictures, classes, "fake", micro, state)
        self.augmentation.observe(real - fake, micro, state)
        return {"relativistic": relativistic(real, fake)}

    def paired_generator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        classes = self._labels(micro)
        with torch.no_grad():
            real = self._judge(networks, real_pictures(micro), classes, "real", micro, state)
        pictures, _ = self._generate(networks, micro, classes)
        fake = self._judge(networks, pictures, classes, "fake", micro, state)
        return {"adversarial": relativistic(fake, real)}

    def r1(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        pictures = real_pictures(micro).requires_grad_()
        outputs = self._judge(networks, pictures, self._labels(micro), "real", micro, state)
        if self.objective.loss != "relativistic":  # of that loss, single pictures have no meaningful sign
            self.augmentation.observe(outputs, micro, state, counts=False)
        penalty = self.objective.r1_gamma * r1_penalty(outputs, pictures, state.loss_scale).mean()
        return {"r1": penalty + 0 * outputs.float().mean()}  # the last bias: see path_length

    def r2(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        paired = self.objective.loss == "relativistic"
        classes = self._labels(micro) if paired else micro.draws.get("y")
        with torch.no_grad():
            pictures, _ = self._generate(networks, micro, classes)
        outputs = self._judge(networks, pictures.requires_grad_(), classes, "fake", micro, state)
        penalty = self.objective.r2_gamma * r1_penalty(outputs, pictures, state.loss_scale).mean()
        return {"r2": penalty + 0 * outputs.float().mean()}

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

    def _judge(
        self,
        networks: Networks,
        pictures: Tensor,
        classes: Tensor | None,
        name: str,
        micro: MicroBatch,
        state: PhaseState,
    ) -> Tensor:
        """Outputs of the discriminator [n, 1] for augmented pictures [n, C, R, R]."""
        shown = self.augmentation.apply(pictures, micro, state, name)
        return cast(Tensor, networks["D"](shown, classes))

    def _labels(self, micro: MicroBatch) -> Tensor | None:
        return micro.pictures["images"]["labels"] if self.networks.classes is not None else None


def _moved(decay: float, before: Tensor, mean: Tensor, samples: int) -> Tensor:
    """Running mean of path lengths after one more update."""
    return torch.lerp(before, mean, decay)


def phases(networks: StyleGAN2Networks, objective: StyleGAN2Objective) -> tuple[Phase, ...]:
    """Phases G and D, with G_path and D_r1 where the objective has their penalties."""
    augmentation = Augmentation.of(objective.augmentation)
    game = _Game(networks, objective, augmentation)
    draws = {"z": Draw("normal", (networks.latent_size,))}
    draws["noise"] = Draw("normal", (noise_size(networks.sides),), per_image=True)
    if objective.style_mixing:
        draws["mixed_z"] = Draw("normal", (networks.latent_size,))
        draws["mixing"] = Draw("uniform", (2,))
    random_classes = {"y": Draw("classes", classes=networks.classes)} if networks.classes is not None else {}
    shape = (networks.channels, networks.resolution, networks.resolution)
    paired = objective.loss == "relativistic"
    # in pairs, the generated picture has the class of the real one
    played = draws if paired else {**draws, **random_classes}
    step_phases = [
        Phase(
            name="G",
            updates=("G",),
            uses=("D", "G"),
            optimizer="G",
            parts=(game.paired_generator if paired else game.generator,),
            draws={**played, **augmentation.draws(*(("real", "fake") if paired else ("fake",)), shape=shape)},
            sources=("images",) if paired else (),
            carried=augmentation.carried(),
        )
    ]
    if objective.path_length_weight:
        step_phases.append(_path_length_phase(game, {**draws, **random_classes}, shape))
    step_phases.append(
        Phase(
            name="D",
            updates=("D",),
            uses=("D", "G"),
            optimizer="D",
            parts=(game.paired_discriminator,) if paired else (game.fake, game.real),
            draws={**played, **augmentation.draws("real", "fake", shape=shape)},
            sources=("images",),
            carried=augmentation.carried(),
        )
    )
    if objective.r1_gamma or objective.r2_gamma:
        step_phases.append(_penalty_phase(game, played, shape))
    return tuple(step_phases)


def _path_length_phase(game: _Game, draws: Mapping[str, Draw], shape: tuple[int, int, int]) -> Phase:
    """Phase of the generator's penalty; it generates pictures of `shape` from `draws`."""
    objective = game.objective
    return Phase(
        name="G_path",
        updates=("G",),
        uses=("G",),
        optimizer="G",
        parts=(game.path_length,),
        draws={**draws, "path": Draw("normal", shape, per_image=True)},
        every=objective.path_length_every,
        fraction=objective.path_length_fraction,
        smaller_groups=True,
        gain=objective.path_length_every,
        penalises_gradients=True,
        carried={PATH_LENGTH: Carried(0.0, partial(_moved, objective.path_length_decay))},
    )


def _penalty_phase(game: _Game, draws: Mapping[str, Draw], shape: tuple[int, int, int]) -> Phase:
    """Phase of the discriminator's penalties, at real pictures of `shape` and at those generated from `draws`."""
    objective = game.objective
    parts: dict[str, Part] = {}
    if objective.r1_gamma:
        parts["real"] = game.r1
    if objective.r2_gamma:
        parts["fake"] = game.r2
    generates = "fake" in parts
    return Phase(
        name="D_r1",
        updates=("D",),
        uses=("D", "G") if generates else ("D",),
        optimizer="D",
        parts=tuple(parts.values()),
        draws={**(draws if generates else {}), **game.augmentation.draws(*parts, shape=shape)},
        sources=("images",),
        every=objective.r1_every,
        gain=objective.r1_every,
        penalises_gradients=True,
        carried=game.augmentation.carried(),
    )
