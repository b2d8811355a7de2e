"""The Inception network of 2015 that FID was defined with, in plain torch, under the public file's own names.

Source: Szegedy et al. 2016 (arXiv 1512.00567) as published on 2015-12-05; checked against recorded features.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE = 299
FEATURES = ("64", "192", "768", "2048", "logits_unbiased", "logits")
"""What the network can be asked for: spatial means after four stages, and class scores without and with bias."""


def resize_as_tensorflow_1(pictures: Tensor, height: int, width: int) -> Tensor:
    """Bilinear without half-pixel shift and without antialiasing, as the original graph resized: FID depends on it.

    Args:
        pictures: [N, C, H, W], floating.

    Returns:
        [N, C, height, width].
    """
    rows = _resize_axis(pictures, 2, height)
    return _resize_axis(rows, 3, width)


def _resize_axis(pictures: Tensor, axis: int, size: int) -> Tensor:
    given = pictures.shape[axis]
    at = torch.arange(size, dtype=torch.float32, device=pictures.device) * (given / size)
    low = at.floor().long()
    high = (low + 1).clamp(max=given - 1)
    shape = [1] * pictures.ndim
    shape[axis] = size
    share = (at - low).view(shape)
    below = pictures.index_select(axis, low)
    return below + (pictures.index_select(axis, high) - below) * share


class Inception(nn.Module):
    """The network: uint8 RGB [N, 3, H, W] of any size -> features by name."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = _Conv(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = _Conv(32, 32, 3)
        self.Conv2d_2b_3x3 = _Conv(32, 64, 3, padding=1)
        self.Conv2d_3b_1x1 = _Conv(64, 80, 1)
        self.Conv2d_4a_3x3 = _Conv(80, 192, 3)
        self.Mixed_5b = _MixedA(192, 32)
        self.Mixed_5c = _MixedA(256, 64)
        self.Mixed_5d = _MixedA(288, 64)
        self.Mixed_6a = _MixedB()
        self.Mixed_6b = _MixedC(128)
        self.Mixed_6c = _MixedC(160)
        self.Mixed_6d = _MixedC(160)
        self.Mixed_6e = _MixedC(192)
        self.Mixed_7a = _MixedD()
        self.Mixed_7b = _MixedE(1280, _average_pool)
        self.Mixed_7c = _MixedE(2048, _largest)  # the original's oddity, which FID depends on
        self.fc = nn.Linear(2048, 1008)
        self.eval().requires_grad_(False)

    @torch.no_grad()
    def forward(self, pictures: Tensor, wanted: Sequence[str] = ("2048", "logits_unbiased")) -> dict[str, Tensor]:
        """Features of pictures.

        Args:
            pictures: uint8 [N, 3, H, W].
            wanted: names of `FEATURES`.

        Returns:
            Name -> fp32 [N, 64], [N, 192], [N, 768], [N, 2048] or [N, 1008].
        """
        features: dict[str, Tensor] = {}
        x = (resize_as_tensorflow_1(pictures.float(), SIDE, SIDE) - 128) / 128
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))  # [N, 64, 147, 147]
        x = F.max_pool2d(x, 3, 2)  # [N, 64, 73, 73]
        features["64"] = _mean(x)
        x = F.max_pool2d(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)), 3, 2)  # [N, 192, 35, 35]
        features["192"] = _mean(x)
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))  # [N, 288, 35, 35]
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))  # [N, 768, 17, 17]
        features["768"] = _mean(x)
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))  # [N, 2048, 8, 8]
        features["2048"] = _mean(x)
        features["logits_unbiased"] = features["2048"] @ self.fc.weight.T
        features["logits"] = features["logits_unbiased"] + self.fc.bias
        return {name: features[name] for name in wanted}


def _mean(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def _average_pool(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


def _largest(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 1, 1)


class _Conv(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(
        self, channels: int, out: int, kernel: int | tuple[int, int], *, stride: int = 1, padding: int | None = None
    ) -> None:
        super().__init__()
        # long kernels and 1x1 keep the size; square ones say so themselves
        same = (kernel[0] // 2, kernel[1] // 2) if isinstance(kernel, tuple) else (0, 0)
        pads = same if padding is None else (padding, padding)
        self.conv = nn.Conv2d(channels, out, kernel, stride, pads, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class _MixedA(nn.Module):
    def __init__(self, channels: int, pool: int) -> None:
        super().__init__()
        self.branch1x1 = _Conv(channels, 64, 1)
        self.branch5x5_1 = _Conv(channels, 48, 1)
        self.branch5x5_2 = _Conv(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = _Conv(channels, 64, 1)
        self.branch3x3dbl_2 = _Conv(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = _Conv(96, 96, 3, padding=1)
        self.branch_pool = _Conv(channels, pool, 1)

    def forward(self, x: Tensor) -> Tensor:
        five = self.branch5x5_2(self.branch5x5_1(x))
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch1x1(x), five, double, self.branch_pool(_average_pool(x))], 1)


class _MixedB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch3x3 = _Conv(288, 384, 3, stride=2)
        self.branch3x3dbl_1 = _Conv(288, 64, 1)
        self.branch3x3dbl_2 = _Conv(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = _Conv(96, 96, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch3x3(x), double, F.max_pool2d(x, 3, 2)], 1)


class _MixedC(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.branch1x1 = _Conv(768, 192, 1)
        self.branch7x7_1 = _Conv(768, c, 1)
        self.branch7x7_2 = _Conv(c, c, (1, 7))
        self.branch7x7_3 = _Conv(c, 192, (7, 1))
        self.branch7x7dbl_1 = _Conv(768, c, 1)
        self.branch7x7dbl_2 = _Conv(c, c, (7, 1))
        self.branch7x7dbl_3 = _Conv(c, c, (1, 7))
        self.branch7x7dbl_4 = _Conv(c, c, (7, 1))
        self.branch7x7dbl_5 = _Conv(c, 192, (1, 7))
        self.branch_pool = _Conv(768, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        seven = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return torch.cat([self.branch1x1(x), seven, double, self.branch_pool(_average_pool(x))], 1)


class _MixedD(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch3x3_1 = _Conv(768, 192, 1)
        self.branch3x3_2 = _Conv(192, 320, 3, stride=2)
        self.branch7x7x3_1 = _Conv(768, 192, 1)
        self.branch7x7x3_2 = _Conv(192, 192, (1, 7))
        self.branch7x7x3_3 = _Conv(192, 192, (7, 1))
        self.branch7x7x3_4 = _Conv(192, 192, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        seven = self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x)))
        return torch.cat([self.branch3x3_2(self.branch3x3_1(x)), self.branch7x7x3_4(seven), F.max_pool2d(x, 3, 2)], 1)


class _MixedE(nn.Module):
    def __init__(self, channels: int, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.pool = pool
        self.branch1x1 = _Conv(channels, 320, 1)
        self.branch3x3_1 = _Conv(channels, 384, 1)
        self.branch3x3_2a = _Conv(384, 384, (1, 3))
        self.branch3x3_2b = _Conv(384, 384, (3, 1))
        self.branch3x3dbl_1 = _Conv(channels, 448, 1)
        self.branch3x3dbl_2 = _Conv(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = _Conv(384, 384, (1, 3))
        self.branch3x3dbl_3b = _Conv(384, 384, (3, 1))
        self.branch_pool = _Conv(channels, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        three = self.branch3x3_1(x)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        parts = [
            self.branch1x1(x),
            self.branch3x3_2a(three),
            self.branch3x3_2b(three),
            self.branch3x3dbl_3a(double),
            self.branch3x3dbl_3b(double),
            self.branch_pool(self.pool(x)),
        ]
        return torch.cat(parts, 1)
