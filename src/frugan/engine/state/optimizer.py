"""Optimizers gated on the device: their interface, and Adam and SGD, which torch has fused updates for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from frugan.accelerator.base import Event, Stream
from frugan.accelerator.choice import accelerator_of
from frugan.accelerator.host_memory import beside, copy_on_side_stream, host_likes
from frugan.engine.state.optimizer_shards import OptimizerShards, Slice, in_memory_order

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
