"""RMSprop and AdaBelief as DeepFaceLab's library defines them, gated on the device and updated in pieces.

Differences from the published ones: eps stands outside the root only, nothing is corrected for the first steps, and a
learning-rate dropout moves a random share of the weights at each update while the statistics see every gradient.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from frugan.engine.ema import descend_by_roots, follow_and_subtract
from frugan.engine.host_memory import beside, zeros_for
from frugan.engine.optimizer import Optimizer
from frugan.engine.streams import generator_on

PIECES = MappingProxyType({"cpu": 1 << 20, "cuda": 1 << 23})
"""Elements updated at once, by device: temporaries stay small however large a layer is. On a CPU they fit its cache; on
a card each of a dozen kernels has enough to do."""


class PiecewiseOptimizer(Optimizer):
    """What the two have in common: walking the parameters, the verdict, the rate, the dropout.

    Args:
        parameters: fp32 masters, contiguous or channels-last.
        lr: learning rate.
        eps: added to the root.
    """

    updates: Tensor  # accepted updates so far; int64 scalar on the device
    piece: int  # elements updated at once

    def __init__(self, parameters: Sequence[nn.Parameter], *, lr: float, eps: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.eps = eps
        self.updates = torch.zeros((), dtype=torch.int64, device=parameters[0].device)
        self.works_as_on(parameters[0].device.type)

    @property
    def counts(self) -> Mapping[str, Tensor]:
        """How many updates were accepted."""
        return {"updates": self.updates}

    def works_as_on(self, device_type: str) -> None:
        """Take pieces as large as on a kind of device."""
        self.piece = PIECES.get(device_type, PIECES["cpu"])

    @torch.no_grad()
    def update(
        self, accepted: Tensor, *, learning_rate: float, period: int | None, share: float | None, seed: int
    ) -> None:
        """Move every parameter that has a gradient, piece by piece; nothing at all where `accepted` is False."""
        self.updates += accepted
        rate = torch.full((), learning_rate, dtype=torch.float64, device=accepted.device)
        if period is not None:
            rate = rate * (torch.cos(self.updates * (2 * math.pi / period)) + 1) / 2
        rate, held_back = rate.float(), (~accepted).float()
        random = None if share is None else generator_on(accepted.device, seed)
        for pieces, (weights, gradients, *kept) in self._groups():
            statistics: list[list[Tensor]] = kept
            if self.on_host:
                statistics = [[beside(each, like) for each, like in zip(slot, weights, strict=True)] for slot in kept]
            stays: list[tuple[Tensor, Tensor, Tensor]] = []
            if random is not None and share is not None:
                stays = _drawn_to_stay(weights, pieces, share, random, rate.device)
            self._move(weights, gradients, statistics, rate, held_back)
            for each, keep, before in stays:
                torch.where(keep, each, before, out=each)
            if self.on_host:
                for there, back in zip(kept, statistics, strict=True):
                    for host, each in zip(there, back, strict=True):
                        host.copy_(each, non_blocking=True)

    def _groups(self) -> Iterator[tuple[list["_Piece"], list[list[Tensor]]]]:
        """Flat pieces of parameters, gradients and statistics: of one large parameter, or of many small ones.

        They are grouped by their whole sizes: every rank has the same groups, whatever it moves of them.
        """
        pieces, group, room = list[_Piece](), list[tuple[Tensor, ...]](), self.piece
        for parameter, (first, whole) in zip(self.moved(), self._places(), strict=True):
            if parameter.grad is None:
                continue
            state = self.state_of(parameter)
            tensors = (parameter.detach(), parameter.grad, *(state[slot] for slot in self.slots))
            for piece, here in _pieces(tensors, self.piece, first, whole):
                if piece.elements > room:
                    yield pieces, [list(each) for each in zip(*group, strict=True)]
                    pieces, group, room = [], [], self.piece
                pieces.append(piece)
                group.append(here)
                room -= piece.elements
        if group:
            yield pieces, [list(each) for each in zip(*group, strict=True)]

    def _places(self) -> Iterator[tuple[int, int]]:
        """Of what this rank moves: with which element of its parameter it begins, and how many that has."""
        if self.shards is None:
            yield from ((0, parameter.numel()) for parameter in self.moved())
        else:
            yield from ((each.first, each.master.numel()) for each in self.shards.slices)

    def state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """A parameter's statistics by slot, made if there are none yet."""
        state = self.state[parameter]
        for slot in self.slots:
            if slot not in state:
                state[slot] = zeros_for(parameter, on_host=self.on_host)
        return dict(state)

    def _move(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        statistics: Sequence[list[Tensor]],
        rate: Tensor,
        held_back: Tensor,
    ) -> None:
        """Move statistics and weights but where held back. Gradients may be overwritten.

        A gradient that is not finite is held back: it must not reach the statistics, not even multiplied by nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} must define _move")


class RMSprop(PiecewiseOptimizer):
    """Root of a running mean of squared gradients (Tieleman and Hinton 2012)."""

    elementwise = True
    slots = ("acc",)

    def __init__(self, parameters: Sequence[nn.Parameter], *, lr: float, decay: float, eps: float) -> None:
        super().__init__(parameters, lr=lr, eps=eps)
        self.decay = decay

    def _move(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        statistics: Sequence[list[Tensor]],
        rate: Tensor,
        held_back: Tensor,
    ) -> None:
        (acc,) = statistics
        descend_by_roots(weights, gradients, acc, gradients, self.decay, self.eps, rate, held_back)


class AdaBelief(PiecewiseOptimizer):
    """Root of a running mean of squared deviations of gradients from their mean (Zhuang et al. 2020)."""

    elementwise = True
    slots = ("ms", "vs")

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(parameters, lr=lr, eps=eps)
        self.betas = betas

    def _move(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        statistics: Sequence[list[Tensor]],
        rate: Tensor,
        held_back: Tensor,
    ) -> None:
        ms, vs = statistics
        follow_and_subtract(ms, gradients, 1 - self.betas[0], held_back)
        descend_by_roots(weights, ms, vs, gradients, self.betas[1], self.eps, rate, held_back)


@dataclass(frozen=True)
class _Piece:
    """A piece of a parameter, and the part of it that is moved here."""

    elements: int  # of the piece
    first: int  # of them that is moved here


def _pieces(
    tensors: Sequence[Tensor], size: int, begins: int, whole: int
) -> Iterator[tuple[_Piece, tuple[Tensor, ...]]]:
    """Flat views of the same elements of tensors of one shape and layout; those that are not here are empty.

    Args:
        size: of a piece.
        begins, whole: with which element of their parameter they begin, and how many that has.
    """
    flat = [(t if t.is_contiguous() else t.permute(0, 2, 3, 1)).view(-1) for t in tensors]
    for first in range(0, whole, size):
        last = min(first + size, whole)
        here = min(max(begins, first), last)
        a, b = here - begins, last - begins
        yield _Piece(last - first, here - first), tuple(tensor[max(a, 0) : max(b, 0)] for tensor in flat)


def _drawn_to_stay(
    weights: Sequence[Tensor], pieces: Sequence[_Piece], share: float, random: torch.Generator, device: torch.device
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each piece of the weights that is here, which of its elements move (the rest stays), and what they were.

    Drawn for whole pieces, whoever moves which part.
    """
    mask = keep_mask(sum(piece.elements for piece in pieces), share, random, device)
    masks = mask.split([piece.elements for piece in pieces])
    return [
        (each, keep[piece.first : piece.first + each.numel()], each.clone())
        for each, piece, keep in zip(weights, pieces, masks, strict=True)
    ]


def keep_mask(count: int, share: float, random: torch.Generator, device: torch.device) -> Tensor:
    """Draw which elements move: each with probability `share`, to a 256th (0.3 becomes 77/256 = 0.3008).

    Eight are drawn from each random word, which is several times as fast on a CPU as drawing them one by one.

    Returns:
        bool [count].
    """
    words = torch.empty(-(-count // 8), dtype=torch.int64, device=device)
    words.random_(torch.iinfo(torch.int64).min, None, generator=random)
    return words.view(torch.uint8)[:count] < round(share * 256)
