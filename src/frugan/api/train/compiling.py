"""How a run's micro-batches are worked: as the step is written, or compiled where the recipe asks for it."""

import torch

from frugan.api.progress import Say
from frugan.engine.backward import Backward, forward_and_backward
from frugan.engine.compiled_phases import INDUCTOR, CompiledPhases
from frugan.folders import Folders
from frugan.recipe.recipe import Recipe

BACKEND = INDUCTOR


def backward_of(recipe: Recipe, device: torch.device, say: Say, warn: Say) -> Backward:
    """What runs forward and backward of each micro-batch.

    Args:
        say: is given a line for each phase that is compiled.
        warn: is given a line where something is not.
    """
    if not recipe.training.compile:
        return forward_and_backward
    if (missing := missing_compiler(device)) is not None:
        warn(f"training.compile is ignored, steps run without it: {missing}")
        return forward_and_backward
    return CompiledPhases(say, warn, Folders.from_environment().cache / "inductor", BACKEND)


def compiles(recipe: Recipe, device: torch.device) -> bool:
    """Whether a recipe's phases are compiled on a device, and are to be planned so."""
    return recipe.training.compile and missing_compiler(device) is None


def missing_compiler(device: torch.device) -> str | None:
    """What torch.compile would need for a device and is not here; None: nothing."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton_package  # noqa: PLC0415

        if not has_triton_package():
            return "torch.compile makes a card's kernels with Triton, which is not installed: pip install triton"
        if torch.version.cuda is not None and (capability := torch.cuda.get_device_capability(device)) < (7, 0):
            return "Triton needs a card of compute capability 7.0 or newer, not {}.{}".format(*capability)
        return None
    from torch._inductor.cpp_builder import get_cpp_compiler  # noqa: PLC0415  (seconds to import)

    try:
        get_cpp_compiler()
    except (RuntimeError, OSError) as error:  # none is found, or it does not answer
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"torch.compile makes a processor's kernels with a C++ compiler, and found none ({reason})"
    return None
