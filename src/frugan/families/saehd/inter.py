"""The bottleneck between encoder and decoder: two dense layers through a narrow vector."""

import torch
from torch import Tensor, nn

from frugan.families.saehd.archi import Archi
from frugan.families.saehd.layers import Upscale


class Inter(nn.Module):
    """Vector to code.

    Args:
        archi: its letters d, t and c count.
        resolution: of the faces.
        features: length of the encoder's vector.
        narrow: the recipe's ae_dims.
        out_channels: of the code.
    """

    def __init__(self, archi: Archi, resolution: int, features: int, narrow: int, out_channels: int) -> None:
        super().__init__()
        self.side = archi.dense_side(resolution)
        self.out_channels = out_channels
        self.dense1 = nn.Linear(features, narrow)
        self.dense2 = nn.Linear(narrow, out_channels * self.side**2)
        self.upscale1 = None if archi.deeper else Upscale(out_channels, out_channels, cosine=archi.cosine)

    def forward(self, vector: Tensor) -> Tensor:
        """[B, features] -> [B, out_channels, S, S], S = code side."""
        x = self.dense2(self.dense1(vector.to(self.dense1.weight.dtype)))
        x = x.reshape(-1, self.out_channels, self.side, self.side)
        return x if self.upscale1 is None else torch.as_tensor(self.upscale1(x))
