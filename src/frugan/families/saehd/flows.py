"""How faces flow through the networks: which code a side has, and which decoder reads it."""

from typing import Literal, cast

import torch
from torch import Tensor

from frugan.contract.phase import Networks
from frugan.families.saehd.archi import Archi

Side = Literal["src", "dst"]


def network_names(archi: Archi) -> tuple[str, ...]:
    """The autoencoder's networks, in the original's order."""
    if archi.kind == "df":
        return ("encoder", "inter", "decoder_src", "decoder_dst")
    return ("encoder", "inter_AB", "inter_B", "decoder")


def decoder_name(archi: Archi, side: Side) -> str:
    """The decoder that makes faces of a side."""
    return f"decoder_{side}" if archi.kind == "df" else "decoder"


def encode(networks: Networks, faces: Tensor) -> Tensor:
    """Faces [B, 3, R, R] -> vectors [B, features]."""
    return cast(Tensor, networks["encoder"](faces))


def code(archi: Archi, networks: Networks, vectors: Tensor, side: Side) -> Tensor:
    """Code of a side's faces [B, C, S, S], for that side's decoder."""
    if archi.kind == "df":
        return cast(Tensor, networks["inter"](vectors))
    shared = networks["inter_AB"](vectors)
    return torch.cat([shared if side == "src" else networks["inter_B"](vectors), shared], 1)


def swap_code(archi: Archi, networks: Networks, vectors: Tensor) -> Tensor:
    """Code of destination faces for the source's decoder: the swap. [B, C, S, S]."""
    return code(archi, networks, vectors, "src")


def decode(archi: Archi, networks: Networks, codes: Tensor, side: Side) -> tuple[Tensor, Tensor]:
    """Face [B, 3, R, R] and mask [B, 1, R, R] of a side, fp32."""
    return cast(tuple[Tensor, Tensor], networks[decoder_name(archi, side)](codes))
