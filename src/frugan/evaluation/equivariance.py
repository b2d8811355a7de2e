"""Equivariance: how exactly a generator's pictures move and turn where its coordinates do.

Source: Karras et al. 2021 (arXiv 2106.12423), equation 3 and appendix E.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import prepared_together
from frugan.engine.streams import derive_seed
from frugan.errors import BadInput
from frugan.metrics.equivariance import decibels, rotation_error, translation_error
from frugan.progress import Progress
from frugan.recipe.recipe import Recipe
from frugan.sampling.requests import DrawRequest, known_classes

BY_MOVING = ("eqt", "eqt-frac", "eqr")
"""Metrics of translations by whole pixels, of other translations, and of rotations."""
FARTHEST = 1 / 8
"""Largest translation along an axis, as a share of the picture."""


def refuse_unmovable(metrics: Collection[str], recipe: Recipe) -> None:
    """Refuse to measure what a generator without coordinates cannot have.

    Raises:
        BadInput: naming the metrics.
    """
    wanted = [name for name in BY_MOVING if name in metrics]
    if wanted and not recipe.kind.movable:
        raise BadInput(
            f"--metrics {','.join(wanted)}: {recipe.family} has no coordinates to move, so nothing says what its moved "
            "picture would be (StyleGAN3's paper leaves these scores out for StyleGAN2 too); leave it out"
        )


@torch.no_grad()
def equivariance(
    recipe: Recipe,
    networks: Mapping[str, nn.Module],
    metrics: Collection[str],
    draw: DrawRequest,
    pictures: int,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Decibels of those of `BY_MOVING` that are asked for, and half of the 95 % interval of each.

    Each picture is drawn as it is and, for each metric, with coordinates moved by a random amount of its own; in fp32,
    as half precision has fewer decibels than good generators.

    Raises:
        BadInput: pictures that are not finite, or too small to be turned.
    """
    wanted = [name for name in BY_MOVING if name in metrics]
    errors: dict[str, list[float]] = {name: [] for name in wanted}
    with prepared_together(networks, Layout()):
        try:
            for number in range(pictures):
                random = torch.Generator().manual_seed(derive_seed(draw.seed, "equivariance", number))
                one = replace(draw, seed=derive_seed(draw.seed, "sample latents", number), columns=1, micro_batch=1)
                one = replace(one, classes=[_class(recipe, draw, random)])
                still = _drawn(recipe, networks, one)
                for name in wanted:
                    errors[name].append(_error(recipe, networks, one, name, still, random))
                if progress is not None:
                    progress(number + 1, pictures)
        finally:
            recipe.kind.move(networks, (0.0, 0.0), 0.0)
    scores: dict[str, float] = {}
    for name, found in errors.items():
        score = name.replace("-", "_")
        scores[score], scores[f"{score}_half_width"] = decibels(found)
    return scores


def _class(recipe: Recipe, draw: DrawRequest, random: torch.Generator) -> int:
    among = draw.classes if draw.classes is not None else range(known_classes(recipe))
    return among[int(torch.randint(len(among), (), generator=random))]


def _drawn(
    recipe: Recipe,
    networks: Mapping[str, nn.Module],
    request: DrawRequest,
    translate: tuple[float, float] = (0.0, 0.0),
    rotate: float = 0.0,
) -> Tensor:
    """Picture [C, R, R] of moved coordinates.

    Raises:
        BadInput: it holds values that are not finite.
    """
    recipe.kind.move(networks, translate, rotate)
    picture: Tensor = recipe.kind.sample(recipe.networks, networks, request)[0, 0].float()
    if not bool(torch.isfinite(picture).all()):
        raise BadInput("pictures hold values that are not finite: is the generator diverged?")
    return picture


def _error(
    recipe: Recipe,
    networks: Mapping[str, nn.Module],
    request: DrawRequest,
    name: str,
    still: Tensor,
    random: torch.Generator,
) -> float:
    """Mean squared error of a picture of randomly moved coordinates."""
    right, down = (2 * torch.rand(2, generator=random, dtype=torch.float64) - 1).tolist()
    if name == "eqr":
        degrees = 180 * right
        error = rotation_error(still, _drawn(recipe, networks, request, rotate=degrees), degrees)
        if error is None:
            raise BadInput(f"--metrics eqr: pictures of {recipe.resolution} pixels are too small to be turned; 16 do")
        return error
    side = recipe.resolution
    offset = (right * FARTHEST * side, down * FARTHEST * side)
    if name == "eqt":
        offset = (round(offset[0]), round(offset[1]))
    moved = _drawn(recipe, networks, request, (offset[0] / side, offset[1] / side))
    return translation_error(still, moved, *offset)
