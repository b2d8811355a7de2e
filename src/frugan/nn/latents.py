"""Paths between latents, styles and classes, for rows of a grid that go from one picture to another."""

from collections.abc import Sequence

import torch
from torch import Tensor


def line(start: Tensor, end: Tensor, points: int) -> Tensor:
    """Straight line between two sets of vectors: [N, K], [N, K] -> [N, points, K], ends included."""
    return torch.lerp(start[:, None], end[:, None], _weights(points, start.dtype))


def arc(start: Tensor, end: Tensor, points: int, *, unit: bool = False) -> Tensor:
    """Great circle between two sets of vectors, with linear lengths: [N, K], [N, K] -> [N, points, K], ends included.

    A straight line passes nearer to the origin than latents of a normal distribution ever are.

    Args:
        unit: give vectors of length 1, for networks that take no notice of lengths.

    Source: White 2016 (arXiv 1609.04468), section 2.1.
    """
    lengths = [ends.norm(dim=1, keepdim=True) for ends in (start, end)]  # [N, 1]
    first, last = (ends / length.clamp(min=1e-12) for ends, length in zip((start, end), lengths, strict=True))
    angle = (first * last).sum(1, keepdim=True).clamp(-1, 1).acos()[:, None]  # [N, 1, 1]
    weight = _weights(points, start.dtype)
    turned = ((1 - weight) * angle).sin() * first[:, None] + (weight * angle).sin() * last[:, None]
    direction = torch.where(angle > 1e-6, turned / angle.sin().clamp(min=1e-12), first[:, None])
    return direction if unit else direction * line(lengths[0], lengths[1], points)


def class_ends(chosen: Sequence[int] | None, rows: int, classes: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Classes at the two ends of each row [rows].

    Args:
        chosen: class at the start of each row, whose end is the next row's start; None: random pairs of different
            classes.
        rows: number of random pairs.
        classes: number of classes to draw them from.
        random: draws them.
    """
    if chosen is not None:
        start = torch.tensor(list(chosen))
        return start, start.roll(-1)
    start = torch.randint(classes, (rows,), generator=random)
    if classes == 1:
        return start, start
    return start, (start + torch.randint(1, classes, (rows,), generator=random)) % classes


def _weights(points: int, dtype: torch.dtype) -> Tensor:
    """Numbers from 0 to 1 [1, points, 1]."""
    return torch.linspace(0, 1, points, dtype=dtype).view(1, -1, 1)
