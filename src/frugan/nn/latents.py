"""Ways between latents, styles and classes, for rows of a grid that go from one picture to another."""

from collections.abc import Sequence

import torch
from torch import Tensor


def line(start: Tensor, end: Tensor, points: int) -> Tensor:
    """Straight line between two sets of vectors: [N, K], [N, K] -> [N, points, K], ends included."""
    return torch.lerp(start[:, None], end[:, None], _weights(points, start.dtype))


def arc(start: Tensor, end: Tensor, points: int, *, unit: bool = False) -> Tensor:
    """Along the great circle between two sets of vectors, lengths in a straight line: [N, K], [N, K] -> [N, points, K].

    A straight line passes nearer to the origin than latents of a normal distribution ever are.

    Args:
        unit: lengths of 1 all the way, for networks that take no notice of them.

    Source: White 2016 (arXiv 1609.04468), section 2.1.
    """
    lengths = [each.norm(dim=1, keepdim=True) for each in (start, end)]  # [N, 1]
    one, other = (each / length.clamp(min=1e-12) for each, length in zip((start, end), lengths, strict=True))
    angle = (one * other).sum(1, keepdim=True).clamp(-1, 1).acos()[:, None]  # [N, 1, 1]
    weight = _weights(points, start.dtype)
    turned = ((1 - weight) * angle).sin() * one[:, None] + (weight * angle).sin() * other[:, None]
    direction = torch.where(angle > 1e-6, turned / angle.sin().clamp(min=1e-12), one[:, None])
    return direction if unit else direction * line(lengths[0], lengths[1], points)


def class_ends(asked: Sequence[int] | None, rows: int, classes: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Classes at both ends of each row [rows]: those asked for in turn, or random ones, the two ends different."""
    if asked is not None:
        start = torch.tensor(list(asked))
        return start, start.roll(-1)
    start = torch.randint(classes, (rows,), generator=random)
    if classes == 1:
        return start, start
    return start, (start + torch.randint(1, classes, (rows,), generator=random)) % classes


def _weights(points: int, dtype: torch.dtype) -> Tensor:
    """From 0 to 1 [1, points, 1]."""
    return torch.linspace(0, 1, points, dtype=dtype).view(1, -1, 1)
