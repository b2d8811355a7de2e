"""What the engine asks of a device: how it multiplies, how it is waited for, and how it says that memory ran out."""

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from frugan.errors import TrainingFailed

FORCED = "NVIDIA_TF32_OVERRIDE"
"""Read by NVIDIA's libraries themselves: 1 and 0 overrule every program."""
DEFAULT = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
"""Read by torch, as the default of matrix products; set in NVIDIA's containers."""


def disable_reduced_precision() -> None:
    """Let half-precision products add up in fp32, and fp32 ones keep their digits, in this process.

    Torch's own defaults allow sums in half precision, and TF32 in convolutions: its three digits are too few where
    nearly equal products are subtracted (DSSIM, statistics). Who wants speed has half precision.

    Torch has two sets of names for this, and refuses to answer for the older where only the newer was set; the older
    sets both.
    """
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def tf32_decision(capability: tuple[int, int], environment: Mapping[str, str] = os.environ) -> str | None:
    """A line that says what was decided, and what the environment makes of it; None: the card knows no TF32."""
    if capability < (8, 0):
        return None
    if environment.get(FORCED) == "1":
        return (
            f"TF32: on, in all fp32 products and convolutions, because {FORCED}=1 in this environment overrules "
            "frugan: fp32 has three digits here, in losses and statistics as well; unset it"
        )
    line = f"TF32: off, in products and convolutions: fp32 keeps all its digits; {FORCED}=1 would force it on"
    if environment.get(DEFAULT) == "1":
        line += f" ({DEFAULT}=1 in this environment asks for it, and is overruled)"
    return line


def queued_so_far(device: torch.device) -> torch.cuda.Event:
    """An event behind everything on a card's current stream; who waits for it sleeps.

    Torch's own events keep a processor busy while one waits, which the threads that read pictures could use.
    """
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(device))
    return event


_CERTAIN = (
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DEVICE_ALLOCATION_FAILED",  # the end of what cuDNN 9 says: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
)
_WHERE_LITTLE_IS_FREE = (
    "CUBLAS_STATUS_NOT_INITIALIZED",  # its handle is made at the first product, outside torch's allocator
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "unable to find an engine",  # no algorithm of a convolution whose workspace could be had
)
"""What a library says that got no memory, and that has other causes as well."""

LITTLE_BYTES = 512 * 2**20
"""More than a library takes for its handle, or a convolution of the networks that ship for its workspace."""
LITTLE_SHARE = 0.05


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device has no memory left. One that may mean it does where little is free."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError) or isinstance(error, TrainingFailed):  # that one has been judged
        return False
    message = str(error)
    return any(word in message for word in _CERTAIN) or (
        any(word in message for word in _WHERE_LITTLE_IS_FREE) and _little_is_free()
    )


@contextmanager
def out_of_memory_noted() -> Iterator[list[str]]:
    """Go on behind the block where memory runs out in it: its message is then in the list. Other errors pass."""
    messages: list[str] = []
    try:
        yield messages
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        messages.append(str(error))


def release_memory(device: torch.device) -> None:
    """Give back what nothing holds any more. Outside the error's handler: its frames hold what has to go."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _little_is_free() -> bool:
    """Whether the current card has little left for this process: of its own memory, or of what it is capped to."""
    if not torch.cuda.is_available():
        return False
    try:
        free, whole = torch.cuda.mem_get_info()
        reserved = torch.cuda.memory_reserved()
        capped = int(torch.cuda.get_per_process_memory_fraction() * whole) - reserved
        usable = min(free, capped) + reserved - torch.cuda.memory_allocated()
    except RuntimeError:  # a card that has failed for good answers nothing any more
        return False
    return usable < max(LITTLE_BYTES, int(LITTLE_SHARE * whole))
