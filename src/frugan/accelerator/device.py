"""How devices multiply, how many cores there are, and how a device says that its memory ran out."""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch

from frugan.accelerator.base import card_has_tf32
from frugan.accelerator.choice import accelerator_of, out_of_memory_by_words
from frugan.errors import TrainingFailed

FORCED = "NVIDIA_TF32_OVERRIDE"
"""Read by NVIDIA's libraries themselves: 1 and 0 overrule every program."""
DEFAULT = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
"""Read by torch, as the default of matrix products; set in NVIDIA's containers."""


def disable_reduced_precision(*, tf32: bool = False) -> None:
    """Let half-precision products add up in fp32, and fp32 ones keep their digits, in this process.

    Args:
        tf32: fp32 products and convolutions may yet be made of three digits, where a card does so.

    Torch's own defaults allow sums in half precision, and TF32 in convolutions: its three digits are too few where
    nearly equal products are subtracted (DSSIM, statistics). Who wants speed has half precision, or asks for TF32.

    Torch has two sets of names for this, and refuses to answer for the older where only the newer was set; the older
    sets both.
    """
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def tf32_decision(
    capability: tuple[int, int] | None, environment: Mapping[str, str] = os.environ, *, wanted: bool = False
) -> str | None:
    """A line that says what was decided, and what the environment makes of it; None: no card, or one without TF32.

    Args:
        wanted: the recipe asks for it.
    """
    if not card_has_tf32(capability):
        return None
    if wanted and environment.get(FORCED) == "0":
        return f"TF32: off, as {FORCED}=0 in this environment overrules training.tf32=true; unset it"
    if wanted:
        return (
            "TF32: on, in products and convolutions of fp32, in losses and statistics as well: they have three digits "
            "(training.tf32=true)"
        )
    if environment.get(FORCED) == "1":
        return (
            f"TF32: on, in all fp32 products and convolutions, because {FORCED}=1 in this environment overrules "
            "frugan: fp32 has three digits here, in losses and statistics as well; unset it"
        )
    line = "TF32: off, in products and convolutions: fp32 keeps all its digits; training.tf32=true switches it on"
    if environment.get(DEFAULT) == "1":
        line += f" ({DEFAULT}=1 in this environment asks for it, and is overruled)"
    return line


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that a device has no memory left; an ambiguous one does if little is free."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError) or isinstance(error, TrainingFailed):  # that one has been judged
        return False
    return out_of_memory_by_words(str(error))


@contextmanager
def catch_out_of_memory() -> Iterator[list[str]]:
    """Go on behind the block where memory runs out in it: its message is then in the list. Other errors pass."""
    messages: list[str] = []
    try:
        yield messages
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        messages.append(str(error))


@contextmanager
def raise_out_of_memory_as(message: Callable[[str], str]) -> Iterator[None]:
    """Where memory runs out inside, end with a message for people, made of torch's own. Other errors pass.

    Raises:
        TrainingFailed: it did.
    """
    try:
        yield
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        raise TrainingFailed(message(str(error))) from None


def release_memory(device: torch.device) -> None:
    """Give back what nothing holds any more. Outside the error's handler: its frames hold what has to go."""
    gc.collect()
    accelerator_of(device).give_back()


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def no_retry(doing: str) -> AbstractContextManager[None]:
    """Memory that runs out inside cannot be mended by a repetition: a part of the update has moved.

    Raises:
        TrainingFailed: it did.
    """
    return raise_out_of_memory_as(
        lambda reason: (
            f"memory ran out in the midst of {doing}, which cannot be repeated: resume from the last "
            f"checkpoint with a smaller --memory ({reason})"
        )
    )
