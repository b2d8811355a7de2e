"""The encoder: a face to a flat vector."""

from torch import Tensor, nn

from frugan.families.saehd.archi import Archi
from frugan.families.saehd.layers import Downscale, Downscales, Residual, pixel_norm


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
