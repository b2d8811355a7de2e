"""What running out of memory looks like: torch's own error, and those of libraries that ask the driver themselves."""

import torch

_WORDS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "CUDA error: out of memory")


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device has no memory left."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)
