"""The decoder: a code to a face and its mask."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.families.saehd.archi import Archi
from frugan.families.saehd.layers import Residual, Upscale, depth_to_space


class Decoder(nn.Module):
    """An image trunk with residual blocks and a thinner mask trunk, on the same code.

    Args:
        archi: its letters d, t and c count.
        in_channels: of the code.
        channels: the recipe's d_dims.
        mask_channels: the recipe's d_mask_dims.
    """

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
