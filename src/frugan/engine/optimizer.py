"""What the engine asks of an optimizer, whatever its rule."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn


class Optimizer(torch.optim.Optimizer):
    """Takes the verdict on the gradients on the device, so that a skipped update needs no look from the host.

    It makes no temporaries as large as the parameters: Adam is torch's fused one, the others go in pieces.

    Attributes:
        slots: names of the statistics kept for each parameter, in its shape and layout.
        steps: names of what is counted for each parameter; scalars beside it.
        on_host: the statistics live in host memory and come over for each parameter's update.
    """

    slots: ClassVar[tuple[str, ...]]
    steps: ClassVar[tuple[str, ...]] = ()
    on_host: bool = False

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

    def works_as_on(self, device_type: str) -> None:
        """Take as much temporary memory as on a kind of device, wherever the parameters are."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters, in order."""
        for group in self.param_groups:
            yield from group["params"]
