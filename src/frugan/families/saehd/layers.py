"""Building blocks of SAEHD's networks. Attribute names are the original's, from which parameter names follow."""

from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def depth_to_space(x: Tensor, factor: int = 2) -> Tensor:
    """Spread channels over factor x factor pixels, in blocks: channel (dy·factor + dx)·C + c goes to place (dy, dx).

    That is ONNX's DCR order; `torch.pixel_shuffle` has the other one. Memory format is kept: in channels-last the
    move is a copy of whole runs of factor·C values.

    Args:
        x: [B, factor²·C, H, W].

    Returns:
        [B, C, factor·H, factor·W].
    """
    size, channels, height, width = x.shape
    out = channels // factor**2
    if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        rows = x.permute(0, 2, 3, 1).reshape(size, height, width, factor, factor * out)
        spread = rows.transpose(2, 3).reshape(size, height * factor, width * factor, out)
        return spread.permute(0, 3, 1, 2)  # [B, C, fH, fW] in channels-last
    blocks = x.reshape(size, factor, factor, out, height, width)
    return blocks.permute(0, 3, 4, 1, 5, 2).reshape(size, out, height * factor, width * factor)


def _spread(x: Tensor) -> Tensor:
    """What `depth_to_space` gives, as a view: [B, 4·C, H, W] -> [B, C, H, 2, W, 2]."""
    spread: Tensor = x.unflatten(1, (2, 2, -1)).permute(0, 3, 4, 1, 5, 2)
    return spread


def _places(x: Tensor) -> Tensor:
    """A view of that shape: [B, C, 2·H, 2·W] -> [B, C, H, 2, W, 2]."""
    places: Tensor = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    return places


def _room(x: Tensor, *shape: int) -> Tensor:
    """Memory of x's dtype and memory format."""
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    order = torch.channels_last if last else torch.contiguous_format
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=order)


def spread_leaky_relu(x: Tensor, slope: float) -> Tensor:
    """Leaky ReLU and `depth_to_space` by 2 in one pass, whose result the gradient is found from.

    The activation by itself would be kept for its gradient beside the same values in other places, which the next
    layer keeps.

    Args:
        x: [B, 4·C, H, W].

    Returns:
        [B, C, 2·H, 2·W].
    """
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
        # a graph is traced: its compiler joins them by itself, and cannot follow a result written into a view
        return depth_to_space(F.leaky_relu(x, slope))
    return cast(Tensor, _SpreadLeakyReLU.apply(x, slope))


class _SpreadLeakyReLU(torch.autograd.Function):
    """As `spread_leaky_relu`; differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        size, channels, height, width = x.shape
        made = _room(x, size, channels // 4, 2 * height, 2 * width)
        torch.ops.aten.leaky_relu.out(_spread(x), slope, out=_places(made))
        ctx.save_for_backward(made)
        ctx.slope = slope
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (made,) = ctx.saved_tensors
        size, channels, height, width = made.shape
        to_x = _room(made, size, 4 * channels, height // 2, width // 2)
        torch.ops.aten.leaky_relu_backward.grad_input(
            _places(gradients[0]), _places(made), ctx.slope, True, grad_input=_spread(to_x)
        )
        return to_x, None


def pixel_norm(x: Tensor) -> Tensor:
    """Scale each sample's whole vector to unit root mean square; in fp32 whatever the precision.

    Args:
        x: [B, features].
    """
    exact = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return (exact * torch.rsqrt(exact.square().mean(1, keepdim=True) + 1e-6)).to(x.dtype)


class Activation(nn.Module):
    """Leaky ReLU, or x·cos(x) for letter c. May overwrite its input, which no convolution needs for its gradient."""

    def __init__(self, slope: float, *, cosine: bool) -> None:
        super().__init__()
        self.slope = slope
        self.cosine = cosine

    def forward(self, x: Tensor) -> Tensor:
        """[...] -> the same shape."""
        return x * torch.cos(x) if self.cosine else F.leaky_relu(x, self.slope, inplace=True)


class Downscale(nn.Module):
    """Convolution of 5x5 with stride 2, activation. [B, in, H, W] -> [B, out, ceil(H/2), ceil(W/2)]."""

    def __init__(self, in_channels: int, out_channels: int, *, cosine: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 5, stride=2, padding=2)
        self.activation = Activation(0.1, cosine=cosine)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, H/2, W/2]."""
        return torch.as_tensor(self.activation(self.conv1(x)))


class Downscales(nn.Module):
    """Downscale blocks in a row, each with twice the channels of the one before."""

    def __init__(self, in_channels: int, channels: int, count: int, *, cosine: bool) -> None:
        super().__init__()
        widths = [in_channels, *(channels * min(2**i, 8) for i in range(count))]
        self.downs = nn.ModuleList(Downscale(a, b, cosine=cosine) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, 8·channels, H/16, W/16] for four of them."""
        for down in self.downs:
            x = down(x)
        return x


class Upscale(nn.Module):
    """Convolution of 3x3, activation, depth to space. [B, in, H, W] -> [B, out, 2H, 2W]."""

    def __init__(self, in_channels: int, out_channels: int, *, cosine: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels * 4, 3, padding=1)
        self.activation = Activation(0.1, cosine=cosine)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, 2H, 2W]."""
        made = self.conv1(x)
        if self.activation.cosine:
            return depth_to_space(self.activation(made))
        return spread_leaky_relu(made, self.activation.slope)


class Residual(nn.Module):
    """Two convolutions of 3x3 added to their input, then activated. [B, C, H, W] -> the same."""

    def __init__(self, channels: int, *, cosine: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.activation = Activation(0.2, cosine=cosine)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same."""
        inner = self.conv2(self.activation(self.conv1(x)))
        return torch.as_tensor(self.activation(inner + x))
