"""Rows of styles from one to another."""

import torch
from torch import Tensor

from frugan.contract.samples import SheetRequest
from frugan.errors import BadInput
from frugan.families.stylegan2.generator import Generator
from frugan.families.stylegan2.seeds import seeded_latents


def interpolations(generator: Generator, classes: int | None, request: SheetRequest, random: torch.Generator) -> Tensor:
    """Styles [rows, columns, style] on the host, from one to another: of another latent, another class, or both.

    Raises:
        BadInput: between classes of networks without, or between classes and seeds at once.
    """
    if classes is None and request.interpolate == "class":
        raise BadInput('interpolate "class": these networks were made without classes; "latent" is what there is')
    if request.seeds:
        return _by_stations(generator, classes, request)
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
            generator.styles_of(z, None if labels is None else labels.repeat_interleave(columns)).view(
                rows, columns, -1
            )
            for labels in (start, end)
        ]
        return torch.lerp(ends[0], ends[1], weight)
    return torch.lerp(generator.styles_of(z_start, start)[:, None], generator.styles_of(z_end, end)[:, None], weight)


def _by_stations(generator: Generator, classes: int | None, request: SheetRequest) -> Tensor:
    """Styles [rows, columns, style] that go by those of the seeds, in straight lines; a row for each class."""
    if request.interpolate != "latent" or request.spherical:
        raise BadInput("seeds: are gone between in straight lines of styles; leave --interpolate and --spherical out")
    if len(request.seeds) < 2:
        raise BadInput(f"seeds {request.seeds[0]}: one picture; an interpolation goes between two or more")
    z = seeded_latents(request.seeds, generator.latent_size)
    chosen = list(request.classes or [0])
    labels = None if classes is None else torch.tensor(chosen).repeat_interleave(len(z))
    stations = generator.styles_of(z.repeat(len(chosen), 1), labels).view(len(chosen), len(z), -1)
    place = torch.linspace(0, len(z) - 1, request.columns)
    before = place.floor().long().clamp(max=len(z) - 2)  # [columns]
    return torch.lerp(stations[:, before], stations[:, before + 1], (place - before)[None, :, None])


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
