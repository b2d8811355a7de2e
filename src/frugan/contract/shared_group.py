"""A normalisation group of which several processes hold a part each: what it asks of layers and parts."""

from typing import Protocol

from torch import Tensor


class SharedGroup(Protocol):
    """The group that this process holds a part of.

    A forward sees this process's part of one group, or of several one after the other.

    Attributes:
        part: samples of the group that this process holds.
        samples: of the whole group.
    """

    @property
    def part(self) -> int:
        """Samples of the group that this process holds."""

    @property
    def samples(self) -> int:
        """Samples of the whole group."""

    def sum(self, own: Tensor) -> Tensor:
        """Sum of a tensor over the processes that share the group; differentiable, as often as one likes.

        All of them must come here with tensors of one shape, in the same order: what stands before it may depend on
        shapes, and never on values.
        """


def whole_mean(shared: SharedGroup, mean: Tensor) -> Tensor:
    """Mean over a group, of means over the parts of it; any shape."""
    return shared.sum(mean * (shared.part / shared.samples))


def whole_moments(shared: SharedGroup, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (over n) over a group, of those over the parts of it; any shape."""
    whole = whole_mean(shared, mean)
    return whole, whole_mean(shared, variance + (mean - whole).square())
