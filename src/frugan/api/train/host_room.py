"""What no plan can make smaller: what this computer's own memory does not hold, or the disk of a run."""

import shutil
from pathlib import Path

from frugan.api.machine.host_memory import host_bytes
from frugan.api.plan.network_costs import parameter_counts
from frugan.data.wording import size
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe

FP32_BYTES = 4
LEAST_COPIES = 2
"""Of every parameter in a checkpoint: itself, and the one number of the optimizer that keeps least."""
EVENTS_BYTES = 1 << 16
"""Room for what is written before the first checkpoint."""


def refuse_too_large(recipe: Recipe) -> None:
    """Refuse, before anything is read, what could only end in the system killing the process.

    Raises:
        BadInput: the networks as they are built, or the pictures of one batch, take more than a process here may.
    """
    has = host_bytes()
    if has is None:
        return
    samples = [need.sample_bytes for need in recipe.kind.sources(recipe.networks, recipe.objective).values()]
    batch = recipe.training.batch
    if (pictures := batch * max(samples, default=0)) > has:
        raise BadInput(
            f"training.batch = {batch:,}: the pictures of one batch take {size(pictures)}, and there are "
            f"{size(has)} of memory here; choose a smaller batch"
        )
    parameters = sum(parameter_counts(recipe).values())
    if parameters * FP32_BYTES > has:
        raise BadInput(
            f"networks of {parameters:,} parameters take {size(parameters * FP32_BYTES)} as they are built, and there "
            f"are {size(has)} of memory here; choose narrower ones (frugan plan says what fits)"
        )


def refuse_full_disk(recipe: Recipe, run: Path) -> None:
    """Refuse to begin what could not be saved.

    Args:
        run: folder of the run; need not be there.

    Raises:
        BadInput: its disk has no room for one checkpoint.
    """
    there = next((folder for folder in (run.absolute(), *run.absolute().parents) if folder.is_dir()), None)
    if there is None:
        return
    needed = sum(parameter_counts(recipe).values()) * FP32_BYTES * LEAST_COPIES + EVENTS_BYTES
    free = shutil.disk_usage(there).free
    if free < needed:
        raise BadInput(
            f"{run}: its disk has {size(free)} free, and the first checkpoint takes at least {size(needed)}; free some "
            "room, or choose another --out"
        )
