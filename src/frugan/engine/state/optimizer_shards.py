"""Optimizer state shared out over ranks: each keeps the statistics of a slice of every parameter, and moves that.

All ranks have the same gradients, whole; each moves its slices, and then all gather the slices of the others. The
arithmetic of an element is what it was, so that the result is bit for bit that of whole states.

Source: Rajbhandari et al. 2019 (arXiv 1910.02054), ZeRO stage 1.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from frugan.engine.state.working_weights import memory_of
from frugan.torch_internals import foreach_copy_
from frugan.wording import MIB

SMALLEST_ELEMENTS = 1 << 10
"""Parameters with fewer elements are updated by every rank, as a message would cost more."""
ALIGNED = 64
"""Elements; slices begin at multiples, so that vectors of a processor end where they did."""
BUCKET_BYTES = 64 * MIB
"""Tensors are copied together to travel, up to so much (slices: counted over all ranks): on a card it is memory besides
the gradients. What is larger travels from where it lies."""

AllGather = Callable[[Tensor, Tensor], None]
"""(out [ranks · n], own [n]): fills `out` with every rank's own."""


@dataclass(frozen=True)
class Shard:
    """Number of this rank among those that share out parameters by slices."""

    rank: int  # number of this rank
    size: int  # number of ranks
    # gathers over ranks; None: the others do not exist, and their slices stay as they are
    all_gather: AllGather | None = None


@dataclass(frozen=True)
class Slice:
    """This rank's slice of a parameter."""

    master: nn.Parameter  # the parameter
    # its elements that this rank moves, as they lie in memory [n]; or the parameter itself, where all move it
    own: nn.Parameter
    first: int = 0  # element with which it begins
    length: int = 0  # elements of every rank's slice but the last, which may be shorter

    @property
    def is_whole(self) -> bool:
        """Return whether every rank updates the whole parameter."""
        return self.own is self.master

    def of(self, like: Tensor) -> Tensor:
        """Return a view of this slice of a tensor of the parameter's shape and layout."""
        return memory_of(like)[self.first : self.first + self.own.numel()]


@dataclass
class OptimizerShards:
    """One rank's slices of an optimizer's parameters."""

    shard: Shard  # this rank
    slices: tuple[Slice, ...]  # slice of every parameter, in order
    # number of a parameter, and slot -> the whole statistic on the host: while a checkpoint is written, and from when
    # one was read until all ranks have their slices of it
    whole: dict[tuple[int, str], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter], shard: Shard) -> "OptimizerShards":
        """Take slices of parameters that are on their device, in their layouts."""
        return cls(shard, tuple(_slice(parameter, shard) for parameter in parameters))

    def lend_gradients(self) -> None:
        """Give slices the gradients of their parameters."""
        for piece in self.slices:
            if not piece.is_whole:
                piece.own.grad = (
                    None if piece.master.grad is None else piece.of(_laid_out(piece.master, piece.master.grad))
                )

    def release(self) -> None:
        """Clear the gradients of slices."""
        for piece in self.slices:
            if not piece.is_whole:
                piece.own.grad = None

    @torch.no_grad()
    def gather(self) -> None:
        """Put all ranks' slices of the parameters that have a gradient into the parameters."""
        for bucket in _buckets(
            [piece for piece in self.slices if not piece.is_whole and piece.master.grad is not None]
        ):
            self._gather(bucket)

    def _gather(self, bucket: list["_Segment"]) -> None:
        size = self.shard.size
        values = torch.cat([segment.padded(self.shard.rank) for segment in bucket])
        out = torch.empty(size * values.numel(), dtype=values.dtype, device=values.device)
        if self.shard.all_gather is None:
            return
        self.shard.all_gather(out, values)
        into: list[Tensor] = []
        slices: list[Tensor] = []
        for rank, theirs in enumerate(out.view(size, -1)):
            for segment, values in zip(bucket, theirs.split([segment.length for segment in bucket]), strict=True):
                place = segment.place(rank)
                into.append(place)
                slices.append(values[: place.numel()])
        foreach_copy_(into, slices)


@dataclass(frozen=True)
class _Segment:
    """Elements of every rank's slice of one parameter that travel together."""

    flat: Tensor  # the parameter's memory
    slice_length: int  # elements of a slice
    offset: int  # first element in every slice
    length: int  # elements of every slice

    def place(self, rank: int) -> Tensor:
        """View of a rank's elements; the last rank may have fewer."""
        first = rank * self.slice_length + self.offset
        return self.flat[first : min(first + self.length, (rank + 1) * self.slice_length)]

    def padded(self, rank: int) -> Tensor:
        """Return a rank's elements, padded with zeros to the length of all others."""
        place = self.place(rank)
        missing = self.length - place.numel()
        return place if not missing else torch.cat([place, place.new_zeros(missing)])


def _buckets(slices: Sequence[Slice]) -> Iterator[list[_Segment]]:
    bucket: list[_Segment] = []
    dtype, room = None, 0
    for piece in slices:
        flat = memory_of(piece.master.detach())
        size = -(-flat.numel() // piece.length)
        most = max(ALIGNED, BUCKET_BYTES // (size * flat.element_size()))
        for offset in range(0, piece.length, most):
            length = min(most, piece.length - offset)
            if bucket and (length > room or flat.dtype != dtype):
                yield bucket
                bucket = []
            if not bucket:
                dtype, room = flat.dtype, most
            bucket.append(_Segment(flat, piece.length, offset, length))
            room -= length
    if bucket:
        yield bucket


def _slice(parameter: nn.Parameter, shard: Shard) -> Slice:
    count, size = parameter.numel(), shard.size
    length = -(-count // (size * ALIGNED)) * ALIGNED
    if count < SMALLEST_ELEMENTS or length * (size - 1) >= count:  # else the last would have nothing
        return Slice(parameter, parameter)
    first = shard.rank * length
    elements = memory_of(parameter.detach())[first : min(first + length, count)]
    return Slice(parameter, nn.Parameter(elements, requires_grad=parameter.requires_grad), first, length)


def _laid_out(master: Tensor, value: Tensor) -> Tensor:
    """Return a tensor with the strides of a parameter; itself if it has them."""
    if value.stride() == master.stride():
        return value
    return torch.empty_like(master, dtype=value.dtype).copy_(value)


def in_memory_order(master: Tensor, value: Tensor) -> Tensor:
    """A tensor of a parameter's shape on the host, as the parameter's elements lie in memory [n]."""
    laid = torch.empty_strided(master.shape, master.stride(), dtype=value.dtype)
    return memory_of(laid.copy_(value))


def in_shape(master: Tensor, flat: Tensor) -> Tensor:
    """Invert `in_memory_order`: view flat elements [n] in the parameter's shape and strides."""
    return flat.as_strided(master.shape, master.stride())
