"""RMSprop and AdaBelief, which torch has no fused update for: they move parameters piece by piece."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.host_memory import zeros_for
from frugan.contract.layers import copy_where, flat
from frugan.engine.state.optimizer import Optimizer
from frugan.engine.streams import generator_on

PIECE = 1 << 20
"""Elements updated at once on a CPU: temporaries fit its cache however large a layer is."""
PIECE_ON_CARD = 1 << 23
"""Elements updated at once on a card: each of a dozen kernels has enough to do."""
SMALL_PIECE = 1 << 12
"""Fewer elements are copied together with others, moved as one, and copied back."""
SMALL_PIECE_ON_CARD = 1 << 19
"""Value of `SMALL_PIECE` on a card, which moves as many elements in the time of starting a kernel."""
TOGETHER = 1 << 21
"""Elements that are copied together, at most: they are memory besides the masters."""


@dataclass(frozen=True)
class _Update:
    """Scalars that one update uses for every parameter, on the parameters' device and in their dtype."""

    rejected: Tensor  # bool
    squares_kept: Tensor  # share of the running squares that stays: all of it where the update is rejected
    step: Tensor  # factor on directions: minus the learning rate, and 0 where the update is rejected


class PiecewiseOptimizer(Optimizer):
    """Base of RMSprop and AdaBelief, which divide a numerator by the root of a running mean of squares.

    It walks the parameters in pieces, takes the verdict and the rate, and drops weights out: a random share of them
    moves at each update, while the statistics see every gradient.

    They are written in torch's plain operations, for which processors and cards promise the same: there is no fused
    one for these rules.

    Args:
        parameters: fp32 masters, contiguous or channels-last.
        lr: learning rate.
        squares_decay: of the running squares; the last slot.
        eps: added to their roots.
    """

    elementwise = True
    updates: Tensor  # accepted updates so far; int64 scalar on the device
    piece: int
    small_piece: int  # elements below which pieces are copied together

    def __init__(self, parameters: Sequence[nn.Parameter], *, lr: float, squares_decay: float, eps: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.squares_decay, self.eps = squares_decay, eps
        self.updates = torch.zeros((), dtype=torch.int64, device=parameters[0].device)
        self.size_temporaries_for(card=accelerator_of(parameters[0].device).is_card)

    @property
    def counts(self) -> Mapping[str, Tensor]:
        return {"updates": self.updates}

    def size_temporaries_for(self, *, card: bool) -> None:
        """Choose piece sizes for a card or a processor."""
        super().size_temporaries_for(card=card)
        self.piece, self.small_piece = (PIECE_ON_CARD, SMALL_PIECE_ON_CARD) if card else (PIECE, SMALL_PIECE)

    @torch.no_grad()
    def update(
        self, accepted: Tensor, *, learning_rate: float, period: int | None, share: float | None, seed: int
    ) -> None:
        """Move every parameter that has a gradient, piece by piece; nothing at all where `accepted` is False."""
        self.updates += accepted
        rate = torch.full((), learning_rate, dtype=torch.float64, device=accepted.device)
        if period is not None:
            rate = rate * (torch.cos(self.updates * (2 * math.pi / period)) + 1) / 2
        kept = torch.full((), self.squares_decay, dtype=torch.float64, device=accepted.device)
        dtype = next(self.moved()).dtype
        update = _Update(
            ~accepted, torch.where(accepted, kept, 1.0).to(dtype), torch.where(accepted, -rate, 0.0).to(dtype)
        )
        random = None if share is None else generator_on(accepted.device, seed)
        groups = ((group, [tensor for slot in group[1][2:] for tensor in slot]) for group in self._groups())
        for (pieces, (weights, gradients, *_)), there in self.passing(groups) if self.on_host else groups:
            statistics = [there[i : i + len(weights)] for i in range(0, len(there), len(weights))]
            moving = None
            if random is not None and share is not None:
                moving = _drawn_to_move(weights, pieces, share, random, accepted.device)
            self._move_together(weights, gradients, statistics, update, moving)
            del statistics  # they are given back before others come

    def _groups(self) -> Iterator[tuple[list["_Piece"], list[list[Tensor]]]]:
        """Flat pieces of parameters, gradients and statistics: a large one, or many small ones.

        They are grouped by their whole sizes: every rank has the same groups, whatever it moves of them.
        """
        pieces, group, room = list[_Piece](), list[tuple[Tensor, ...]](), TOGETHER
        for parameter, (first, whole) in zip(self.moved(), self._places(), strict=True):
            if parameter.grad is None:
                continue
            state = self.state_of(parameter)
            tensors = (parameter.detach(), parameter.grad, *(state[slot] for slot in self.slots))
            for piece, here in _pieces(tensors, self.piece, first, whole):
                if piece.elements >= self.small_piece:
                    yield [piece], [[tensor] for tensor in here]
                    continue
                if piece.elements > room:
                    yield pieces, [list(tensors) for tensors in zip(*group, strict=True)]
                    pieces, group, room = [], [], TOGETHER
                pieces.append(piece)
                group.append(here)
                room -= piece.elements
        if group:
            yield pieces, [list(tensors) for tensors in zip(*group, strict=True)]

    def _places(self) -> Iterator[tuple[int, int]]:
        """Yield, for each slice that this rank updates, its first element and its parameter's number of elements."""
        if self.shards is None:
            yield from ((0, parameter.numel()) for parameter in self.moved())
        else:
            yield from ((piece.first, piece.master.numel()) for piece in self.shards.slices)

    def state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return a parameter's statistics by slot, created if there are none yet."""
        state = self.state[parameter]
        for slot in self.slots:
            if slot not in state:
                state[slot] = zeros_for(parameter, on_host=self.on_host)
        return dict(state)

    def _move_together(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        statistics: Sequence[list[Tensor]],
        update: _Update,
        moving: Tensor | None,
    ) -> None:
        """Move a group of pieces: a single one where it lies, several as one copy."""
        if len(weights) == 1:
            self._move(weights[0], gradients[0], [slot[0] for slot in statistics], update, moving)
            return
        moved, copies = flat(weights), [flat(slot) for slot in statistics]
        self._move(moved, flat(gradients), copies, update, moving)
        for targets, values in zip((weights, *statistics), (moved, *copies), strict=True):
            copy_where(None, targets, values)

    def _move(
        self, weights: Tensor, gradients: Tensor, statistics: Sequence[Tensor], update: _Update, moving: Tensor | None
    ) -> None:
        """Move a piece of statistics and weights; the gradients' memory holds intermediate results.

        A gradient that is not finite must not reach the statistics, not even multiplied by zero (NaN times 0 is NaN).

        Args:
            weights, gradients: [numbers].
            statistics: of each slot [numbers].
            moving: which weights move, bool [numbers]; None: all.
        """
        *_, squares = statistics
        numerators, changes = self._observe(gradients, statistics, update)
        squares.mul_(update.squares_kept).addcmul_(changes, changes, value=1 - self.squares_decay)
        # RMSprop's numerators are its changes, which are overwritten only where the roots have memory of their own
        roots = torch.sqrt(squares, out=None if numerators is changes else changes).add_(self.eps)
        direction = torch.div(numerators, roots, out=gradients)
        if moving is not None:
            direction.mul_(moving)
        weights.addcmul_(direction, update.step)

    def _observe(self, gradients: Tensor, statistics: Sequence[Tensor], update: _Update) -> tuple[Tensor, Tensor]:
        """Take gradients into the statistics but for the squares.

        Returns:
            The numerators, and the changes whose squares are averaged; these are made in the gradients' memory, and 0
            where the update is rejected.
        """
        raise NotImplementedError(f"{type(self).__name__} must define _observe")


class RMSprop(PiecewiseOptimizer):
    """Root of a running mean of squared gradients (Tieleman and Hinton 2012), as DeepFaceLab's library defines it.

    Differences from the published one: eps stands outside the root only.
    """

    slots = ("acc",)

    def __init__(self, parameters: Sequence[nn.Parameter], *, lr: float, decay: float, eps: float) -> None:
        super().__init__(parameters, lr=lr, squares_decay=decay, eps=eps)

    def _observe(self, gradients: Tensor, statistics: Sequence[Tensor], update: _Update) -> tuple[Tensor, Tensor]:
        gradients.masked_fill_(update.rejected, 0.0)
        return gradients, gradients


class AdaBelief(PiecewiseOptimizer):
    """Root of a running mean of squared deviations of gradients from their mean (Zhuang et al. 2020), as DeepFaceLab's
    library defines it.

    Differences from the published one: eps stands outside the root only, and nothing is corrected for the first steps.
    """

    slots = ("ms", "vs")

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(parameters, lr=lr, squares_decay=betas[1], eps=eps)
        self.mean_decay = betas[0]

    def _observe(self, gradients: Tensor, statistics: Sequence[Tensor], update: _Update) -> tuple[Tensor, Tensor]:
        mean, _ = statistics
        torch.where(update.rejected, mean, gradients, out=gradients)  # the mean as it is moves it nowhere
        mean.lerp_(gradients, 1 - self.mean_decay)
        return mean, gradients.sub_(mean)


@dataclass(frozen=True)
class _Piece:
    """A piece of a parameter, and the part of it that is moved here."""

    elements: int  # size of the piece
    first: int  # first element of it that is moved here


def _pieces(
    tensors: Sequence[Tensor], size: int, begins: int, whole: int
) -> Iterator[tuple[_Piece, tuple[Tensor, ...]]]:
    """Flat views of corresponding elements of tensors of one shape and layout, piece by piece; absent ones are empty.

    Args:
        tensors: the tensors.
        size: elements of a piece.
        begins: element of the parameter with which the tensors begin.
        whole: number of elements of the parameter.
    """
    flat = [(t if t.is_contiguous() else t.permute(0, 2, 3, 1)).view(-1) for t in tensors]
    for first in range(0, whole, size):
        last = min(first + size, whole)
        here = min(max(begins, first), last)
        a, b = here - begins, last - begins
        yield _Piece(last - first, here - first), tuple(tensor[max(a, 0) : max(b, 0)] for tensor in flat)


def _drawn_to_move(
    weights: Sequence[Tensor], pieces: Sequence[_Piece], share: float, random: torch.Generator, device: torch.device
) -> Tensor:
    """Draw which of the weights that are here move, one piece after the other, bool [numbers].

    Drawn for whole pieces, whoever moves which part.
    """
    mask = keep_mask(sum(piece.elements for piece in pieces), share, random, device)
    masks = mask.split([piece.elements for piece in pieces])
    here = [
        keep[piece.first : piece.first + part.numel()] for part, piece, keep in zip(weights, pieces, masks, strict=True)
    ]
    return here[0] if len(here) == 1 else torch.cat(here)


def keep_mask(count: int, share: float, random: torch.Generator, device: torch.device) -> Tensor:
    """Draw which elements move: each with probability `share`, to a 256th (0.3 becomes 77/256 = 0.3008).

    Eight are drawn from each random word, which is several times as fast on a CPU as drawing them one by one.

    Returns:
        bool [count].
    """
    words = torch.empty(-(-count // 8), dtype=torch.int64, device=device)
    words.random_(torch.iinfo(torch.int64).min, None, generator=random)
    return words.view(torch.uint8)[:count] < round(share * 256)
