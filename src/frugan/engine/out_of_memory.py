"""What running out of memory looks like: torch's own error, and those of libraries that ask the driver themselves."""

import gc

import torch

from frugan.errors import TrainingFailed

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
