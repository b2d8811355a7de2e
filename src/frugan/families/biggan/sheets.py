"""Sheets of samples: classes by row, and interpolations."""

from typing import cast

import torch
from torch import Tensor

from frugan.contract.phase import Networks
from frugan.contract.samples import SheetRequest
from frugan.errors import BadInput
from frugan.families.biggan.generator import Generator


def _line(start: Tensor, end: Tensor, points: int) -> Tensor:
    """Straight line between two sets of vectors: [N, K], [N, K] -> [N, points, K], ends included."""
    weight = torch.linspace(0, 1, points, dtype=start.dtype).view(1, -1, 1)
    return torch.lerp(start[:, None], end[:, None], weight)


def _arc(start: Tensor, end: Tensor, points: int) -> Tensor:
    """Along the great circle between two sets of vectors, lengths in a straight line: [N, K], [N, K] -> [N, points, K].

    A straight line passes nearer to the origin than latents of a normal distribution ever are.

    Source: White 2016 (arXiv 1609.04468), section 2.1.
    """
    lengths = [each.norm(dim=1, keepdim=True) for each in (start, end)]  # [N, 1]
    one, other = (each / length.clamp(min=1e-12) for each, length in zip((start, end), lengths, strict=True))
    angle = (one * other).sum(1, keepdim=True).clamp(-1, 1).acos()[:, None]  # [N, 1, 1]
    weight = torch.linspace(0, 1, points, dtype=start.dtype).view(1, -1, 1)
    turned = ((1 - weight) * angle).sin() * one[:, None] + (weight * angle).sin() * other[:, None]
    direction = torch.where(angle > 1e-6, turned / angle.sin().clamp(min=1e-12), one[:, None])
    return direction * _line(lengths[0], lengths[1], points)


@torch.no_grad()
def sample(networks: Networks, classes: int, request: SheetRequest) -> Tensor:
    """Generate a sheet [rows, columns, C, R, R] in [-1, 1], fp32 on the host, `micro_batch` pictures at a time.

    Without interpolation each row is a class and each picture has its own latent. An interpolation's rows go in a
    straight line (or latents along an arc), ends included, from one class to another (one latent), one latent to
    another (one class), or both.

    Raises:
        BadInput: styles nearer to the mean one are asked for: there are none.
    """
    if request.psi != 1:
        raise BadInput(f"psi {request.psi:g}: BigGAN has no styles; truncation makes its latents shorter")
    generator = cast(Generator, networks["G"])
    device = next(generator.buffers()).device
    random = torch.Generator().manual_seed(request.seed)

    def latents(*shape: int) -> Tensor:
        return torch.randn(*shape, generator.latent_size, generator=random) * request.truncation

    def conditions(labels: Tensor) -> Tensor:
        return generator.mixable(labels.to(device)).float().cpu()

    columns = request.columns
    if request.interpolate is None:
        rows = list(request.classes) if request.classes is not None else list(range(min(classes, 10)))
        z = latents(len(rows), columns)  # [rows, columns, Z]
        y = conditions(torch.tensor(rows))[:, None].expand(-1, columns, -1)
    else:
        rows_at = _interpolation_classes(request, classes, random)  # [2, rows]
        count = rows_at.shape[1]
        z_start, z_end = latents(2, count)
        if request.interpolate == "class":
            z_end = z_start
        if request.interpolate == "latent":
            rows_at[1] = rows_at[0]
        z = (_arc if request.spherical else _line)(z_start, z_end, columns)
        y = _line(conditions(rows_at[0]), conditions(rows_at[1]), columns)
    pictures: list[Tensor] = [
        generator(part_z.to(device), part_y.to(device)).cpu()
        for part_z, part_y in zip(
            z.flatten(0, 1).split(request.micro_batch), y.flatten(0, 1).split(request.micro_batch), strict=True
        )
    ]
    sheet = torch.cat(pictures)  # [rows*columns, C, R, R]
    return sheet.view(*z.shape[:2], *sheet.shape[1:])


def _interpolation_classes(request: SheetRequest, classes: int, random: torch.Generator) -> Tensor:
    """Classes at both ends of each row: the requested ones in turn, or random ones, the two ends different."""
    if request.classes is not None:
        start = torch.tensor(request.classes)
        return torch.stack([start, start.roll(-1)])
    start = torch.randint(classes, (request.rows,), generator=random)
    if classes == 1:
        return torch.stack([start, start])
    return torch.stack([start, (start + torch.randint(1, classes, (request.rows,), generator=random)) % classes])
