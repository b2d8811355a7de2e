"""Sheets of samples: rows of pictures, and interpolations between styles."""

from typing import cast

import torch
from torch import Tensor

from frugan.errors import BadInput
from frugan.families.stylegan2.generator import Generator
from frugan.phase import Networks, SheetRequest

MOST_ROWS = 10
"""Classes that are shown where none are asked for."""


@torch.no_grad()
def sample(networks: Networks, classes: int | None, request: SheetRequest) -> Tensor:
    """Generate a sheet [rows, columns, C, R, R] in [-1, 1], fp32 on the host, `micro_batch` pictures at a time.

    Layers add their own constant noise, so that a latent always gives the same picture. Without interpolation each
    row is a class (without classes: `rows` rows, or as many as zeros are asked for) and each picture has its own
    latent. An interpolation goes in a straight line from style to style, ends included; along an arc of latents where
    the request is spherical.

    Raises:
        BadInput: classes are asked for that the networks do not know; latents of another standard deviation.
    """
    if request.truncation != 1:
        raise BadInput(
            f"truncation {request.truncation:g}: scales latents, whose length StyleGAN2 takes no notice of; "
            "psi moves its styles towards the mean one"
        )
    if classes is None and any(request.classes or ()):
        raise BadInput("classes: these networks were made without (networks.classes is none)")
    generator = cast(Generator, networks["G"])
    device = next(generator.buffers()).device
    random = torch.Generator().manual_seed(request.seed)
    styles = (
        _rows(generator, classes, request, random)
        if request.interpolate is None
        else (_interpolations(generator, classes, request, random))
    )  # [rows, columns, style]
    parts = styles.flatten(0, 1).split(request.micro_batch)
    pictures = [
        generator.synthesis(generator.broadcast(part.to(device), request.psi, request.psi_layers)).float().cpu()
        for part in parts
    ]
    sheet = torch.cat(pictures).clamp(-1, 1)  # [rows*columns, C, R, R]
    return sheet.view(*styles.shape[:2], *sheet.shape[1:])


def _map(generator: Generator, z: Tensor, labels: Tensor | None) -> Tensor:
    """Latents [N, latent] and classes [N] to styles [N, style] on the host."""
    device = next(generator.buffers()).device
    w = generator.mapping(z.to(device), None if labels is None else labels.to(device))
    return cast(Tensor, w.float().cpu())


def _rows(generator: Generator, classes: int | None, request: SheetRequest, random: torch.Generator) -> Tensor:
    """Styles [rows, columns, style] of a latent for each picture."""
    columns, labels = request.columns, None
    if classes is None:
        rows = len(request.classes) if request.classes is not None else request.rows
    else:
        shown = list(request.classes) if request.classes is not None else list(range(min(classes, MOST_ROWS)))
        rows, labels = len(shown), torch.tensor(shown).repeat_interleave(columns)
    z = torch.randn(rows * columns, generator.latent_size, generator=random)
    return _map(generator, z, labels).view(rows, columns, -1)


def _interpolations(
    generator: Generator, classes: int | None, request: SheetRequest, random: torch.Generator
) -> Tensor:
    """Styles [rows, columns, style] from one to another: of another latent, another class, or both."""
    if classes is None and request.interpolate == "class":
        raise BadInput('interpolate "class": these networks were made without classes; "latent" is what there is')
    start, end = _ends(classes, request, random)  # labels [rows] each, or None
    rows, columns = (len(start) if start is not None else request.rows), request.columns
    z_start, z_end = torch.randn(2, rows, generator.latent_size, generator=random)
    if request.interpolate == "class":
        z_end = z_start
    if request.interpolate == "latent":
        end = start
    weight = torch.linspace(0, 1, columns)[None, :, None]  # [1, columns, 1]
    if request.spherical:
        z = _arc(z_start, z_end, weight).flatten(0, 1)  # [rows*columns, latent]
        ends = [
            _map(generator, z, None if labels is None else labels.repeat_interleave(columns)).view(rows, columns, -1)
            for labels in (start, end)
        ]
        return torch.lerp(ends[0], ends[1], weight)
    return torch.lerp(_map(generator, z_start, start)[:, None], _map(generator, z_end, end)[:, None], weight)


def _arc(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """Along the great circle from latents [N, K] to others; the mapping takes no notice of their lengths."""
    one, other = (torch.nn.functional.normalize(each, dim=1) for each in (start, end))
    angle = (one * other).sum(1).clamp(-1, 1).acos()[:, None, None]  # [N, 1, 1]
    turned = ((1 - weight) * angle).sin() * one[:, None] + (weight * angle).sin() * other[:, None]
    return torch.where(angle > 1e-6, turned / angle.sin().clamp_min(1e-12), one[:, None])


def _ends(classes: int | None, request: SheetRequest, random: torch.Generator) -> tuple[Tensor | None, Tensor | None]:
    """Classes at both ends of each row: the requested ones in turn, or random ones, the two ends different."""
    if classes is None:
        return None, None
    if request.classes is not None:
        start = torch.tensor(list(request.classes))
        return start, start.roll(-1)
    start = torch.randint(classes, (request.rows,), generator=random)
    return start, (start + torch.randint(1, classes, (request.rows,), generator=random)) % classes
