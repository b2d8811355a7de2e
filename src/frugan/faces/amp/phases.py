"""AMP's training step: the autoencoder on both sides, then the patch discriminator where there is a GAN term.

Its terms are SAEHD's with masked training, eyes and mouth, in two windows at every resolution; the destination's
surroundings count too, and the GAN judges both sides.

Source: DeepFaceLab's behaviour.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from frugan.contract.phase import Draw, MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.faces.amp.config import AMPNetworks, AMPObjective
from frugan.faces.amp.networks import AUTOENCODER, INTERS, decode, dst_code, encode, exact_subset, mixed_code
from frugan.faces.saehd.config import SAEHDObjective
from frugan.faces.saehd.networks import Decoder, Side
from frugan.faces.saehd.phases import WINDOWS, FaceTargets, fooling, judged, quiet_background, reconstruction
from frugan.objectives import total_variation_of_channels_and_rows

CHANNELS = "channels"
"""Random numbers that choose which channels of a sample's code are the source's."""


def surroundings(targets: FaceTargets, picture: Tensor) -> Terms:
    """Keep what lies around the destination's face as it is there, and smooth."""
    around = 1 - targets.soft
    drawn = picture * around
    return {
        "background": 0.1 * (drawn - targets.picture * around).square().mean(),
        "variation": 1e-6 * total_variation_of_channels_and_rows(drawn).mean(),
    }


@dataclass(frozen=True)
class AMPLosses:
    """Losses of AMP's phases, each of which is a part of one."""

    objective: AMPObjective

    @property
    def _shared(self) -> SAEHDObjective:
        return SAEHDObjective(eyes_mouth_prio=True, blur_out_mask=self.objective.blur_out_mask)

    def src(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """Compute the source's loss."""
        targets = self._targets(micro, "src")
        picture, mask = self._drawn(networks, micro, "src")
        terms = self._reconstruction(networks, "src", targets, picture, mask)
        if self.objective.gan_power:
            terms |= self._fooling(networks, "src", targets, picture) | quiet_background(targets, picture)
        return terms

    def dst(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """Compute the destination's loss."""
        targets = self._targets(micro, "dst")
        picture, mask = self._drawn(networks, micro, "dst")
        terms = self._reconstruction(networks, "dst", targets, picture, mask) | surroundings(targets, picture)
        if self.objective.gan_power:
            terms |= self._fooling(networks, "dst", targets, picture)
        return terms

    def real_src(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """Train the patch discriminator to call source faces real."""
        return self._real(networks, micro, "src")

    def fake_src(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """Train the patch discriminator to call source faces of the autoencoder fake."""
        return self._fake(networks, micro, "src")

    def real_dst(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """Train the patch discriminator to call destination faces real."""
        return self._real(networks, micro, "dst")

    def fake_dst(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """Train the patch discriminator to call destination faces of the autoencoder fake."""
        return self._fake(networks, micro, "dst")

    def _drawn(self, networks: Networks, micro: MicroBatch, side: Side) -> tuple[Tensor, Tensor]:
        """A side's face and mask."""
        vectors = encode(networks, micro.pictures[side]["warped"])
        if side == "dst":
            return decode(networks, dst_code(networks, vectors))
        chosen = exact_subset(micro.draws[CHANNELS], self.objective.morph_factor)
        return decode(networks, mixed_code(networks, vectors, chosen))

    def _reconstruction(
        self, networks: Networks, side: Side, targets: FaceTargets, picture: Tensor, mask: Tensor
    ) -> Terms:
        ops = cast(Decoder, networks["decoder"]).ops
        return reconstruction(side, targets, picture, mask, self._shared, ops, WINDOWS)

    def _fooling(self, networks: Networks, side: Side, targets: FaceTargets, picture: Tensor) -> Terms:
        logits = networks["patch_discriminator"](targets.seen(picture, self._shared))
        return {f"{name}_{side}": term for name, term in fooling(self.objective.gan_power, logits).items()}

    def _real(self, networks: Networks, micro: MicroBatch, side: Side) -> Terms:
        targets = self._targets(micro, side)
        return self._judged(networks, side, targets, targets.picture, real=True)

    def _fake(self, networks: Networks, micro: MicroBatch, side: Side) -> Terms:
        with torch.no_grad():
            picture, _mask = self._drawn(networks, micro, side)
        return self._judged(networks, side, self._targets(micro, side), picture, real=False)

    def _judged(self, networks: Networks, side: Side, targets: FaceTargets, picture: Tensor, *, real: bool) -> Terms:
        """Each of the eight outputs for both sides counts an eighth."""
        terms = judged(real, networks["patch_discriminator"](targets.seen(picture, self._shared)))
        return {f"{name}_{side}": term / 4 for name, term in terms.items()}

    def _targets(self, micro: MicroBatch, side: Side) -> FaceTargets:
        return FaceTargets.of(micro.pictures[side], self._shared)


def phases(networks: AMPNetworks, objective: AMPObjective) -> tuple[Phase, ...]:
    """Phase "autoencoder", and "patch_discriminator" when there is a GAN term.

    The inter networks stay as they were drawn, as in the original: encoder and decoder adapt to just these random
    projections. Gradients go through them.
    """
    losses, draws = AMPLosses(objective), {CHANNELS: Draw("uniform", (networks.inter_dims,))}
    judge = ("patch_discriminator",) if objective.gan_power else ()
    autoencoder = Phase(
        name="autoencoder",
        optimizer="autoencoder",
        updates=tuple(name for name in AUTOENCODER if objective.train_inters or name not in INTERS),
        uses=(*AUTOENCODER, *judge),
        parts=(losses.src, losses.dst),
        draws=draws,
        sources=("src", "dst"),
        sums_over_batch=True,
    )
    if not judge:
        return (autoencoder,)
    discriminator = Phase(
        name="patch_discriminator",
        optimizer="patch_discriminator",
        updates=judge,
        uses=(*AUTOENCODER, *judge),
        parts=(losses.real_src, losses.fake_src, losses.real_dst, losses.fake_dst),
        draws=draws,
        sources=("src", "dst"),
        sums_over_batch=True,
    )
    return autoencoder, discriminator
