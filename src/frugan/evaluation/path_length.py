"""Perceptual path length: how much pictures change for a small step in the latent space.

Source: Karras et al. 2019 (arXiv 1812.04948), section 4.1, with the ends of paths of Karras et al. 2020 (arXiv
1912.04958), in features that need no weights in place of VGG's.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from frugan.contract.family import LatentSpace
from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import prepared_together
from frugan.errors import BadInput
from frugan.files import Folders
from frugan.metrics.perceptual import SMALL, choose_distance
from frugan.recipe.recipe import Recipe
from frugan.sampling.explorer import space_of
from frugan.sampling.requests import DrawRequest

STEP = 1e-4
"""Share of the way from one point to the other."""
LEFT_OUT = 0.01
"""Share of the shortest and of the longest paths that the mean leaves out, as StyleGAN's program does."""


@torch.no_grad()
def path_length(
    recipe: Recipe, networks: Mapping[str, nn.Module], draw: DrawRequest, device: torch.device, paths: int
) -> dict[str, float]:
    """Mean length of paths, and half of its 95 % interval.

    Both ends of a path have the same class. Points of a space of styles lie on a line, latents on a great circle.

    Args:
        draw: seed, truncation, classes and noise, and pictures in one forward.

    Raises:
        BadInput: networks without a latent space, or too few paths.
    """
    if paths < 1 / LEFT_OUT:
        raise BadInput(f"--metrics ppl: {paths} paths; expected at least {1 / LEFT_OUT:.0f} --samples")
    distance = choose_distance(SMALL, Folders.from_environment().cache, device)
    lengths: list[Tensor] = []
    with prepared_together(networks, Layout()):  # in fp32: steps are smaller than half precision resolves
        space = space_of(recipe, networks)
        random = torch.Generator().manual_seed(draw.seed)
        for first in range(0, paths, draw.micro_batch):
            start, end, shares = _step(space, draw, min(draw.micro_batch, paths - first), random, device)
            noise = draw.seed + first  # the same for both
            pictures = [
                space.draw(points, shares, draw.noise, torch.Generator().manual_seed(noise)).float()
                for points in (start, end)
            ]
            lengths += [
                distance.to(before[None])(after[None]) / STEP**2 for before, after in zip(*pictures, strict=True)
            ]
    found = torch.cat(lengths).double().cpu().sort().values
    if not bool(torch.isfinite(found).all()):
        raise BadInput("pictures hold values that are not finite: is the generator diverged?")
    kept = found[round(LEFT_OUT * paths) : paths - round(LEFT_OUT * paths)]
    return {"ppl": float(kept.mean()), "ppl_half_width": float(1.96 * kept.std() / len(kept) ** 0.5)}


def _step(
    space: LatentSpace, draw: DrawRequest, count: int, random: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Points [count, layers, size], those a step further, and class shares [count, classes]."""
    shares = None
    if space.classes:
        among = torch.tensor(draw.classes if draw.classes is not None else range(space.classes))
        labels = among[torch.randint(len(among), (count,), generator=random)]
        shares = nn.functional.one_hot(labels, space.classes).float().to(device)
    latents = torch.randn(2, count, space.latent_size, generator=random) * draw.truncation
    start, end = (space.place(part.to(device), shares).float() for part in latents)  # [count, size] each
    moved = torch.lerp(start, end, STEP) if space.mean is not None else _along_circle(start, end)
    ways = (points[:, None].repeat(1, space.layers, 1) for points in (start, moved))
    return *ways, None if space.class_free else shares  # type: ignore[return-value]


def _along_circle(start: Tensor, end: Tensor) -> Tensor:
    """Points [N, size] turned a step towards others, of their own length."""
    length = start.norm(dim=1, keepdim=True)
    one, other = start / length, end / end.norm(dim=1, keepdim=True)
    cosine = (one * other).sum(1, keepdim=True)
    aside = other - cosine * one
    aside = aside / aside.norm(dim=1, keepdim=True).clamp(min=1e-12)
    angle = STEP * torch.acos(cosine.clamp(-1, 1))
    turned: Tensor = length * (one * angle.cos() + aside * angle.sin())
    return turned
