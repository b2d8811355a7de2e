"""Self-attention over the positions of a picture.

Source: Zhang et al. 2018 (arXiv 1805.08318, SAGAN), with the pooled keys of the BigGAN release.
"""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract import cpu_ways

SMALL_HEAD, FEW_KEYS = 16, 64
"""On a CPU, attention of heads as small as this, or over as few keys, takes 1.2 to 5 times as long in half precision as
in fp32, since its time goes into exponentials and conversions, not into products."""


class SelfAttention(nn.Module):
    """gamma·o(softmax(theta(x)ᵀ phi(x))·g(x)) + x, keys and values pooled 2x2; gamma starts at 0.

    Args:
        channels: C of the input; at least 8.
        convolution: (inputs, outputs) -> 1x1 convolution without bias.
    """

    fp32_parameters = ("gamma",)

    def __init__(self, channels: int, convolution: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.theta = convolution(channels, channels // 8)
        self.phi = convolution(channels, channels // 8)
        self.g = convolution(channels, channels // 2)
        self.o = convolution(channels // 2, channels)
        self.gamma = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, differentiable_twice: bool = False) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W].

        Args:
            differentiable_twice: needed by a penalty on a gradient. Torch's fused kernels have one derivative only;
                with two, the whole [HW, HW/4] map is stored.
        """
        height, width = x.shape[2:]
        # One convolution for all three reads x once, and so does its gradient.
        weights = [cast(Tensor, layer.weight) for layer in (self.theta, self.phi, self.g)]
        sizes = [len(weight) for weight in weights]
        query, pooled = F.conv2d(x, torch.cat(weights)).split([sizes[0], sum(sizes[1:])], 1)
        key, value = F.max_pool2d(pooled, 2).split(sizes[1:], 1)  # [B, C/8, H/2, W/2], [B, C/2, H/2, W/2]
        query, key = _tokens(query), _tokens(key)  # [B, 1, HW, C/8], [B, 1, HW/4, C/8]
        # A value whose last stride is not 1 takes the unfused path too (57 MiB saved against 25).
        value = _tokens(value).contiguous()  # [B, 1, HW/4, C/2]
        attended = _plain_attention(query, key, value) if differentiable_twice else _fused_attention(query, key, value)
        attended = attended.squeeze(1).transpose(1, 2).unflatten(2, (height, width))  # [B, C/2, H, W]
        # gamma·(W·attended) is (gamma·W)·attended: the gain is applied to the weight, which is small, and its gradient
        # comes from the weight's.
        weight = cast(Tensor, self.o.weight)
        return torch.add(x, F.conv2d(attended, weight * self.gamma))


def _fused_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention by torch's fused kernels: [B, 1, HW, C/2]."""
    # Unequal head sizes take torch's unfused path, which stores the whole [HW, HW/4] map: 525 ms against 86 when
    # query and key are padded with zeros to the width of the value (which changes no product).
    padding = (0, value.shape[-1] - query.shape[-1])
    query, key = F.pad(query, padding), F.pad(key, padding)
    if cpu_ways.taken_in_half_for(value) and (value.shape[-1] <= SMALL_HEAD or key.shape[-2] <= FEW_KEYS):
        precise = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), scale=1.0)
        return precise.to(value.dtype)
    return F.scaled_dot_product_attention(query, key, value, scale=1.0)


def _plain_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention by products and a softmax in fp32 or more: [B, 1, HW, C/2]."""
    precise = torch.promote_types(value.dtype, torch.float32)
    shares = torch.softmax(query.to(precise) @ key.to(precise).mT, -1)  # [B, 1, HW, HW/4]
    return shares.to(value.dtype) @ value


def _tokens(x: Tensor) -> Tensor:
    """[B, C, H, W] -> [B, 1, HW, C]."""
    return x.flatten(2).transpose(1, 2).unsqueeze(1)
