"""XSeg's training step: one network, which learns masks, or while pretraining grey pictures.

Source: DeepFaceLab's behaviour.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from frugan.contract.ops import Ops
from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.faces.xseg.config import XSegObjective
from frugan.faces.xseg.networks import XSeg

NETWORK = "xseg"
GREY = (0.114, 0.587, 0.299)
"""Shares of blue, green and red in a grey picture, as OpenCV has them."""


def grey(pictures: Tensor) -> Tensor:
    """BGR [B, 3, R, R] -> [B, 1, R, R]."""
    blue, green, red = pictures.unbind(1)
    return (GREY[0] * blue + GREY[1] * green + GREY[2] * red)[:, None]


def mask_loss(logits: Tensor, mask: Tensor) -> Terms:
    """Cross-entropy of every pixel, averaged; both [B, 1, R, R]."""
    return {"faces/mask": F.binary_cross_entropy_with_logits(logits, mask.to(logits.dtype))}


def grey_loss(logits: Tensor, target: Tensor, ops: Ops) -> Terms:
    """Distance of the grey picture that the mask is taken for; both [B, 1, R, R]."""
    drawn, side = torch.sigmoid(logits), logits.shape[-1]
    return {
        "faces/dssim": ops.dssim(target, drawn, [int(side / 11.6), int(side / 23.2)], 10),
        "faces/mse": 10 * ops.mean_square(target, drawn),
    }


def _learn_masks(networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
    faces = micro.pictures["faces"]
    return mask_loss(networks[NETWORK](faces["picture"]), faces["mask"])


def _learn_grey(networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
    picture, network = micro.pictures["faces"]["picture"], cast(XSeg, networks[NETWORK])
    return grey_loss(network(picture, skips=False), grey(picture), network.ops)


def phases(objective: XSegObjective) -> tuple[Phase, ...]:
    """Return the one phase "xseg"."""
    return (
        Phase(
            name=NETWORK,
            updates=(NETWORK,),
            uses=(NETWORK,),
            optimizer=NETWORK,
            parts=(_learn_grey if objective.pretrain else _learn_masks,),
            sources=("faces",),
            sums_over_batch=True,
        ),
    )
