"""Host memory beside a card: pinned as far as the system lets, so that copies need nobody to wait for them."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from frugan.engine.host_arena import PackedBlock, pack


def zeros_for(parameter: Tensor, *, on_host: bool) -> Tensor:
    """A statistic of a parameter before its first update, in its layout; pinned where a card will copy it."""
    like = parameter.detach()
    if not on_host:
        return torch.zeros_like(like)
    return host_like(parameter, "optimizer state").zero_()


def host_like(tensor: Tensor, what: str) -> Tensor:
    """Host memory for a copy of a tensor, in its layout; pinned beside a card, as far as the system lets.

    Args:
        what: it is for, in the warning where nothing more can be pinned.
    """
    (made,) = host_likes([tensor], what, packed=False)
    return made


def host_likes(tensors: Sequence[Tensor], what: str, *, packed: bool = True) -> list[Tensor]:
    """Host memory for copies of several tensors, in their layouts: views of as few allocations as waste little.

    Args:
        what: they are for, in the warning where nothing more can be pinned.
        packed: False: one allocation for each.
    """
    likes = [tensor.detach() for tensor in tensors]
    if not packed:
        return [_like(like, what, pinned=tensor.is_cuda) for tensor, like in zip(tensors, likes, strict=True)]
    pinned = any(tensor.is_cuda for tensor in tensors)
    made: dict[int, Tensor] = {}
    for block in pack([like.nbytes for like in likes], powers_of_two=pinned):
        made |= _views(block, likes, _allocate(block.size_bytes, what, pinned=pinned))
    return [made[i] for i in range(len(likes))]


def pinned_copy(tensor: Tensor, device: torch.device, what: str) -> Tensor:
    """A host tensor from where a card copies it by itself; as it is where there is no card, or nothing can be pinned.

    Args:
        what: it is, in the warning where nothing more can be pinned.
    """
    if device.type != "cuda":
        return tensor
    try:
        return tensor.pin_memory()
    except RuntimeError as error:
        _warn(error, what)
        return tensor


def beside(kept: Tensor, parameter: Tensor) -> Tensor:
    """A copy on a parameter's device, also where host and device are one; the host does not wait for it."""
    return torch.empty_like(kept, device=parameter.device, pin_memory=False).copy_(kept, non_blocking=True)


def _like(like: Tensor, what: str, *, pinned: bool) -> Tensor:
    if pinned:
        try:
            return torch.empty_like(like, device="cpu", pin_memory=True)
        except RuntimeError as error:
            _warn(error, what)
    return torch.empty_like(like, device="cpu")


def _allocate(size_bytes: int, what: str, *, pinned: bool) -> Tensor:
    if pinned:
        try:
            return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            _warn(error, what)
    return torch.empty(size_bytes, dtype=torch.uint8)


def _views(block: PackedBlock, likes: Sequence[Tensor], memory: Tensor) -> dict[int, Tensor]:
    """Tensors of a block, by number, in the layouts of those they are for."""
    found = {}
    for number, first in zip(block.numbers, block.firsts, strict=True):
        like = likes[number]
        flat = memory[first : first + like.nbytes].view(like.dtype)
        found[number] = flat.as_strided(like.shape, like.stride())
    return found


def _warn(error: RuntimeError, what: str) -> None:
    """Systems limit how much may be pinned; WSL2 to about a gigabyte, and calls it "out of memory"."""
    warnings.warn(
        f"no more host memory can be pinned ({str(error).partition(chr(10))[0]}): {what} lies in pageable memory, and "
        "its way to the card takes about twice as long",
        stacklevel=4,
    )
