"""The code discriminator of true-face training: does a code come from the destination?"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 256


class CodeDiscriminator(nn.Module):
    """Strided convolutions on a code.

    Args:
        in_channels: of the code (ae_dims).
        side: of the code in pixels.
        width: channels of the first layer.
    """

    def __init__(self, in_channels: int, side: int, width: int = WIDTH) -> None:
        super().__init__()
        count = 1 + side // 8
        widths = [in_channels, *(width * min(2**i, 8) for i in range(count))]
        self.convs = nn.ModuleList(
            # An even kernel is padded by 2 on every side, as the original does: 8 -> 5, not 4.
            nn.Conv2d(a, b, 4 if i == 0 else 3, stride=2, padding=2 if i == 0 else 1)
            for i, (a, b) in enumerate(pairwise(widths))
        )
        self.out_conv = nn.Conv2d(widths[-1], 1, 1)

    def forward(self, code: Tensor) -> Tensor:
        """[B, in_channels, S, S] -> logits [B, 1, S', S']."""
        x = code.to(self.out_conv.weight.dtype)
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1, inplace=True)
        return torch.as_tensor(self.out_conv(x))
