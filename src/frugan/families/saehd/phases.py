"""SAEHD's training step: the autoencoder, then the discriminators that are switched on.

Each side is a part of its own unless a style term couples them, so that the source's activations are gone before the
destination's are made.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.families.saehd import flows, terms
from frugan.families.saehd.archi import Archi
from frugan.families.saehd.config import SAEHDNetworks, SAEHDObjective
from frugan.families.saehd.terms import FaceTargets
from frugan.objectives.adversarial import non_saturating_generator


@dataclass(frozen=True)
class Faces:
    """The parts of SAEHD's phases.

    Attributes:
        archi: which networks there are.
        objective: as trained with.
    """

    archi: Archi
    objective: SAEHDObjective

    def src(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """The source's loss, without style."""
        return self._src(networks, micro, self._targets(micro, "src"))

    def dst(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """The destination's loss."""
        vectors = flows.encode(networks, micro.pictures["dst"]["warped"])
        picture, mask = flows.decode(self.archi, networks, self._code(networks, vectors, "dst"), "dst")
        return terms.reconstruction("dst", self._targets(micro, "dst"), picture, mask, self.objective)

    def both(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """Both sides' losses with the style terms, which couple them."""
        objective = self.objective
        src, dst = self._targets(micro, "src"), self._targets(micro, "dst")
        found = self._src(networks, micro, src)
        vectors = flows.encode(networks, micro.pictures["dst"]["warped"])
        codes = self._code(networks, vectors, "dst")
        picture, mask = flows.decode(self.archi, networks, codes, "dst")
        found |= terms.reconstruction("dst", dst, picture, mask, objective)
        swap_codes = codes if self.archi.kind == "df" else flows.swap_code(self.archi, networks, vectors)
        if objective.face_style_power:
            # The style may change how a code is drawn, not the code: only the decoder learns from this.
            swap, swap_mask = flows.decode(self.archi, networks, swap_codes.detach(), "src")
            style = (picture * mask).detach()
            found |= terms.face_style(objective.face_style_power, swap * swap_mask.detach(), style)
        if objective.bg_style_power:
            swap, _mask = flows.decode(self.archi, networks, swap_codes, "src")
            found |= terms.background_style(objective.bg_style_power, swap, dst.picture, src.soft)
        return found

    def real_code(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """The code discriminator takes the destination's codes for real."""
        return terms.judged(True, (self._judged_code(networks, micro, "dst"),))

    def fake_code(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """And the source's for not."""
        return terms.judged(False, (self._judged_code(networks, micro, "src"),))

    def real_face(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """The patch discriminator sees source faces as they are."""
        targets = self._targets(micro, "src")
        return terms.judged(True, networks["patch_discriminator"](targets.seen(targets.picture, self.objective)))

    def fake_face(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """And as the autoencoder makes them."""
        with torch.no_grad():
            vectors = flows.encode(networks, micro.pictures["src"]["warped"])
            picture, _mask = flows.decode(self.archi, networks, self._code(networks, vectors, "src"), "src")
        seen = self._targets(micro, "src").seen(picture, self.objective)
        return terms.judged(False, networks["patch_discriminator"](seen))

    def _src(self, networks: Networks, micro: MicroBatch, targets: FaceTargets) -> Terms:
        objective = self.objective
        codes = self._code(networks, flows.encode(networks, micro.pictures["src"]["warped"]), "src")
        picture, mask = flows.decode(self.archi, networks, codes, "src")
        found = terms.reconstruction("src", targets, picture, mask, objective)
        if objective.true_face_power:
            logits = networks["code_discriminator"](codes)
            found["true_face"] = objective.true_face_power * non_saturating_generator(logits)
        if objective.gan_power:
            logits = networks["patch_discriminator"](targets.seen(picture, objective))
            found |= terms.fooling(objective.gan_power, logits)
            if objective.masked_training:
                found |= terms.quiet_background(targets, picture)
        return found

    def _judged_code(self, networks: Networks, micro: MicroBatch, side: flows.Side) -> Tensor:
        with torch.no_grad():
            codes = self._code(networks, flows.encode(networks, micro.pictures[side]["warped"]), side)
        return torch.as_tensor(networks["code_discriminator"](codes))

    def _code(self, networks: Networks, vectors: Tensor, side: flows.Side) -> Tensor:
        return flows.code(self.archi, networks, vectors, side)

    def _targets(self, micro: MicroBatch, side: flows.Side) -> FaceTargets:
        return FaceTargets.of(micro.pictures[side], self.objective)


def phases(networks: SAEHDNetworks, asked: SAEHDObjective) -> tuple[Phase, ...]:
    """Phase "autoencoder"; "code_discriminator" and "patch_discriminator" when their powers are not 0.

    Raises:
        ValueError: true face with liae.
    """
    archi, objective = networks.letters, asked.effective
    if objective.true_face_power and archi.kind != "df":
        raise ValueError(
            f"objective.true_face_power {objective.true_face_power}: only df has a code of its own for each side; set "
            f"it to 0, or choose a df archi instead of {networks.archi}"
        )
    faces = Faces(archi, objective)
    autoencoder = flows.network_names(archi)
    helpers = {"code_discriminator": objective.true_face_power, "patch_discriminator": objective.gan_power}
    coupled = bool(objective.face_style_power or objective.bg_style_power)

    def phase(name: str, **settings: object) -> Phase:
        return Phase(
            name=name,
            optimizer=name,
            sources=("src", "dst") if name != "patch_discriminator" else ("src",),
            sums_over_batch=True,
            learning_rate_dropout=not asked.pretrain,
            **settings,  # type: ignore[arg-type]
        )

    # Without random warp liae's shared code would learn the source's look from undistorted faces: it rests.
    rests = archi.kind == "liae" and not objective.random_warp
    found = [
        phase(
            "autoencoder",
            updates=autoencoder,
            uses=(*autoencoder, *(name for name, power in helpers.items() if power)),
            parts=(faces.both,) if coupled else (faces.src, faces.dst),
            frozen=("inter_AB",) if rests else (),
        )
    ]
    if objective.true_face_power and not asked.pretrain:
        found.append(
            phase(
                "code_discriminator",
                updates=("code_discriminator",),
                uses=("encoder", "inter", "code_discriminator"),
                parts=(faces.real_code, faces.fake_code),
            )
        )
    if objective.gan_power:
        decoder = flows.decoder_name(archi, "src")
        inters = ("inter",) if archi.kind == "df" else ("inter_AB",)
        found.append(
            phase(
                "patch_discriminator",
                updates=("patch_discriminator",),
                uses=("encoder", *inters, decoder, "patch_discriminator"),
                parts=(faces.real_face, faces.fake_face),
            )
        )
    return tuple(found)
