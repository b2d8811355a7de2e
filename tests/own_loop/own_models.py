"""Small models of three kinds, written as people write them, with their losses, batches and optimizer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def double(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions with batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """[B, 3, H, W] -> logits [B, classes, H, W] (Ronneberger et al. 2015)."""

    def __init__(self, width: int = 8, classes: int = 4) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(double(3 * w, w) for w in (2 * width, width))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for block, skip in zip(self.up, (kept[1], kept[0]), strict=True):
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skip], 1))
        logits: Tensor = self.head(x)
        return logits


class Transformer(nn.Module):
    """Tokens [B, T] -> logits [B, T, words], with positions that are added in fp32."""

    positions: Tensor

    def __init__(
        self, words: int = 50, width: int = 32, depth: int = 3, length: int = 24, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.register_buffer("positions", torch.randn(length, width))
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, batch_first=True, norm_first=True),
            depth,
            enable_nested_tensor=False,
        )
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        logits: Tensor = self.head(self.encoder(x))
        return logits


class Residual(nn.Module):
    """[B, C, H, W] -> [B, C', H/stride, W/stride] (He et al. 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.shortcut(x) + self.second_norm(self.second(y)))


class ResNet(nn.Module):
    """[B, 3, H, W] -> logits [B, classes]."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        stages = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.stages = nn.Sequential(
            *(nn.Sequential(Residual(a, b, stride), Residual(b, b, 1)) for a, b, stride in stages)
        )
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.stages(F.relu(self.stem(x))).mean((2, 3)))
        return logits


def group_norm(model: nn.Module) -> nn.Module:
    """The same with group normalisation in place of batch normalisation: nothing looks at several samples."""
    for name, child in list(model.named_children()):
        if isinstance(child, nn.BatchNorm2d):
            setattr(model, name, nn.GroupNorm(4, child.num_features))
        else:
            group_norm(child)
    return model


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Of logits whose classes are the second dimension, or the last."""
    logits = model(x)
    return F.cross_entropy(logits.flatten(0, -2) if logits.ndim == 3 else logits, y.flatten() if y.ndim == 2 else y)


@dataclass(frozen=True)
class Kind:
    """A model and its batch."""

    build: Callable[[], nn.Module]
    batch: Callable[[int], tuple[Tensor, Tensor]]


def _pictures(samples: int, *labels: int, classes: int, side: int = 16) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, 3, side, side, generator=random)
    return x, torch.randint(classes, (samples, *labels), generator=random)


def _tokens(samples: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(samples)
    tokens = torch.randint(50, (samples, 25), generator=random)
    return tokens[:, :-1], tokens[:, 1:]


KINDS = {
    "unet": Kind(UNet, lambda n: _pictures(n, 16, 16, classes=4)),
    "transformer": Kind(Transformer, _tokens),
    "resnet": Kind(ResNet, lambda n: _pictures(n, classes=10)),
}


def built(name: str, **options: Any) -> nn.Module:
    """A model with the same weights each time."""
    torch.manual_seed(0)
    kind = KINDS[name]
    return kind.build(**options)


def mean(model: nn.Module, x: Tensor) -> Tensor:
    """Of what a model gives."""
    return model(x).mean()  # type: ignore[no-any-return]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """A large eps keeps rounding noise in gradients that are truly zero from becoming whole steps."""
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-2)
