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
from frugan.wording import MIB

SMALLEST_ELEMENTS = 1 << 10
"""What is smaller is kept whole by every rank: a message costs more."""
ALIGNED = 64
"""Elements; slices begin at multiples, so that vectors of a processor end where they did."""
BUCKET_BYTES = 64 * MIB
"""Tensors are copied together to travel, up to so much (slices: counted over all ranks): on a card it is memory besides
the gradients. What is larger travels from where it lies."""

AllGather = Callable[[Tensor, Tensor], None]
"""(out [ranks · n], own [n]): fills `out` with every rank's own."""


@dataclass(frozen=True)
class Shard:
    """Which of several ranks this one is, when it takes slices."""

    # rank, size: of how many
    rank: int
    size: int
    # between them; None: the others are not there, and their slices stay as they are
    all_gather: AllGather | None = None


@dataclass(frozen=True)
class Slice:
    """This rank's slice of a parameter."""

    master: nn.Parameter  # the parameter
    # its elements that this rank moves, as they lie in memory [n]; or the parameter itself, where all move it
    own: nn.Parameter
    first: int = 0  # element with which it begins
    each: int = 0  # elements of every rank's slice but the last, which may be shorter

    @property
    def is_whole(self) -> bool:
        """Whether every rank moves the whole parameter."""
        return self.own is self.master

    def of(self, like: Tensor) -> Tensor:
        """The same slice of a tensor of the parameter's shape and layout; a view."""
        return memory_of(like)[self.first : self.first + self.own.numel()]


@dataclass
class OptimizerShards:
    """What one rank has of an optimizer's parameters."""

    shard: Shard  # which rank this is
    slices: tuple[Slice, ...]  # of every parameter, in order
    # number of a parameter, and slot -> the whole statistic on the host: while a checkpoint is written, and from when
    # one was read until all ranks have their slices of it
    whole: dict[tuple[int, str], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter], shard: Shard) -> "OptimizerShards":
        """Take slices of parameters that are on their device, in their layouts."""
        return cls(shard, tuple(_slice(parameter, shard) for parameter in parameters))

    def lend_gradients(self) -> None:
        """Give slices the gradients of their parameters."""
        for each in self.slices:
            if not each.is_whole:
                each.own.grad = None if each.master.grad is None else each.of(_laid_out(each.master, each.master.grad))

    def release(self) -> None:
        """Take them back."""
        for each in self.slices:
            if not each.is_whole:
                each.own.grad = None

    @torch.no_grad()
    def gather(self) -> None:
        """Put all ranks' slices of the parameters that have a gradient into the parameters."""
        for bucket in _buckets([each for each in self.slices if not each.is_whole and each.master.grad is not None]):
            self._gather(bucket)

    def _gather(self, bucket: list["_Segment"]) -> None:
        size = self.shard.size
        own = torch.cat([each.own(self.shard.rank) for each in bucket])
        out = torch.empty(size * own.numel(), dtype=own.dtype, device=own.device)
        if self.shard.all_gather is None:
            return
        self.shard.all_gather(out, own)
        into: list[Tensor] = []
        slices: list[Tensor] = []
        for rank, theirs in enumerate(out.view(size, -1)):
            for each, values in zip(bucket, theirs.split([each.length for each in bucket]), strict=True):
                place = each.place(rank)
                into.append(place)
                slices.append(values[: place.numel()])
        torch._foreach_copy_(into, slices)


@dataclass(frozen=True)
class _Segment:
    """Elements of every rank's slice of one parameter that travel together."""

    flat: Tensor  # the parameter's memory
    each: int  # elements of a slice
    # offset, length: in every slice
    offset: int
    length: int

    def place(self, rank: int) -> Tensor:
        """Where those of a rank lie; the last rank's may be fewer."""
        first = rank * self.each + self.offset
        return self.flat[first : min(first + self.length, (rank + 1) * self.each)]

    def own(self, rank: int) -> Tensor:
        """Those of a rank, as many as of all others."""
        place = self.place(rank)
        missing = self.length - place.numel()
        return place if not missing else torch.cat([place, place.new_zeros(missing)])


def _buckets(slices: Sequence[Slice]) -> Iterator[list[_Segment]]:
    bucket: list[_Segment] = []
    dtype, room = None, 0
    for each in slices:
        flat = memory_of(each.master.detach())
        size = -(-flat.numel() // each.each)
        most = max(ALIGNED, BUCKET_BYTES // (size * flat.element_size()))
        for offset in range(0, each.each, most):
            length = min(most, each.each - offset)
            if bucket and (length > room or flat.dtype != dtype):
                yield bucket
                bucket = []
            if not bucket:
                dtype, room = flat.dtype, most
            bucket.append(_Segment(flat, each.each, offset, length))
            room -= length
    if bucket:
        yield bucket


def _slice(parameter: nn.Parameter, shard: Shard) -> Slice:
    count, size = parameter.numel(), shard.size
    each = -(-count // (size * ALIGNED)) * ALIGNED
    if count < SMALLEST_ELEMENTS or each * (size - 1) >= count:  # else the last would have nothing
        return Slice(parameter, parameter)
    first = shard.rank * each
    own = memory_of(parameter.detach())[first : min(first + each, count)]
    return Slice(parameter, nn.Parameter(own, requires_grad=parameter.requires_grad), first, each)


def _laid_out(master: Tensor, value: Tensor) -> Tensor:
    """The same values with the strides of a parameter."""
    if value.stride() == master.stride():
        return value
    return torch.empty_like(master, dtype=value.dtype).copy_(value)


def in_memory_order(master: Tensor, value: Tensor) -> Tensor:
    """A tensor of a parameter's shape on the host, as the parameter's elements lie in memory [n]."""
    laid = torch.empty_strided(master.shape, master.stride(), dtype=value.dtype)
    return memory_of(laid.copy_(value))


def in_shape(master: Tensor, flat: Tensor) -> Tensor:
    """What `in_memory_order` gave, as a tensor of the parameter's shape."""
    return flat.as_strided(master.shape, master.stride())
