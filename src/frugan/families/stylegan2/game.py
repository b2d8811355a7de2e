"""Parts and phases of a training step that all generations of StyleGAN share.

Source: Karras et al. 2019 (arXiv 1912.04958), with the order and the gains of the release with adaptive augmentation
(Karras et al. 2020, arXiv 2006.06676).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from frugan.augment.augmentation import Augmentation
from frugan.contract.phase import Carried, Draw, Draws, MicroBatch, Networks, Part, Phase, PhaseState, Terms
from frugan.data.picture_needs import real_pictures
from frugan.families.stylegan2.config import StyledNetworks, StyledObjective
from frugan.objectives import (
    non_saturating_fake,
    non_saturating_generator,
    non_saturating_real,
    r1_penalty,
    relativistic,
)


@dataclass(frozen=True)
class StyledGame(ABC):
    """Parts of all phases, and the phases that they make."""

    networks: StyledNetworks  # settings of the networks
    objective: StyledObjective
    augmentation: Augmentation

    @abstractmethod
    def latents(self) -> Draws:
        """Random inputs of a generated picture, besides its class."""

    @abstractmethod
    def generate(self, networks: Networks, micro: MicroBatch, classes: Tensor | None, *, observed: bool) -> Tensor:
        """Pictures [n, C, R, R] of classes [n].

        Args:
            observed: this is the discriminator's own phase, in which a generator's averages may move as well.
        """

    def carried(self) -> Mapping[str, Carried]:
        """State that every phase with pictures for the discriminator carries."""
        return self.augmentation.carried()

    def shown(self, pictures: Tensor, name: str, micro: MicroBatch, state: PhaseState) -> Tensor:
        """Change pictures [n, C, R, R] as the discriminator shall see them: augmented."""
        return self.augmentation.apply(pictures, micro, state, name)

    # Parts.

    def generator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        classes = micro.draws.get("y")
        pictures = self.generate(networks, micro, classes, observed=False)
        outputs = self._judge(networks, pictures, classes, "fake", micro, state)
        return {"adversarial": non_saturating_generator(outputs)}

    def fake(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        classes = micro.draws.get("y")
        with torch.no_grad():
            pictures = self.generate(networks, micro, classes, observed=True)
        outputs = self._judge(networks, pictures, classes, "fake", micro, state)
        return {"fake": non_saturating_fake(outputs)}

    def real(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        outputs = self._judge(networks, real_pictures(micro), self._labels(micro), "real", micro, state)
        self.observe(outputs, micro, state)
        return {"real": non_saturating_real(outputs)}

    def paired_discriminator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        classes = self._labels(micro)
        with torch.no_grad():
            pictures = self.generate(networks, micro, classes, observed=True)
        real = self._judge(networks, real_pictures(micro), classes, "real", micro, state)
        fake = self._judge(networks, pictures, classes, "fake", micro, state)
        self.observe(real - fake, micro, state)
        return {"relativistic": relativistic(real, fake)}

    def paired_generator(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        classes = self._labels(micro)
        with torch.no_grad():
            real = self._judge(networks, real_pictures(micro), classes, "real", micro, state)
        pictures = self.generate(networks, micro, classes, observed=False)
        fake = self._judge(networks, pictures, classes, "fake", micro, state)
        return {"adversarial": relativistic(fake, real)}

    def r1(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        pictures = real_pictures(micro).requires_grad_()
        outputs = self._judge(networks, pictures, self._labels(micro), "real", micro, state)
        if self.objective.loss != "relativistic":  # of that loss, single pictures have no meaningful sign
            self.augmentation.observe(outputs, micro, state, counts=False)
        penalty = self.objective.r1_gamma * r1_penalty(outputs, pictures, state.loss_scale).mean()
        # The last bias does not change the penalty. It gets a gradient of 0, so that the optimizer's second moments of
        # it decay like all others.
        return {"r1": penalty + 0 * outputs.float().mean()}

    def r2(self, networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        paired = self.objective.loss == "relativistic"
        classes = self._labels(micro) if paired else micro.draws.get("y")
        with torch.no_grad():
            pictures = self.generate(networks, micro, classes, observed=False)
        outputs = self._judge(networks, pictures.requires_grad_(), classes, "fake", micro, state)
        penalty = self.objective.r2_gamma * r1_penalty(outputs, pictures, state.loss_scale).mean()
        return {"r2": penalty + 0 * outputs.float().mean()}

    def observe(self, outputs: Tensor, micro: MicroBatch, state: PhaseState) -> None:
        """Observe outputs on real pictures [n, 1], once for each that training has seen."""
        self.augmentation.observe(outputs, micro, state)

    def _judge(
        self,
        networks: Networks,
        pictures: Tensor,
        classes: Tensor | None,
        name: str,
        micro: MicroBatch,
        state: PhaseState,
    ) -> Tensor:
        """Outputs of the discriminator [n, 1] for pictures [n, C, R, R]."""
        return cast(Tensor, networks["D"](self.shown(pictures, name, micro, state), classes))

    def _labels(self, micro: MicroBatch) -> Tensor | None:
        return micro.pictures["images"]["labels"] if self.networks.classes is not None else None

    # Phases.

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a picture [C, R, R]."""
        return self.networks.channels, self.networks.resolution, self.networks.resolution

    @property
    def paired(self) -> bool:
        """Whether each generated picture stands against a real one, and has its class."""
        return self.objective.loss == "relativistic"

    def drawn(self) -> Draws:
        """Random inputs of a generated picture, with its class where the networks know any."""
        if self.networks.classes is None:
            return self.latents()
        return {**self.latents(), "y": Draw("classes", classes=self.networks.classes)}

    def _played(self) -> Draws:
        """Random inputs of a generated picture; in pairs it has the class of the real one."""
        return self.latents() if self.paired else self.drawn()

    def generator_phase(self) -> Phase:
        """Phase G."""
        seen = ("real", "fake") if self.paired else ("fake",)
        return Phase(
            name="G",
            updates=("G",),
            uses=("D", "G"),
            optimizer="G",
            parts=(self.paired_generator if self.paired else self.generator,),
            draws={**self._played(), **self.augmentation.draws(*seen, shape=self.shape)},
            sources=("images",) if self.paired else (),
            carried=self.carried(),
        )

    def discriminator_phase(self) -> Phase:
        """Phase D."""
        return Phase(
            name="D",
            updates=("D",),
            uses=("D", "G"),
            optimizer="D",
            parts=(self.paired_discriminator,) if self.paired else (self.fake, self.real),
            draws={**self._played(), **self.augmentation.draws("real", "fake", shape=self.shape)},
            sources=("images",),
            carried=self.carried(),
        )

    def penalty_phases(self) -> tuple[Phase, ...]:
        """Phase D_r1, of the discriminator's penalties at real and at generated pictures; empty if there is neither."""
        objective = self.objective
        parts: dict[str, Part] = {}
        if objective.r1_gamma:
            parts["real"] = self.r1
        if objective.r2_gamma:
            parts["fake"] = self.r2
        if not parts:
            return ()
        generates = "fake" in parts
        phase = Phase(
            name="D_r1",
            updates=("D",),
            uses=("D", "G") if generates else ("D",),
            optimizer="D",
            parts=tuple(parts.values()),
            draws={**(self._played() if generates else {}), **self.augmentation.draws(*parts, shape=self.shape)},
            sources=("images",),
            every=objective.r1_every,
            gain=objective.r1_every,
            penalises_gradients=True,
            carried=self.carried(),
        )
        return (phase,)
