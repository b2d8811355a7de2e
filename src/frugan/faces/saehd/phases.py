"""SAEHD's training step: its loss terms, the autoencoder, then the discriminators that are switched on.

Source: DeepFaceLab's behaviour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from frugan.contract.ops import PLAIN, Ops
from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.faces.saehd.config import Archi, SAEHDNetworks, SAEHDObjective
from frugan.faces.saehd.networks import (
    Decoder,
    Side,
    code_of,
    decode,
    decoder_name,
    encode,
    network_names,
    swap_code,
)
from frugan.objectives import (
    eager_gradient,
    gaussian_blur,
    non_saturating_fake,
    non_saturating_generator,
    non_saturating_real,
    style_loss,
    total_variation_of_channels_and_rows,
)

# The loss terms of SAEHD, each a mean over the samples.
#
# Source: DeepFaceLab's behaviour. Every weight below is its own; R is the resolution.

WINDOWS = (11.6, 23.2)
"""R over the sides of the windows in which structure is compared."""


@dataclass(frozen=True)
class FaceTargets:
    """Targets of one side's networks for a micro-batch, fp32."""

    picture: Tensor  # [B, 3, R, R] in [0, 1]
    mask: Tensor  # [B, 1, R, R]
    # the mask, blurred and clipped at a half, times two: 1 inside, falling off outside. [B, 1, R, R].
    soft: Tensor
    eyes_mouth: Tensor | None  # [B, 1, R, R], or None if it is not wanted

    @classmethod
    def of(cls, pictures: Mapping[str, Tensor], objective: SAEHDObjective) -> "FaceTargets":
        """From a source's tensors."""
        picture, mask = pictures["target"], pictures["mask"]
        side = picture.shape[-1]
        if objective.blur_out_mask:
            picture = _smooth_outside(picture, mask, side / 128)
        soft = gaussian_blur(mask, max(1, side // 32)).clamp(0, 0.5) * 2
        return cls(picture, mask, soft, pictures.get("eyes_mouth"))

    def seen(self, x: Tensor, objective: SAEHDObjective) -> Tensor:
        """The part of a picture that counts: all of it, or what the soft mask lets through."""
        return x * self.soft if objective.masked_training else x


def _smooth_outside(picture: Tensor, mask: Tensor, radius: float) -> Tensor:
    """Blur what is outside the mask, without letting the inside bleed into it."""
    outside = 1 - mask
    weight = 1 - gaussian_blur(mask, radius)
    weight = torch.where(weight == 0, torch.ones_like(weight), weight)
    return picture * mask + gaussian_blur(picture * outside, radius) / weight * outside


def _structure(weight: float, a: Tensor, b: Tensor, ops: Ops, *divisors: float) -> Tensor:
    """A weight times the mean dissimilarity in windows of R over each divisor."""
    return ops.dssim(a, b, [int(a.shape[-1] / divisor) for divisor in divisors], weight)


def reconstruction(
    side: Side,
    targets: FaceTargets,
    picture: Tensor,
    mask: Tensor,
    objective: SAEHDObjective,
    ops: Ops = PLAIN,
    windows: Sequence[float] | None = None,
) -> Terms:
    """How far a side's face and mask are from what they shall be.

    Args:
        picture, mask: what the decoder made, [B, 3, R, R] and [B, 1, R, R].
        ops: what the losses are computed by.
        windows: R over the sides of the windows in which structure is compared; None: one, and two from 256 pixels on.

    Raises:
        ValueError: the mask of eyes and mouth is wanted and missing.
    """
    divisors = windows or (WINDOWS if picture.shape[-1] >= 256 else WINDOWS[:1])
    constants = [targets.picture, targets.mask, targets.soft]
    if objective.eyes_mouth_prio:
        if targets.eyes_mouth is None:
            raise ValueError("eyes_mouth_prio is on, and the pictures hold no mask of eyes and mouth")
        constants.append(targets.eyes_mouth)

    def loss(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Terms:
        here = FaceTargets(inputs[0], inputs[1], inputs[2], inputs[3] if objective.eyes_mouth_prio else None)
        return _reconstruction(side, here, outputs[0], outputs[1], objective, ops, divisors)

    return eager_gradient(loss, (picture, mask), constants)


def _reconstruction(
    side: Side,
    targets: FaceTargets,
    picture: Tensor,
    mask: Tensor,
    objective: SAEHDObjective,
    ops: Ops,
    divisors: Sequence[float],
) -> Terms:
    wanted, output = (targets.seen(x, objective).contiguous() for x in (targets.picture, picture))  # as blurs take them
    terms = {
        f"{side}/dssim": _structure(10, wanted, output, ops, *divisors),
        f"{side}/mse": 10 * ops.mean_square(wanted, output),
        f"{side}/mask": 10 * ops.mean_square(targets.mask, mask),
    }
    if targets.eyes_mouth is not None:
        terms[f"{side}/eyes_mouth"] = 300 * ops.masked_error(picture, targets.picture, targets.eyes_mouth)
    return terms


def face_style(power: float, picture: Tensor, style: Tensor) -> Terms:
    """Colours of the swapped face towards those of the destination's.

    Args:
        power: face_style_power, 0 to 100.
        picture: the swap times its own mask. [B, 3, R, R].
        style: the destination's reconstruction times its own mask. [B, 3, R, R].
    """
    return {"src/face_style": style_loss(picture, style, picture.shape[-1] // 8).mean() * (10000 * power / 100)}


def background_style(power: float, swap: Tensor, target: Tensor, soft: Tensor, ops: Ops) -> Terms:
    """The swap's surroundings towards the destination's.

    Args:
        power: bg_style_power, 0 to 100.
        swap: the swapped face. [B, 3, R, R].
        target: the destination's picture. [B, 3, R, R].
        soft: soft mask of the *source* face: the original computes a mask of the swap and then overwrites it. Kept.
        ops: what the losses are computed by.
    """
    around = 1 - soft
    swap, target = swap * around, target * around
    structure = _structure(1, swap, target, ops, WINDOWS[0])
    return {"src/bg_style": 10 * (power / 100) * (structure + (swap - target).square().mean())}


def fooling(power: float, logits: tuple[Tensor, Tensor]) -> Terms:
    """The generated face passes for a real one, in patches and pixels."""
    return {"gan": power * (non_saturating_generator(logits[0]) + non_saturating_generator(logits[1]))}


def quiet_background(targets: FaceTargets, picture: Tensor) -> Terms:
    """Against the noise that a masked GAN term would leave around the face."""
    around = 1 - targets.soft
    return {
        "gan_variation": 1e-6 * total_variation_of_channels_and_rows(picture).mean(),
        "gan_background": 0.02 * (picture * around - targets.picture * around).square().mean(),
    }


def judged(real: bool, logits: tuple[Tensor, ...]) -> Terms:
    """A discriminator's loss on one kind of input; each of its outputs counts a half."""
    loss = non_saturating_real if real else non_saturating_fake
    return {"real" if real else "fake": 0.5 * torch.stack([loss(x) for x in logits]).sum()}


# SAEHD's training step: the autoencoder, then the discriminators that are switched on.
#
# Each side is a part of its own unless a style term couples them, so that the source's activations are gone before the
# destination's are made.


@dataclass(frozen=True)
class SAEHDLosses:
    """Losses of SAEHD's phases, each of which is a part of one."""

    archi: Archi  # which networks there are
    objective: SAEHDObjective  # in force

    def src(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """Compute the source's loss, without style."""
        return self._src(networks, micro, self._targets(micro, "src"))

    def dst(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        vectors = encode(networks, micro.pictures["dst"]["warped"])
        picture, mask = decode(self.archi, networks, self._code(networks, vectors, "dst"), "dst")
        ops = self._ops(networks, "dst")
        return reconstruction("dst", self._targets(micro, "dst"), picture, mask, self.objective, ops)

    def both(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """Compute both sides' losses with the style terms, which couple them."""
        objective = self.objective
        src, dst = self._targets(micro, "src"), self._targets(micro, "dst")
        terms = self._src(networks, micro, src)
        vectors = encode(networks, micro.pictures["dst"]["warped"])
        codes = self._code(networks, vectors, "dst")
        picture, mask = decode(self.archi, networks, codes, "dst")
        terms |= reconstruction("dst", dst, picture, mask, objective, self._ops(networks, "dst"))
        swap_codes = codes if self.archi.kind == "df" else swap_code(self.archi, networks, vectors)
        if objective.face_style_power:
            # The style may change how a code is drawn, not the code: only the decoder learns from this.
            swap, swap_mask = decode(self.archi, networks, swap_codes.detach(), "src")
            style = (picture * mask).detach()
            terms |= face_style(objective.face_style_power, swap * swap_mask.detach(), style)
        if objective.bg_style_power:
            swap, _mask = decode(self.archi, networks, swap_codes, "src")
            ops = self._ops(networks, "src")
            terms |= background_style(objective.bg_style_power, swap, dst.picture, src.soft, ops)
        return terms

    def real_code(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """Train the code discriminator to call the destination's codes real."""
        return judged(True, (self._judged_code(networks, micro, "dst"),))

    def fake_code(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """Train the code discriminator to call the source's codes fake."""
        return judged(False, (self._judged_code(networks, micro, "src"),))

    def real_face(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """Train the patch discriminator to call source faces real."""
        targets = self._targets(micro, "src")
        return judged(True, networks["patch_discriminator"](targets.seen(targets.picture, self.objective)))

    def fake_face(self, networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        """Train the patch discriminator to call faces of the autoencoder fake."""
        with torch.no_grad():
            vectors = encode(networks, micro.pictures["src"]["warped"])
            picture, _mask = decode(self.archi, networks, self._code(networks, vectors, "src"), "src")
        seen = self._targets(micro, "src").seen(picture, self.objective)
        return judged(False, networks["patch_discriminator"](seen))

    def _src(self, networks: Networks, micro: MicroBatch, targets: FaceTargets) -> Terms:
        objective = self.objective
        codes = self._code(networks, encode(networks, micro.pictures["src"]["warped"]), "src")
        picture, mask = decode(self.archi, networks, codes, "src")
        terms = reconstruction("src", targets, picture, mask, objective, self._ops(networks, "src"))
        if objective.true_face_power:
            logits = networks["code_discriminator"](codes)
            terms["true_face"] = objective.true_face_power * non_saturating_generator(logits)
        if objective.gan_power:
            logits = networks["patch_discriminator"](targets.seen(picture, objective))
            terms |= fooling(objective.gan_power, logits)
            if objective.masked_training:
                terms |= quiet_background(targets, picture)
        return terms

    def _judged_code(self, networks: Networks, micro: MicroBatch, side: Side) -> Tensor:
        with torch.no_grad():
            codes = self._code(networks, encode(networks, micro.pictures[side]["warped"]), side)
        return torch.as_tensor(networks["code_discriminator"](codes))

    def _code(self, networks: Networks, vectors: Tensor, side: Side) -> Tensor:
        return code_of(self.archi, networks, vectors, side)

    def _ops(self, networks: Networks, side: Side) -> Ops:
        return cast(Decoder, networks[decoder_name(self.archi, side)]).ops

    def _targets(self, micro: MicroBatch, side: Side) -> FaceTargets:
        return FaceTargets.of(micro.pictures[side], self.objective)


def phases(networks: SAEHDNetworks, requested: SAEHDObjective) -> tuple[Phase, ...]:
    """Phase "autoencoder"; "code_discriminator" and "patch_discriminator" when their powers are not 0.

    Raises:
        ValueError: true face with liae.
    """
    archi, objective = networks.letters, requested.effective
    if objective.true_face_power and archi.kind != "df":
        raise ValueError(
            f"objective.true_face_power {objective.true_face_power}: only df has a code of its own for each side; set "
            f"it to 0, or choose a df archi instead of {networks.archi}"
        )
    losses = SAEHDLosses(archi, objective)
    autoencoder = network_names(archi)
    helpers = {"code_discriminator": objective.true_face_power, "patch_discriminator": objective.gan_power}
    coupled = bool(objective.face_style_power or objective.bg_style_power)

    def phase(name: str, **settings: object) -> Phase:
        return Phase(
            name=name,
            optimizer=name,
            sources=("src", "dst") if name != "patch_discriminator" else ("src",),
            sums_over_batch=True,
            learning_rate_dropout=not requested.pretrain,
            **settings,  # type: ignore[arg-type]
        )

    # Without random warp liae's shared code would learn the source's look from undistorted faces: it rests.
    rests = archi.kind == "liae" and not objective.random_warp
    step_phases = [
        phase(
            "autoencoder",
            updates=autoencoder,
            uses=(*autoencoder, *(name for name, power in helpers.items() if power)),
            parts=(losses.both,) if coupled else (losses.src, losses.dst),
            frozen=("inter_AB",) if rests else (),
        )
    ]
    if objective.true_face_power and not requested.pretrain:
        step_phases.append(
            phase(
                "code_discriminator",
                updates=("code_discriminator",),
                uses=("encoder", "inter", "code_discriminator"),
                parts=(losses.real_code, losses.fake_code),
            )
        )
    if objective.gan_power:
        decoder = decoder_name(archi, "src")
        inters = ("inter",) if archi.kind == "df" else ("inter_AB",)
        step_phases.append(
            phase(
                "patch_discriminator",
                updates=("patch_discriminator",),
                uses=("encoder", *inters, decoder, "patch_discriminator"),
                parts=(losses.real_face, losses.fake_face),
            )
        )
    return tuple(step_phases)
