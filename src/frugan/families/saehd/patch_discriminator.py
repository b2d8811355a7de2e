"""The U-Net patch discriminator of SAEHD's GAN term: real or generated, for patches and for every pixel."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.families.saehd.receptive_field import stack_for

MOST_CHANNELS = 512


class PatchDiscriminator(nn.Module):
    """Down through 3x3 convolutions, judged at the bottom, up again with skips, judged at every pixel.

    Args:
        patch: wanted receptive field at the bottom, in pixels.
        channels: at the first level; doubled at each layer, at most 512.
    """

    def __init__(self, patch: int, channels: int) -> None:
        super().__init__()
        self.strides = stack_for(patch).strides
        widths = [min(channels * 2**i, MOST_CHANNELS) for i in range(len(self.strides) + 1)]
        deepest = len(self.strides) - 1
        self.in_conv = nn.Conv2d(3, widths[0], 1)
        self.convs = nn.ModuleList(
            nn.Conv2d(widths[i], widths[i + 1], 3, stride=stride, padding=1) for i, stride in enumerate(self.strides)
        )
        # In the order in which they run: the deepest first.
        self.upconvs = nn.ModuleList(
            nn.ConvTranspose2d(widths[i + 1] * (1 if i == deepest else 2), widths[i], 3, stride=self.strides[i])
            for i in reversed(range(deepest + 1))
        )
        self.out_conv = nn.Conv2d(widths[0] * 2, 1, 1)
        self.center_out = nn.Conv2d(widths[-1], 1, 1)
        self.center_conv = nn.Conv2d(widths[-1], widths[-1], 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 3, R, R] in [0, 1] -> logits at the bottom [B, 1, R/s, R/s] and at every pixel [B, 1, R, R]."""
        x = _act(self.in_conv(x.to(self.in_conv.weight.dtype)))
        skips: list[Tensor] = []
        for conv in self.convs:
            skips.append(x)
            x = _act(conv(x))
        center = self.center_out(x)
        x = _act(self.center_conv(x))
        for upconv, skip in zip(self.upconvs, reversed(skips), strict=True):
            x = torch.cat([skip, F.leaky_relu(_cropped(upconv(x), skip), 0.2)], 1)
        return center, self.out_conv(x)


def _act(x: Tensor) -> Tensor:
    return F.leaky_relu(x, 0.2, inplace=True)


def _cropped(x: Tensor, skip: Tensor) -> Tensor:
    """Cut an unpadded transposed convolution to the size of `skip`: half of what is over at the start, rounded down."""
    over = x.shape[-1] - skip.shape[-1]
    start = over // 2
    return x[..., start : start + skip.shape[-2], start : start + skip.shape[-1]]
