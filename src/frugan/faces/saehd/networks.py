"""SAEHD's networks: encoder, bottleneck, decoder and two discriminators, and how faces flow through them.

Attribute names are the original's, from which parameter names follow.
"""

from itertools import pairwise
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.layers import UsesOps
from frugan.contract.phase import Networks
from frugan.faces.saehd.config import Archi, stack_for
from frugan.torch_internals import is_traced


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
    """Return `depth_to_space` as a view: [B, 4·C, H, W] -> [B, C, H, 2, W, 2]."""
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
    if is_traced():  # a compiler joins them by itself, and cannot follow a result written into a view
        return cast(Tensor, _TracedSpreadLeakyReLU.apply(x, slope))
    return cast(Tensor, _SpreadLeakyReLU.apply(x, slope))


class _SpreadLeakyReLU(torch.autograd.Function):
    """`spread_leaky_relu` with its backward pass; differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        size, channels, height, width = x.shape
        output = _room(x, size, channels // 4, 2 * height, 2 * width)
        torch.ops.aten.leaky_relu.out(_spread(x), slope, out=_places(output))
        ctx.save_for_backward(output)
        ctx.slope = slope
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (output,) = ctx.saved_tensors
        size, channels, height, width = output.shape
        to_x = _room(output, size, 4 * channels, height // 2, width // 2)
        torch.ops.aten.leaky_relu_backward.grad_input(
            _places(gradients[0]), _places(output), ctx.slope, True, grad_input=_spread(to_x)
        )
        return to_x, None


class _TracedSpreadLeakyReLU(torch.autograd.Function):
    """`spread_leaky_relu` of functional operations, for tracing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        output = depth_to_space(F.leaky_relu(x, slope))
        ctx.save_for_backward(output)
        ctx.slope = slope
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (output,) = ctx.saved_tensors
        return _space_to_depth(torch.ops.aten.leaky_relu_backward(gradients[0], output, ctx.slope, True)), None


def _space_to_depth(x: Tensor) -> Tensor:
    """The inverse of `depth_to_space` by 2: [B, C, 2·H, 2·W] -> [B, 4·C, H, W], in x's memory format."""
    size, channels, height, width = x.shape
    if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        rows = x.permute(0, 2, 3, 1).reshape(size, height // 2, 2, width // 2, 2 * channels)
        gathered = rows.transpose(2, 3).reshape(size, height // 2, width // 2, 4 * channels)
        return gathered.permute(0, 3, 1, 2)
    return _places(x).permute(0, 3, 5, 1, 2, 4).reshape(size, 4 * channels, height // 2, width // 2)


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
        output = self.conv1(x)
        if self.activation.cosine:
            return depth_to_space(self.activation(output))
        return spread_leaky_relu(output, self.activation.slope)


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


# The encoder: a face to a flat vector.


class Encoder(nn.Module):
    """Four halvings of the resolution; five and two residual blocks for letter t.

    Args:
        archi: its letters t, c and u count.
        channels: the recipe's e_dims.
    """

    def __init__(self, archi: Archi, channels: int) -> None:
        super().__init__()
        self.archi = archi
        cosine, wide = archi.cosine, channels * 8
        if archi.deeper:
            self.down1 = Downscale(3, channels, cosine=cosine)
            self.res1 = Residual(channels, cosine=cosine)
            self.down2 = Downscale(channels, channels * 2, cosine=cosine)
            self.down3 = Downscale(channels * 2, channels * 4, cosine=cosine)
            self.down4 = Downscale(channels * 4, wide, cosine=cosine)
            self.down5 = Downscale(wide, wide, cosine=cosine)
            self.res5 = Residual(wide, cosine=cosine)
            self.blocks: tuple[str, ...] = ("down1", "res1", "down2", "down3", "down4", "down5", "res5")
        else:
            self.down1 = Downscales(3, channels, 4, cosine=cosine)  # type: ignore[assignment]
            self.blocks = tuple(f"down1.downs.{i}" for i in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """[B, 3, R, R] in [0, 1] -> [B, 8·e_dims·(R/16)²], channels first; (R/32)² for letter t."""
        first = next(self.parameters())
        x = x.to(first.dtype)
        if self.archi.deeper:
            for name in self.blocks:
                x = getattr(self, name)(x)
        else:
            x = self.down1(x)
        flat = x.contiguous().flatten(1)  # [B, features]; contiguous: the order of features is the files'
        return pixel_norm(flat) if self.archi.normalised else flat


def features(archi: Archi, resolution: int, channels: int) -> int:
    """Length of the encoder's vector."""
    return channels * 8 * archi.encoded_side(resolution) ** 2


# The bottleneck between encoder and decoder: two dense layers through a narrow vector.


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


# The decoder: a code to a face and its mask.


class Decoder(UsesOps):
    """An image trunk with residual blocks and a thinner mask trunk, on the same code.

    Its operations are those of what its picture is judged by.

    Args:
        archi: its letters d, t and c count.
        in_channels: of the code.
        channels: the recipe's d_dims.
        mask_channels: the recipe's d_mask_dims.
    """

    asks = ("dssim",)

    def __init__(self, archi: Archi, in_channels: int, channels: int, mask_channels: int) -> None:
        super().__init__()
        self.archi = archi
        multipliers = (8, 8, 4, 2) if archi.deeper else (8, 4, 2)
        self.levels = len(multipliers)
        width, thin = in_channels, in_channels
        for i, multiplier in enumerate(multipliers):
            setattr(self, f"upscale{i}", Upscale(width, channels * multiplier, cosine=archi.cosine))
            setattr(self, f"res{i}", Residual(channels * multiplier, cosine=archi.cosine))
            setattr(self, f"upscalem{i}", Upscale(thin, mask_channels * multiplier, cosine=archi.cosine))
            width, thin = channels * multiplier, mask_channels * multiplier
        self.out_conv = nn.Conv2d(width, 3, 1)
        if archi.doubled:
            self.out_conv1 = nn.Conv2d(width, 3, 3, padding=1)
            self.out_conv2 = nn.Conv2d(width, 3, 3, padding=1)
            self.out_conv3 = nn.Conv2d(width, 3, 3, padding=1)
            setattr(self, f"upscalem{self.levels}", Upscale(thin, mask_channels, cosine=archi.cosine))
            thin = mask_channels
        self.out_convm = nn.Conv2d(thin, 1, 1)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks that may be recomputed, in the order in which they run."""
        image = [f"{kind}{i}" for i in range(self.levels) for kind in ("upscale", "res")]
        mask = [f"upscalem{i}" for i in range(self.levels + self.archi.doubled)]
        return (*image, *mask)

    def forward(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """[B, in_channels, S, S] -> face [B, 3, R, R] and mask [B, 1, R, R], both in [0, 1]; not in half precision."""
        code = code.to(self.out_conv.weight.dtype)
        x = code
        for i in range(self.levels):
            x = getattr(self, f"res{i}")(getattr(self, f"upscale{i}")(x))
        m = code
        for i in range(self.levels + self.archi.doubled):
            m = getattr(self, f"upscalem{i}")(m)
        return _sigmoid(self._image(x)), _sigmoid(self.out_convm(m))

    def _image(self, x: Tensor) -> Tensor:
        """Logits of the face. [B, channels, R/2, R/2] -> [B, 3, R, R] for letter d."""
        if not self.archi.doubled:
            return torch.as_tensor(self.out_conv(x))
        # The four heads read the same map: one convolution, the 1x1 kernel standing in the middle of a 3x3 one.
        heads = (self.out_conv, self.out_conv1, self.out_conv2, self.out_conv3)
        weight = torch.cat([F.pad(heads[0].weight, (1, 1, 1, 1)), *(head.weight for head in heads[1:])])
        bias = torch.cat([head.bias for head in heads if head.bias is not None])
        return depth_to_space(F.conv2d(x, weight, bias, padding=1))


def _sigmoid(logits: Tensor) -> Tensor:
    """In fp32 at least: half precision has no values between 0.9995 and 1."""
    return torch.sigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32)))


# The code discriminator of true-face training: does a code come from the destination?

CODE_WIDTH = 256


class CodeDiscriminator(nn.Module):
    """Strided convolutions on a code.

    Args:
        in_channels: of the code (ae_dims).
        side: of the code in pixels.
        width: channels of the first layer.
    """

    def __init__(self, in_channels: int, side: int, width: int = CODE_WIDTH) -> None:
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


# The U-Net patch discriminator of SAEHD's GAN term: real or generated, for patches and for every pixel.

MOST_PATCH_CHANNELS = 512


class PatchDiscriminator(nn.Module):
    """Down through 3x3 convolutions, judged at the bottom, up again with skips, judged at every pixel.

    Args:
        patch: wanted receptive field at the bottom, in pixels.
        channels: at the first level; doubled at each layer, at most 512.
    """

    def __init__(self, patch: int, channels: int) -> None:
        super().__init__()
        self.strides = stack_for(patch).strides
        widths = [min(channels * 2**i, MOST_PATCH_CHANNELS) for i in range(len(self.strides) + 1)]
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
    if is_traced():  # its gradient keeps the order of pictures in memory, where a slice's would be copied to it
        tall, wide = (whole - start - side for whole, side in zip(x.shape[2:], skip.shape[2:], strict=True))
        return F.pad(x, (-start, -wide, -start, -tall))
    return x[..., start : start + skip.shape[-2], start : start + skip.shape[-1]]


# First weights as the original's: Glorot uniform, biases of zero. Torch's own start is another.


@torch.no_grad()
def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Draw every convolution and dense layer anew (Glorot and Bengio 2010).

    Args:
        network: on any device but meta.
        generator: on the network's device.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


# How faces flow through the networks: which code a side has, and which decoder reads it.

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


def code_of(archi: Archi, networks: Networks, vectors: Tensor, side: Side) -> Tensor:
    """Code of a side's faces [B, C, S, S], for that side's decoder."""
    if archi.kind == "df":
        return cast(Tensor, networks["inter"](vectors))
    shared = networks["inter_AB"](vectors)
    return torch.cat([shared if side == "src" else networks["inter_B"](vectors), shared], 1)


def swap_code(archi: Archi, networks: Networks, vectors: Tensor) -> Tensor:
    """Code of destination faces for the source's decoder: the swap. [B, C, S, S]."""
    return code_of(archi, networks, vectors, "src")


def decode(archi: Archi, networks: Networks, codes: Tensor, side: Side) -> tuple[Tensor, Tensor]:
    """Face [B, 3, R, R] and mask [B, 1, R, R] of a side, fp32."""
    return cast(tuple[Tensor, Tensor], networks[decoder_name(archi, side)](codes))
