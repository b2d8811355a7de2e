"""AMP's networks: SAEHD's deepest encoder and decoder, with an inter network for each side, whose channels are mixed.

Attribute names are the original's, from which parameter names follow.

Source: DeepFaceLab's behaviour.
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from frugan.contract.phase import Networks
from frugan.faces.saehd.config import Archi
from frugan.faces.saehd.networks import Decoder, Encoder, features

ARCHI = Archi("df", normalised=True, doubled=True, deeper=True)
"""SAEHD's architecture string of the same encoder and decoder: df-udt."""
INTERS = ("inter_src", "inter_dst")
AUTOENCODER = ("encoder", *INTERS, "decoder")
"""In the original's order."""


class MorphEncoder(Encoder):
    """SAEHD's encoder with the narrow dense layer, which is an inter network's there."""

    def __init__(self, resolution: int, channels: int, narrow: int) -> None:
        super().__init__(ARCHI, channels)
        self.dense1 = nn.Linear(features(ARCHI, resolution, channels), narrow)

    def forward(self, x: Tensor) -> Tensor:
        """[B, 3, R, R] in [0, 1] -> [B, ae_dims]."""
        return torch.as_tensor(self.dense1(super().forward(x)))


class MorphInter(nn.Module):
    """A dense layer from the encoder's vector to a side's code."""

    def __init__(self, resolution: int, narrow: int, out_channels: int) -> None:
        super().__init__()
        self.side = ARCHI.dense_side(resolution)
        self.out_channels = out_channels
        self.dense2 = nn.Linear(narrow, out_channels * self.side**2)

    def forward(self, vector: Tensor) -> Tensor:
        """[B, ae_dims] -> [B, inter_dims, R/32, R/32]."""
        x = self.dense2(vector.to(self.dense2.weight.dtype))
        return torch.as_tensor(x.reshape(-1, self.out_channels, self.side, self.side))


def exact_subset(uniform: Tensor, share: float) -> Tensor:
    """Choose int(share·I) of I channels for each sample, all choices as likely; 1 or 0.

    Args:
        uniform: random numbers [B, I], whose order decides. Equal ones keep theirs, so that every device agrees.
        share: of the channels.
    """
    channels = uniform.shape[1]
    return (uniform.argsort(dim=1, stable=True) < int(channels * share)).to(uniform.dtype)


def first_channels(channels: int, morph: float) -> int:
    """How many of the code's first channels are the source's when a picture is drawn; in fp32, as in the original."""
    return int(np.float32(channels) * np.float32(morph))


def encode(networks: Networks, faces: Tensor) -> Tensor:
    """Faces [B, 3, R, R] -> vectors [B, ae_dims]."""
    return cast(Tensor, networks["encoder"](faces))


def mixed_code(networks: Networks, vectors: Tensor, chosen: Tensor) -> Tensor:
    """Code of source faces in training: chosen channels of the source's inter network, the others of the destination's.

    Args:
        vectors: [B, ae_dims].
        chosen: 1 or 0 [B, I].
    """
    src, dst = networks["inter_src"](vectors), networks["inter_dst"](vectors)
    chosen = chosen.to(src.dtype)[:, :, None, None]
    return cast(Tensor, src * chosen + dst * (1 - chosen))


def dst_code(networks: Networks, vectors: Tensor) -> Tensor:
    """Code of destination faces [B, I, R/32, R/32]."""
    return cast(Tensor, networks["inter_dst"](vectors))


def morphed_code(networks: Networks, vectors: Tensor, morph: float) -> Tensor:
    """Code whose first channels are the source's: at 0 the destination's own code, at 1 the source's."""
    src, dst = networks["inter_src"](vectors), dst_code(networks, vectors)
    count = first_channels(dst.shape[1], morph)
    return torch.cat([src[:, :count], dst[:, count:]], 1)


def decode(networks: Networks, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Face [B, 3, R, R] and mask [B, 1, R, R], fp32."""
    return cast(tuple[Tensor, Tensor], cast(Decoder, networks["decoder"])(codes))
