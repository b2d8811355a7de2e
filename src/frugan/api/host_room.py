"""What no plan can make smaller: networks and batches that this computer's own memory does not hold."""

import os

from frugan.data.wording import size
from frugan.errors import BadInput
from frugan.phase import DataNeeds
from frugan.recipe import Recipe

FP32_BYTES = 4


def host_bytes() -> int | None:
    """Return the memory of this computer; None where the system does not say (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def refuse_too_large(recipe: Recipe) -> None:
    """Refuse, before anything is read, what could only end in the system killing the process.

    Raises:
        BadInput: the networks as they are built, or the pictures of one batch, take more than this computer has.
    """
    has = host_bytes()
    if has is None:
        return
    pixels = [
        3 * need.resolution**2
        for need in recipe.kind.sources(recipe.networks, recipe.objective).values()
        if isinstance(need, DataNeeds)
    ]
    batch = recipe.training.batch
    if (pictures := batch * max(pixels, default=0)) > has:
        raise BadInput(
            f"training.batch = {batch:,}: the pictures of one batch take {size(pictures)}, and this computer has "
            f"{size(has)} of memory; choose a smaller batch"
        )
    networks = recipe.kind.build(recipe.networks, "meta").values()
    parameters = sum(parameter.numel() for network in networks for parameter in network.parameters())
    if parameters * FP32_BYTES > has:
        raise BadInput(
            f"networks of {parameters:,} parameters take {size(parameters * FP32_BYTES)} as they are built, and this "
            f"computer has {size(has)} of memory; choose narrower ones (frugan plan says what fits)"
        )
