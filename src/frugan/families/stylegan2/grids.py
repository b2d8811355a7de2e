"""Grids of samples: rows of pictures, interpolations between styles, and mixed styles."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from frugan.contract.family import GridRequest, StyleMixing, spread
from frugan.contract.phase import Networks
from frugan.errors import BadInput
from frugan.families.stylegan2.config import StyledNetworks
from frugan.families.stylegan2.mapping import StyledGenerator
from frugan.nn.latents import arc, class_ends, line


def seeded_latents(seeds: Sequence[int], size: int) -> Tensor:
    """Latents [N, size] of seeds from 0 to 2^32 - 1, in fp32, drawn as NVlabs' programs do: in float64, one by one."""
    drawn = [np.random.RandomState(seed).randn(1, size) for seed in seeds]
    return torch.from_numpy(np.concatenate(drawn)).float()


def interpolations(
    generator: StyledGenerator, classes: int | None, request: GridRequest, random: torch.Generator
) -> Tensor:
    """Styles [rows, columns, style] on the host, whose rows go to another latent, another class, or both.

    Raises:
        BadInput: the networks know no classes to go between, or the row is to go by seeds.
    """
    if classes is None and request.interpolate == "class":
        raise BadInput('interpolate "class": these networks were made without classes; "latent" is what there is')
    if request.seeds:
        raise BadInput("seeds: rows that go by them are drawn from the latent space; see frugan.explore")
    start = end = None  # labels [rows] each
    if classes is not None:
        start, end = class_ends(request.classes, request.rows, classes, random)
    rows, columns = (len(start) if start is not None else request.rows), request.columns
    z_start, z_end = torch.randn(2, rows, generator.latent_size, generator=random)
    if request.interpolate == "class":
        z_end = z_start
    if request.interpolate == "latent":
        end = start
    if request.spherical:
        z = arc(z_start, z_end, columns, unit=True).flatten(0, 1)  # [rows*columns, latent]
        ends = [
            generator.styles_of(z, None if labels is None else labels.repeat_interleave(columns)).view(
                rows, columns, -1
            )
            for labels in (start, end)
        ]
        return torch.lerp(ends[0], ends[1], torch.linspace(0, 1, columns)[None, :, None])
    return line(generator.styles_of(z_start, start), generator.styles_of(z_end, end), columns)


@torch.no_grad()
def sample(networks: Networks, config: StyledNetworks, request: GridRequest) -> Tensor:
    """Generate a grid [rows, columns, C, R, R] in [-1, 1], fp32 on the host, `micro_batch` pictures at a time.

    Unless the request says otherwise, layers add their own constant noise, so that a latent always gives the same
    picture. Without interpolation each row is a class (without classes there are `rows` rows, or as many as `classes`
    has zeros), and each picture has its own latent, or each column that of its seed. An interpolation goes in a
    straight line from style to style, ends included, or along an arc of latents where the request is spherical.

    Raises:
        BadInput: the networks do not know the classes or layers of the request; or it asks for a truncation.
    """
    if request.truncation != 1:
        raise BadInput(
            f"truncation {request.truncation:g}: scales latents, of whose length StyleGAN takes no notice; "
            "psi moves its styles towards the mean one"
        )
    if config.classes is None and any(request.classes or ()):
        raise BadInput("classes: these networks were made without (networks.classes is none)")
    generator = cast(StyledGenerator, networks["G"])
    random = torch.Generator().manual_seed(request.seed)
    if request.mixing is not None:
        return _mixed(generator, config, request, request.mixing, random)
    styles = (
        _rows(generator, config.classes, request, random)
        if request.interpolate is None
        else interpolations(generator, config.classes, request, random)
    )  # [rows, columns, style]
    ws = _broadcast(generator, styles.flatten(0, 1), request)
    grid = _render(generator, ws, request, random)  # [rows*columns, C, R, R]
    return grid.view(*styles.shape[:2], *grid.shape[1:])


def _broadcast(generator: StyledGenerator, styles: Tensor, request: GridRequest) -> Tensor:
    """Styles [N, style] on the host -> one for each layer, at the request's psi [N, styles, style]."""
    device = next(generator.buffers()).device
    return generator.broadcast(styles.to(device), request.psi, request.psi_layers)


def _render(generator: StyledGenerator, ws: Tensor, request: GridRequest, random: torch.Generator) -> Tensor:
    """Styles [N, styles, style] -> pictures [N, C, R, R] on the host."""
    parts = ws.split(request.micro_batch)
    return torch.cat([generator.draw(part, request.noise, random).float().cpu() for part in parts]).clamp(-1, 1)


def _rows(generator: StyledGenerator, classes: int | None, request: GridRequest, random: torch.Generator) -> Tensor:
    """Styles [rows, columns, style] of a latent for each picture, or of a seed for each column."""
    columns, labels = len(request.seeds) or request.columns, None
    if classes is None:
        rows = len(request.classes) if request.classes is not None else 1 if request.seeds else request.rows
    else:
        shown = list(request.classes if request.classes is not None else spread(range(classes), request.rows))
        rows, labels = len(shown), torch.tensor(shown).repeat_interleave(columns)
    if request.seeds:
        z = seeded_latents(request.seeds, generator.latent_size).repeat(rows, 1)
    else:
        z = torch.randn(rows * columns, generator.latent_size, generator=random)
    return generator.styles_of(z, labels).view(rows, columns, -1)


def _mixed(
    generator: StyledGenerator,
    config: StyledNetworks,
    request: GridRequest,
    mixing: StyleMixing,
    random: torch.Generator,
) -> Tensor:
    """Draw a grid [rows + 1, columns + 1, C, R, R] of mixed styles, below and beside the pictures that they come from.

    Raises:
        BadInput: a layer does not exist, or there are several classes.
    """
    if wrong := [layer for layer in mixing.layers if not 0 <= layer < config.styles]:
        raise BadInput(
            f"layers {', '.join(map(str, wrong))}: expected 0 to {config.styles - 1}; at {config.resolution} pixels "
            f"{config.styles} layers take a style"
        )
    chosen = list(request.classes or [0])
    if len(chosen) > 1:
        raise BadInput(f"classes {', '.join(map(str, chosen))}: styles are mixed within one class; expected one")
    count, width = len(mixing.rows), len(mixing.columns)
    z = seeded_latents((*mixing.rows, *mixing.columns), generator.latent_size)
    labels = None if config.classes is None else torch.full((len(z),), chosen[0])
    rows, columns = _broadcast(generator, generator.styles_of(z, labels), request).split([count, width])
    taken = torch.zeros(config.styles, 1, dtype=torch.bool, device=rows.device)
    taken[list(mixing.layers)] = True
    mixed = torch.where(taken, columns[None], rows[:, None])  # [rows, columns, styles, style]
    drawn = _render(generator, torch.cat([columns, rows, mixed.flatten(0, 1)]), request, random)
    above, beside, inside = drawn.split([width, count, count * width])
    corner = torch.full_like(above[:1], -1)
    left = torch.cat([corner, beside])[:, None]  # [rows + 1, 1, C, R, R]
    right = torch.cat([above[None], inside.unflatten(0, (count, width))])  # [rows + 1, columns, C, R, R]
    return torch.cat([left, right], 1)
