"""What tensors take, counted by hand."""

from collections.abc import Iterable

from torch import Tensor

from frugan.stepmemory.allocator import rounded


def storages_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind tensors, each counted once, rounded as the allocator does."""
    storages = {id(s): s for s in (tensor.untyped_storage() for tensor in tensors)}
    return sum(rounded(s.nbytes()) for s in storages.values())
