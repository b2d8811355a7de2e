"""Optimizers gated on the device: their interface, and Adam, SGD, RMSprop and AdaBelief."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from frugan.accelerator.base import Event, Stream
from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.host_memory import beside, copy_on_side_stream, host_likes, zeros_for
from frugan.contract.layers import copy_where, flat
from frugan.engine.state.optimizer_shards import OptimizerShards, Slice, in_memory_order
from frugan.engine.streams import generator_on

Of = TypeVar("Of")
"""Owner of statistics: a parameter, or pieces of several."""


class Optimizer(torch.optim.Optimizer):
    """Takes the verdict on the gradients on the device, so that a skipped update needs no look from the host.

    It makes no temporaries as large as the parameters: Adam and SGD are torch's fused ones, the others go in pieces.
    """

    slots: tuple[str, ...]  # names of the statistics kept for each parameter, in its shape and layout
    steps: ClassVar[tuple[str, ...]] = ()  # names of the counters of each parameter, scalars on its device
    on_host: bool = False  # statistics live in host memory and are copied over for each update
    # whether an element's update depends on its own gradient and statistics alone, so that ranks may shard it
    elementwise: ClassVar[bool] = False
    piece: int | None = None  # elements updated at once, of whichever parameters; None: one parameter's
    shards: OptimizerShards | None = None  # this rank's slices; None: it moves whole parameters

    @property
    def counts(self) -> Mapping[str, Tensor]:
        """Counters of the whole optimizer: name -> scalar on the device."""
        return {}

    def update(
        self, accepted: Tensor, *, learning_rate: float, period: int | None, share: float | None, seed: int
    ) -> None:
        """Move every parameter that has a gradient; nothing at all where `accepted` is False.

        Args:
            accepted: bool scalar on the device.
            learning_rate: before the cosine.
            period: updates of one cosine of the rate; None: no cosine.
            share: share of the elements that move, drawn anew; None: all.
            seed: of the draw.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update")

    @contextmanager
    def in_shards(self) -> Iterator[None]:
        """Inside, `update` moves this rank's slices; at the end those of the other ranks are gathered."""
        if self.shards is None:
            yield
            return
        try:
            self.shards.lend_gradients()
            yield
        finally:
            self.shards.release()
        self.shards.gather()

    def size_temporaries_for(self, *, card: bool) -> None:
        """Take as much temporary memory as on a card, or a processor, whatever the parameters' device."""
        self._has_queues = card

    _has_queues: bool | None = None  # whether copies overlap a device's work; None: as its kind does
    _side_streams: tuple[Stream, Stream] | None = None  # for copies from the host, and to it

    def passing(self, kept: Iterable[tuple[Of, Sequence[Tensor]]]) -> Iterator[tuple[Of, list[Tensor]]]:
        """Yield statistics that live on the host, one piece after another, as copies on the device.

        A piece is copied back when the next one is requested. On a card copies overlap: two pieces are there at a time,
        and each direction has its own queue. An update is short beside its copies, so a third would gain little.
        """
        device = next(self.moved()).device
        accelerator = accelerator_of(device)
        computing = accelerator.current_stream
        if self._side_streams is None:
            self._side_streams = accelerator.side_stream(), accelerator.side_stream()
        coming, going = self._side_streams
        held: list[tuple[list[Tensor], Event]] = []  # on the device until they have left
        most = 1 if (accelerator.is_card if self._has_queues is None else self._has_queues) else 0
        try:
            for owner, there in kept:
                here = [torch.empty_like(statistic, device=device, pin_memory=False) for statistic in there]
                held.append((here, copy_on_side_stream(coming, device, here, there)))
                computing.wait_event(held[-1][1])
                yield owner, here
                held[-1] = here, copy_on_side_stream(going, device, there, here)
                while len(held) > most:
                    _let_go(computing, *held.pop(0))
        finally:
            for statistics, copied in held:
                _let_go(computing, statistics, copied)

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters, in order."""
        if self.shards is None:
            yield from self.moved()
        else:
            yield from (piece.master for piece in self.shards.slices)

    def moved(self) -> Iterator[nn.Parameter]:
        """Yield what this rank updates: all parameters, or its slices of them, in the same order."""
        for group in self.param_groups:
            yield from group["params"]

    def state_for(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return this rank's state of a parameter by slot and count; of its slice, if sharded."""
        own_slice = self._slice_of(parameter)
        return dict(self.state.get(parameter if own_slice is None else own_slice[1].own, {}))

    def whole_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the state of a parameter in its whole shape; sharded statistics as they were last collected.

        A statistic that was not collected is a placeholder of the right shape.
        """
        kept, own_slice = self.state_for(parameter), self._slice_of(parameter)
        if own_slice is None or self.shards is None:
            return kept
        whole = self.shards.whole
        missing = {slot: kept[slot].new_empty(()).expand(parameter.shape) for slot in self.slots}
        return kept | {slot: whole.get((own_slice[0], slot), missing[slot]) for slot in self.slots}

    def load_statistic(self, parameter: nn.Parameter, slot: str, value: Tensor) -> bool:
        """Put a value of a checkpoint in place of what is kept for a parameter; False: there is nothing of its shape.

        If the statistic is sharded, the whole value is kept until other ranks have their slices.
        """
        into = self.state_for(parameter).get(slot)
        own_slice = self._slice_of(parameter) if slot in self.slots else None
        if into is None or value.shape != (into if own_slice is None else parameter).shape:
            return False
        if own_slice is None or self.shards is None:
            into.copy_(value)
            return True
        number, piece = own_slice
        into.copy_(in_memory_order(parameter, value)[piece.first : piece.first + piece.own.numel()])
        self.shards.whole[number, slot] = value
        return True

    def _slice_of(self, parameter: nn.Parameter) -> tuple[int, Slice] | None:
        """Number of a parameter and this rank's slice of it; None: it moves all of it."""
        if self.shards is None:
            return None
        number = next(i for i, piece in enumerate(self.shards.slices) if piece.master is parameter)
        return None if self.shards.slices[number].is_whole else (number, self.shards.slices[number])


def _let_go(computing: Stream, statistics: list[Tensor], copied: Event) -> None:
    """Make work queued from now on wait until statistics have been copied, and free them."""
    computing.wait_event(copied)
    statistics.clear()


def make_state(optimizer: Optimizer, *, on_host: bool) -> None:
    """Give every parameter its statistics, all zero.

    Torch would make them at the first update, in the gaps that freed activations leave: those of the next step would no
    longer fit there, and memory would grow. Made before the first step, they do not.

    Args:
        on_host: in host memory (pinned beside a card), copied over for each parameter's update.
    """
    statistics_of = _statistics(optimizer, on_host=on_host)
    for parameter, statistics in statistics_of.items():
        for value in statistics.values():
            value.zero_()
        for step in optimizer.steps:  # on the device: where the fused kernel counts
            optimizer.state[parameter][step] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        optimizer.state[parameter].update(statistics)


@torch.no_grad()
def move_state(optimizer: Optimizer, *, on_host: bool) -> None:
    """Take the statistics to host memory, or back beside the parameters."""
    if on_host:
        for parameter, statistics in _statistics(optimizer, on_host=True).items():
            for slot, value in statistics.items():
                optimizer.state[parameter][slot] = value.copy_(optimizer.state[parameter][slot])
        return
    optimizer.on_host = False
    for parameter in optimizer.moved():
        for slot in optimizer.slots:
            optimizer.state[parameter][slot] = beside(optimizer.state[parameter][slot], parameter)


def _statistics(optimizer: Optimizer, *, on_host: bool) -> dict[nn.Parameter, dict[str, Tensor]]:
    """Allocate every parameter's statistics, uninitialised, in its layout; on the host in few allocations."""
    optimizer.on_host = on_host
    slots = optimizer.slots
    parameters = [parameter for parameter in optimizer.moved() for _ in slots]
    if on_host:
        buffers = host_likes(parameters, "optimizer state")
    else:
        buffers = [torch.empty_like(parameter.detach()) for parameter in parameters]
    names = [slot for _ in optimizer.moved() for slot in slots]
    statistics: dict[nn.Parameter, dict[str, Tensor]] = {parameter: {} for parameter in optimizer.moved()}
    for parameter, slot, value in zip(parameters, names, buffers, strict=True):
        statistics[parameter][slot] = value
    return statistics


class FusedOptimizer(Optimizer):
    """Base of the optimizers that torch has a fused update for, which takes the verdict and makes no temporaries."""

    elementwise = True

    @torch.no_grad()
    def update(
        self, accepted: Tensor, *, learning_rate: float, period: int | None, share: float | None, seed: int
    ) -> None:
        """Move every parameter that has a gradient; nothing at all where `accepted` is False.

        Raises:
            ValueError: a cosine or a share was given.
        """
        if period is not None or share is not None:
            raise ValueError(f"{type(self).__name__} has no learning-rate dropout (period {period}, share {share})")
        for group in self.param_groups:
            group["lr"] = learning_rate
        self.found_inf = (~accepted).float()
        self.grad_scale = None
        try:
            if self.on_host:
                self._step_parameter_by_parameter()
            else:
                self.step()
        finally:
            del self.found_inf  # always clean up, also after memory ran out

    def _step_parameter_by_parameter(self) -> None:
        """Run a step with statistics in host memory: each is copied over, updated and copied back.

        From the largest on, so that overlapping copies take about as long.
        """
        gradients = {parameter: parameter.grad for parameter in self.moved() if parameter.grad is not None}
        for parameter in gradients:
            parameter.grad = None
        by_size = sorted(gradients, key=lambda parameter: -parameter.numel())
        kept = ((parameter, [self.state[parameter][slot] for slot in self.slots]) for parameter in by_size)
        for parameter, statistics in self.passing(kept):
            host = self.state[parameter]
            self.state[parameter] = host | dict(zip(self.slots, statistics, strict=True))
            parameter.grad = gradients[parameter]
            try:
                self.step()
            finally:
                parameter.grad = None
                self.state[parameter] = host
        for parameter, gradient in gradients.items():
            parameter.grad = gradient


class Adam(FusedOptimizer, torch.optim.Adam):
    """Adam with fp32 statistics.

    Args:
        parameters: fp32 masters.
        lr, betas, eps: as torch defines them.
    """

    slots = ("exp_avg", "exp_avg_sq")
    steps = ("step",)

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        torch.optim.Adam.__init__(self, parameters, lr=lr, betas=betas, eps=eps, fused=True)


class SGD(FusedOptimizer):
    """Gradient descent with momentum, as torch defines it.

    Momentum begins at zero, so after the first step it is the gradient, as in torch.

    Args:
        parameters: fp32 masters.
        lr: learning rate.
        momentum: share of the last step's direction that is kept; 0: none, and no state.
        weight_decay: share of each weight that is added to its gradient.
        nesterov: look one step ahead along the momentum.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, lr: float, momentum: float, weight_decay: float, nesterov: bool
    ) -> None:
        super().__init__(parameters, {"lr": lr})
        self.slots = ("momentum_buffer",) if momentum else ()
        self.momentum, self.weight_decay, self.nesterov = momentum, weight_decay, nesterov

    def step(self, closure: object = None) -> None:  # type: ignore[override]  # nobody gives one
        """Move every parameter that has a gradient.

        By the function that `torch.optim.SGD` is made of: the class itself refuses parameters without data.
        """
        moved = [parameter for parameter in self.moved() if parameter.grad is not None]
        sgd(
            [parameter.detach() for parameter in moved],
            [cast(Tensor, parameter.grad) for parameter in moved],
            [self.state[parameter].get("momentum_buffer") for parameter in moved],
            fused=True,
            found_inf=self.found_inf,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.param_groups[0]["lr"],
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
        )


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
