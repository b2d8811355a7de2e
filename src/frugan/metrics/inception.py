"""The Inception network that scores are defined with, in plain torch, under the public files' own names.

There are two of it, of one architecture: that of 2015-12-05, which FID was defined with, and torchvision's, which
BigGAN-PyTorch scores by. Other weights, other class scores, another way to a picture of 299 pixels, other pools.

Source: Szegedy et al. 2016 (arXiv 1512.00567); both checked against recorded features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from frugan.wording import PUBLISHED_NETWORK

SIDE = 299
MEANS = (0.485, 0.456, 0.406)
"""Mean of red, green and blue of ImageNet's pictures in [0, 1]."""
DEVIATIONS = (0.229, 0.224, 0.225)
"""Standard deviation of red, green and blue of ImageNet's pictures in [0, 1]."""
FEATURES = ("64", "192", "768", "2048", "logits_unbiased", "logits")
"""Names of features: spatial means after four stages, and class scores without and with bias."""


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
    length = pictures.shape[axis]
    at = torch.arange(size, dtype=torch.float32, device=pictures.device) * (length / size)
    low = at.floor().long()
    high = (low + 1).clamp(max=length - 1)
    shape = [1] * pictures.ndim
    shape[axis] = size
    share = (at - low).view(shape)
    below = pictures.index_select(axis, low)
    return below + (pictures.index_select(axis, high) - below) * share


def _as_in_2015(pictures: Tensor) -> Tensor:
    return (resize_as_tensorflow_1(pictures.float(), SIDE, SIDE) - 128) / 128


def _as_for_imagenet(pictures: Tensor) -> Tensor:
    """Normalised first, then resized with corners on corners, as BigGAN-PyTorch does; of 299 pixels, left as it is."""
    normalised = normalised_as_imagenet(pictures)
    if normalised.shape[2:] == (SIDE, SIDE):
        return normalised
    return F.interpolate(normalised, size=(SIDE, SIDE), mode="bilinear", align_corners=True)


def normalised_as_imagenet(pictures: Tensor) -> Tensor:
    """uint8 [N, 3, H, W] -> fp32, less ImageNet's mean and divided by its deviation."""
    means, deviations = (
        pictures.new_tensor(channels, dtype=torch.float32)[:, None, None] for channels in (MEANS, DEVIATIONS)
    )
    return (pictures.float() / 255 - means) / deviations


@dataclass(frozen=True)
class Variant:
    """Differences between the two Inception networks."""

    name: str  # name in scores
    classes: int  # number of classes
    prepare: Callable[[Tensor], Tensor]  # uint8 [N, 3, H, W] -> input of the first layer [N, 3, 299, 299]
    resizer: str  # description of `prepare`
    counts_padding: bool  # whether average pools count the zeros beyond the edge
    last_pool: str  # pool of Mixed_7c: "largest" or "average"
    class_scores: str  # entry of `FEATURES` that the inception score is computed from


OF_2015 = Variant(
    PUBLISHED_NETWORK,
    classes=1008,
    prepare=_as_in_2015,
    resizer="TensorFlow 1 bilinear to 299",
    counts_padding=False,
    last_pool="largest",  # the original's oddity, which FID depends on
    class_scores="logits_unbiased",
)
TORCHVISION = Variant(
    "inception-torchvision",
    classes=1000,
    prepare=_as_for_imagenet,
    resizer="bilinear to 299, corners on corners",
    counts_padding=True,
    last_pool="average",
    class_scores="logits",
)


class Inception(nn.Module):
    """The network: uint8 RGB [N, 3, H, W] of any size -> features by name.

    Args:
        variant: which of the two.
    """

    def __init__(self, variant: Variant = OF_2015) -> None:
        super().__init__()
        self.variant = variant
        average = _AveragePool(counts_padding=variant.counts_padding)
        self.Conv2d_1a_3x3 = _Conv(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = _Conv(32, 32, 3)
        self.Conv2d_2b_3x3 = _Conv(32, 64, 3, padding=1)
        self.Conv2d_3b_1x1 = _Conv(64, 80, 1)
        self.Conv2d_4a_3x3 = _Conv(80, 192, 3)
        self.Mixed_5b = _MixedA(192, 32, average)
        self.Mixed_5c = _MixedA(256, 64, average)
        self.Mixed_5d = _MixedA(288, 64, average)
        self.Mixed_6a = _MixedB()
        self.Mixed_6b = _MixedC(128, average)
        self.Mixed_6c = _MixedC(160, average)
        self.Mixed_6d = _MixedC(160, average)
        self.Mixed_6e = _MixedC(192, average)
        self.Mixed_7a = _MixedD()
        self.Mixed_7b = _MixedE(1280, average)
        self.Mixed_7c = _MixedE(2048, _largest if variant.last_pool == "largest" else average)
        self.fc = nn.Linear(2048, variant.classes)
        self.eval().requires_grad_(False)

    @torch.no_grad()
    def forward(self, pictures: Tensor, wanted: Sequence[str] = ("2048", "logits_unbiased")) -> dict[str, Tensor]:
        """Features of pictures.

        Args:
            pictures: uint8 [N, 3, H, W].
            wanted: names of `FEATURES`.

        Returns:
            Name -> fp32 [N, 64], [N, 192], [N, 768], [N, 2048] or [N, classes].
        """
        features = {name: _mean(x) for name, x in self.maps(pictures).items()}
        features["logits_unbiased"] = features["2048"] @ self.fc.weight.T
        features["logits"] = features["logits_unbiased"] + self.fc.bias
        return {name: features[name] for name in wanted}

    def maps(self, pictures: Tensor) -> dict[str, Tensor]:
        """Return the maps of four stages by channels, [N, 64, 73, 73] to [N, 2048, 8, 8]; differentiable.

        Args:
            pictures: [N, 3, H, W] from 0 to 255, uint8 or floating.
        """
        maps: dict[str, Tensor] = {}
        x = self.variant.prepare(pictures)  # [N, 3, 299, 299]
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))  # [N, 64, 147, 147]
        x = maps["64"] = F.max_pool2d(x, 3, 2)  # [N, 64, 73, 73]
        x = maps["192"] = F.max_pool2d(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)), 3, 2)  # [N, 192, 35, 35]
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))  # [N, 288, 35, 35]
        x = maps["768"] = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        maps["2048"] = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))  # [N, 2048, 8, 8]
        return maps


def _mean(x: Tensor) -> Tensor:
    return x.mean((2, 3))


Pool = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _AveragePool:
    counts_padding: bool

    def __call__(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 3, 1, 1, count_include_pad=self.counts_padding)


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
    def __init__(self, channels: int, pooled: int, pool: Pool) -> None:
        super().__init__()
        self.pool = pool
        self.branch1x1 = _Conv(channels, 64, 1)
        self.branch5x5_1 = _Conv(channels, 48, 1)
        self.branch5x5_2 = _Conv(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = _Conv(channels, 64, 1)
        self.branch3x3dbl_2 = _Conv(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = _Conv(96, 96, 3, padding=1)
        self.branch_pool = _Conv(channels, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        five = self.branch5x5_2(self.branch5x5_1(x))
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch1x1(x), five, double, self.branch_pool(self.pool(x))], 1)


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
    def __init__(self, c: int, pool: Pool) -> None:
        super().__init__()
        self.pool = pool
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
        return torch.cat([self.branch1x1(x), seven, double, self.branch_pool(self.pool(x))], 1)


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
    def __init__(self, channels: int, pool: Pool) -> None:
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
