"""XSeg's network: a U-Net with a dense bottleneck, from a face to the logits of its mask.

Attribute names are the original's, from which parameter names follow.

Source: DeepFaceLab's behaviour; FRN and TLU: Singh and Krishnan 2019 (arXiv 1911.09737); blurred pooling: Zhang 2019
(arXiv 1904.11486).
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.layers import UsesOps
from frugan.contract.resampling import mean_pool2d
from frugan.nn.fir import KeptKernels, downsample2d, fir_filter

HALF = (torch.float16, torch.bfloat16)
CODE = 512
"""Width of the bottleneck between both dense layers."""


class FRNorm2D(nn.Module):
    """Filter response normalisation: each channel of a sample has unit mean square, then a gain and a bias.

    Its eps is trained too. Nothing is computed across the batch.
    """

    fp32_parameters = ("weight", "bias", "eps")  # fp16 has three bits for an eps of 1e-6, and no room for its gradient

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same shape; statistics in fp32 at least."""
        exact = x.float() if x.dtype in HALF else x
        mean_square = exact.square().mean((2, 3), keepdim=True)  # [B, C, 1, 1]
        scale = torch.rsqrt(mean_square + self.eps.to(exact.dtype).abs())
        gain = scale * self.weight.to(exact.dtype)[:, None, None]  # [B, C, 1, 1]
        return (exact * gain + self.bias.to(exact.dtype)[:, None, None]).to(x.dtype)


class TLU(nn.Module):
    """Thresholded linear unit: the larger one of x and the channel's trained threshold."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.tau = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same shape. Where both are equal the gradient goes to x, as in the original."""
        tau = self.tau[:, None, None]
        return torch.where(x >= tau, x, tau)


class ConvBlock(nn.Module):
    """Convolution of 3x3, normalisation, threshold. [B, in, H, W] -> [B, out, H, W]."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.frn = FRNorm2D(out_channels)
        self.tlu = TLU(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, H, W]."""
        return torch.as_tensor(self.tlu(self.frn(self.conv(x))))


class UpConvBlock(nn.Module):
    """Transposed convolution of 3x3 with stride 2, normalisation, threshold. [B, in, H, W] -> [B, out, 2H, 2W]."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, 3, stride=2)
        self.frn = FRNorm2D(out_channels)
        self.tlu = TLU(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, 2H, 2W]."""
        whole = self.conv(x)  # [B, out, 2H + 1, 2W + 1], of which the original drops the last row and column
        return torch.as_tensor(self.tlu(self.frn(F.pad(whole, (0, -1, 0, -1)))))


class BlurPool(UsesOps):
    """Halve the side by a binomial filter. [B, C, H, W] -> [B, C, H/2, W/2] for even sides."""

    asks = ("fir",)

    def __init__(self, taps: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("fir", fir_filter(taps), persistent=False)
        self.kept = KeptKernels()

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H/2, W/2]."""
        fir = self.get_buffer("fir")
        if fir.shape[0] == 2:
            return mean_pool2d(x)
        return downsample2d(x, fir, self.kept, self.ops)


# (number of convolutions, width in base channels, taps of the pooling) of each level on the way down.
LEVELS = ((2, 1, (1, 3, 3, 1)), (2, 2, (1, 2, 1)), (2, 4, (1, 1)), (3, 8, (1, 1)), (3, 8, (1, 1)), (3, 8, (1, 1)))

# Level -> widths in base channels of its upsampling and of its convolutions on the way up, the deepest first.
RISES: Mapping[int, tuple[int, tuple[int, ...]]] = MappingProxyType(
    {5: (4, (8, 8, 8)), 4: (4, (8, 8, 8)), 3: (4, (8, 8, 8)), 2: (4, (4, 4)), 1: (2, (2, 2)), 0: (1, (1, 1))}
)

DIVISOR = 2 ** len(LEVELS)
"""Pixels of the picture for each pixel of the innermost map."""


class XSeg(UsesOps):
    """Six halvings, two dense layers, six doublings with a skip at each level.

    Its operations are those of what it is judged by while pretraining.

    Args:
        resolution: of the faces, a multiple of 64.
        base: channels of the first level.
        eps: start of what normalisations add to mean squares.
    """

    asks = ("dssim",)

    def __init__(self, resolution: int, base: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.side, self.inner = resolution // DIVISOR, base * 8
        channels = 3
        for level, (count, width, taps) in enumerate(LEVELS):
            for i in range(1, count + 1):
                setattr(self, f"conv{level}{i}", ConvBlock(channels, base * width))
                channels = base * width
            setattr(self, f"bp{level}", BlurPool(taps))
        flat = self.inner * self.side**2
        self.dense1 = nn.Linear(flat, CODE)
        self.dense2 = nn.Linear(CODE, flat)
        for level, (up, widths) in RISES.items():
            setattr(self, f"up{level}", UpConvBlock(channels, base * up))
            channels = base * (up + LEVELS[level][1])
            for i, width in zip(range(len(widths), 0, -1), widths, strict=True):
                setattr(self, f"uconv{level}{i}", ConvBlock(channels, base * width))
                channels = base * width
        self.out_conv = nn.Conv2d(channels, 1, 3, padding=1)
        for module in self.modules():
            if isinstance(module, FRNorm2D):
                nn.init.constant_(module.eps, eps)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks that may be recomputed, in the order in which they run."""
        down = [f"conv{level}{i}" for level, (count, _, _) in enumerate(LEVELS) for i in range(1, count + 1)]
        up = [
            name
            for level, (_, widths) in RISES.items()
            for name in (f"up{level}", *(f"uconv{level}{i}" for i in range(len(widths), 0, -1)))
        ]
        return (*down, *up)

    def forward(self, x: Tensor, *, skips: bool = True) -> Tensor:
        """Logits of the mask. [B, 3, R, R] BGR in [0, 1] -> [B, 1, R, R], in fp32 at least.

        Args:
            skips: False: zeros stand in their places, so that all that is known goes through the bottleneck.
        """
        x = x.to(self.out_conv.weight.dtype)
        kept: list[Tensor] = []
        for level, (count, _, _) in enumerate(LEVELS):
            for i in range(1, count + 1):
                x = self.get_submodule(f"conv{level}{i}")(x)
            kept.append(x if skips else torch.zeros_like(x))
            x = self.get_submodule(f"bp{level}")(x)
        flat = x.contiguous().flatten(1)  # channels first, whatever the memory format: the files' order
        x = self.dense2(self.dense1(flat)).reshape(-1, self.inner, self.side, self.side)
        for level, (_, widths) in RISES.items():
            x = torch.cat([self.get_submodule(f"up{level}")(x), kept.pop()], 1)
            for i in range(len(widths), 0, -1):
                x = self.get_submodule(f"uconv{level}{i}")(x)
        logits = torch.as_tensor(self.out_conv(x))
        return logits.float() if logits.dtype in HALF else logits


@torch.no_grad()
def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Draw every kernel anew as the original does: Glorot uniform (Glorot and Bengio 2010), with zero biases."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
