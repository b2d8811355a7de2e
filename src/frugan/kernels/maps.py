"""How maps lie in memory and are divided between the programs of a kernel, and how those are told of many tensors."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

TILE = 2048
"""Numbers that a program works on at once: 16 bytes of halves for each of its threads."""
MOST_WIDE = 256
"""Largest number of these that lie side by side in memory."""
WARPS = 8
MOST_PROGRAMS = 1024
"""That write sums, about: a few for each multiprocessor, and few rows to add up."""
OF_ROWS: Mapping[str, int] = MappingProxyType({"BLOCK_R": 32, "BLOCK_C": 32, "num_warps": 4})
"""Rows of sums and channels that a program adds up at once."""
LEAST_SUMMED = 64
"""Pixels that a program sums over at least, where there are as many: rows of sums are then small beside the map."""


class Grid(NamedTuple):
    """How a map [N, C, ..] is divided between programs."""

    pictures: int
    pixels: int  # of a picture; all of a map, where pictures need not be told apart
    channels: int
    last: bool  # channels lie side by side, pixels otherwise
    block_p: int  # pixels of a tile
    block_c: int  # channels of a tile
    loops: int  # tiles of a program, one behind the other

    @property
    def rows(self) -> int:
        """Programs beside each other: rows of sums."""
        return self.pictures * -(-self.pixels // (self.block_p * self.loops))

    @property
    def blocks(self) -> int:
        """Programs for the channels."""
        return -(-self.channels // self.block_c)


def grid_of(x: Tensor, *, apart: bool, summed: bool) -> Grid:
    """By shape and layout alone.

    Args:
        x: [N, C] or [N, C, H, W], in one of the two layouts.
        apart: programs have pixels of one picture each.
        summed: they write sums.
    """
    pictures, channels, pixels = x.shape[0], x.shape[1], x.shape[2:].numel()
    last = is_channels_last(x)
    if last and not apart:
        pictures, pixels = 1, pictures * pixels
    wide = channels if last else pixels
    # pixels side by side: the more channels a program has, the fewer sums over channels there are for the noise
    fast = min(_power(wide), MOST_WIDE if last or not (apart and summed) else MOST_WIDE // 4)
    slow = min(_power(pixels if last else channels), TILE // fast)
    block_p, block_c = (slow, fast) if last else (fast, slow)
    grid = Grid(pictures, pixels, channels, last, block_p, block_c, 1)
    if not summed:
        return grid
    tiles = -(-pixels // block_p)
    programs = max(1, MOST_PROGRAMS // max(1, pictures * grid.blocks))  # of a picture and a block of channels
    return grid._replace(loops=max(-(-tiles // programs), min(tiles, -(-LEAST_SUMMED // block_p)), 1))


def _power(count: int) -> int:
    """The power of 2 that is not below it."""
    return int(1 << max(0, count - 1).bit_length())


def is_channels_last(x: Tensor) -> bool:
    """Whether a map's channels lie side by side, as a vector's do."""
    return x.is_contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.ndim == 2 and x.is_contiguous()


def laid_out(x: Tensor) -> Tensor:
    """[N, C, ..] in one of the two layouts."""
    return x if is_channels_last(x) else x.contiguous()


def laid_out_like(x: Tensor, result: Tensor) -> Tensor:
    """In the layout of what is in one of the two."""
    last = result.ndim == 4 and is_channels_last(result)
    return x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def room_for_sums(result: Tensor, grid: Grid, sums: bool) -> Tensor:
    """Room for sums over pixels."""
    wide = torch.promote_types(result.dtype, torch.float32)
    return result.new_empty(grid.rows if sums else 0, grid.channels, dtype=wide)


def constants_of(grid: Grid, clamp: float | None) -> dict[str, Any]:
    """Constants that a program is compiled for."""
    shape = {"LAST": grid.last, "BLOCK_P": grid.block_p, "BLOCK_C": grid.block_c}
    return {**shape, "CLAMPED": clamp is not None, "num_warps": WARPS}


def table_of(entries: list[list[int]], device: torch.device) -> Tensor:
    """Numbers that programs look up, such as places of tensors: on the device, without a wait for it."""
    pinned = device.type != "cpu"
    return torch.tensor(entries, pin_memory=pinned).to(device, non_blocking=True)
