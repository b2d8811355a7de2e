"""The loss terms of SAEHD, each a mean over the samples.

Source: DeepFaceLab's behaviour. Every weight below is its own; R is the resolution.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frugan.contract.phase import Terms
from frugan.families.saehd.config import SAEHDObjective
from frugan.families.saehd.flows import Side
from frugan.objectives.adversarial import non_saturating_fake, non_saturating_generator, non_saturating_real
from frugan.objectives.blur import gaussian_blur
from frugan.objectives.dssim import dssim
from frugan.objectives.eager_gradient import eager_gradient
from frugan.objectives.style import style_loss
from frugan.objectives.total_variation import total_variation_of_channels_and_rows


@dataclass(frozen=True)
class FaceTargets:
    """What one side's networks shall make of a micro-batch, fp32.

    Attributes:
        picture: [B, 3, R, R] in [0, 1].
        mask: [B, 1, R, R].
        soft: the mask, blurred and clipped at a half, times two: 1 inside, falling off outside. [B, 1, R, R].
        eyes_mouth: [B, 1, R, R], or None if it is not wanted.
    """

    picture: Tensor
    mask: Tensor
    soft: Tensor
    eyes_mouth: Tensor | None

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


def _mean_dssim(a: Tensor, b: Tensor, divisor: float) -> Tensor:
    return dssim(a, b, int(a.shape[-1] / divisor)).mean()


def reconstruction(side: Side, targets: FaceTargets, picture: Tensor, mask: Tensor, objective: SAEHDObjective) -> Terms:
    """How far a side's face and mask are from what they shall be.

    Args:
        picture, mask: what the decoder made, [B, 3, R, R] and [B, 1, R, R].

    Raises:
        ValueError: the mask of eyes and mouth is wanted and missing.
    """
    constants = [targets.picture, targets.mask, targets.soft]
    if objective.eyes_mouth_prio:
        if targets.eyes_mouth is None:
            raise ValueError("eyes_mouth_prio is on, and the pictures hold no mask of eyes and mouth")
        constants.append(targets.eyes_mouth)

    def loss(made: Sequence[Tensor], given: Sequence[Tensor]) -> Terms:
        here = FaceTargets(given[0], given[1], given[2], given[3] if objective.eyes_mouth_prio else None)
        return _reconstruction(side, here, made[0], made[1], objective)

    return eager_gradient(loss, (picture, mask), constants)


def _reconstruction(
    side: Side, targets: FaceTargets, picture: Tensor, mask: Tensor, objective: SAEHDObjective
) -> Terms:
    wanted, made = (targets.seen(x, objective).contiguous() for x in (targets.picture, picture))  # as blurs take them
    if picture.shape[-1] < 256:
        structure = 10 * _mean_dssim(wanted, made, 11.6)
    else:
        structure = 5 * _mean_dssim(wanted, made, 11.6) + 5 * _mean_dssim(wanted, made, 23.2)
    terms = {
        f"{side}/dssim": structure,
        f"{side}/mse": 10 * (wanted - made).square().mean(),
        f"{side}/mask": 10 * (targets.mask - mask).square().mean(),
    }
    if targets.eyes_mouth is not None:
        difference = targets.picture * targets.eyes_mouth - picture * targets.eyes_mouth
        terms[f"{side}/eyes_mouth"] = 300 * difference.abs().mean()
    return terms


def face_style(power: float, made: Tensor, style: Tensor) -> Terms:
    """Colours of the swapped face towards those of the destination's.

    Args:
        power: face_style_power, 0 to 100.
        made: the swap times its own mask. [B, 3, R, R].
        style: the destination's reconstruction times its own mask. [B, 3, R, R].
    """
    return {"src/face_style": style_loss(made, style, made.shape[-1] // 8).mean() * (10000 * power / 100)}


def background_style(power: float, swap: Tensor, target: Tensor, soft: Tensor) -> Terms:
    """The swap's surroundings towards the destination's.

    Args:
        power: bg_style_power, 0 to 100.
        swap: the swapped face. [B, 3, R, R].
        target: the destination's picture. [B, 3, R, R].
        soft: soft mask of the *source* face: the original computes a mask of the swap and then overwrites it. Kept.
    """
    around = 1 - soft
    swap, target = swap * around, target * around
    structure = _mean_dssim(swap, target, 11.6)
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
