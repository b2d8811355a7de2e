"""What the engine asks of an optimizer, whatever its rule."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from frugan.engine.optimizer_shards import OptimizerShards, Slice, in_memory_order


class Optimizer(torch.optim.Optimizer):
    """Takes the verdict on the gradients on the device, so that a skipped update needs no look from the host.

    It makes no temporaries as large as the parameters: Adam is torch's fused one, the others go in pieces.

    Attributes:
        slots: names of the statistics kept for each parameter, in its shape and layout.
        steps: names of what is counted for each parameter; scalars beside it.
        on_host: the statistics live in host memory and come over for each parameter's update.
        elementwise: what becomes of an element depends on nothing but its own gradient and statistics, so that ranks
            may share the elements out.
        shards: what this rank has of the parameters, where it does not move all of them.
    """

    slots: ClassVar[tuple[str, ...]]
    steps: ClassVar[tuple[str, ...]] = ()
    on_host: bool = False
    elementwise: ClassVar[bool] = False
    shards: OptimizerShards | None = None

    @property
    def counts(self) -> Mapping[str, Tensor]:
        """What is counted over all parameters: name -> scalar on the device."""
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
        """Inside, `update` moves what this rank has; at the end what the others have moved is taken over."""
        if self.shards is None:
            yield
            return
        try:
            self.shards.lend_gradients()
            yield
        finally:
            self.shards.release()
        self.shards.gather()

    def works_as_on(self, device_type: str) -> None:
        """Take as much temporary memory as on a kind of device, wherever the parameters are."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters, in order."""
        if self.shards is None:
            yield from self.moved()
        else:
            yield from (each.master for each in self.shards.slices)

    def moved(self) -> Iterator[nn.Parameter]:
        """What this rank moves: all parameters, or its slices of them, in the same order."""
        for group in self.param_groups:
            yield from group["params"]

    def kept_for(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """What this rank keeps for a parameter, by slot and count; statistics of its slice, where it has one."""
        found = self._slice_of(parameter)
        return dict(self.state.get(parameter if found is None else found[1].own, {}))

    def whole_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The same in the parameter's shape; of statistics that other ranks have a part of, what was collected last.

        What was not collected has the size that it would have, and no values.
        """
        kept, found = self.kept_for(parameter), self._slice_of(parameter)
        if found is None or self.shards is None:
            return kept
        whole = self.shards.whole
        missing = {slot: kept[slot].new_empty(()).expand(parameter.shape) for slot in self.slots}
        return kept | {slot: whole.get((found[0], slot), missing[slot]) for slot in self.slots}

    def take_over(self, parameter: nn.Parameter, slot: str, value: Tensor) -> bool:
        """Put a value of a checkpoint in place of what is kept for a parameter; False: there is nothing of its shape.

        Of statistics that other ranks have a part of, it is kept until they have been given theirs.
        """
        into = self.kept_for(parameter).get(slot)
        found = self._slice_of(parameter) if slot in self.slots else None
        if into is None or value.shape != (into if found is None else parameter).shape:
            return False
        if found is None or self.shards is None:
            into.copy_(value)
            return True
        number, each = found
        into.copy_(in_memory_order(parameter, value)[each.first : each.first + each.own.numel()])
        self.shards.whole[number, slot] = value
        return True

    def _slice_of(self, parameter: nn.Parameter) -> tuple[int, Slice] | None:
        """Number of a parameter and this rank's slice of it; None: it moves all of it."""
        if self.shards is None:
            return None
        number = next(i for i, each in enumerate(self.shards.slices) if each.master is parameter)
        return None if self.shards.slices[number].is_whole else (number, self.shards.slices[number])
