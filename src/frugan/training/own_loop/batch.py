"""A batch of somebody's loop in parts, and what their loss gives of each, so that the parts add up to the whole."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from frugan.errors import BadInput
from frugan.torch_internals import tree_leaves, tree_map
from frugan.wording import count, first_line

Loss = Callable[..., Any]
"""(model, *inputs) -> the mean of the loss over the samples, a scalar; or a sum and the count that it is over; or a
mapping with either as "loss", whose other entries are handed on."""

Weight = Callable[..., Tensor | float]
"""(*inputs) -> how much counts in them, such as the number of labels that are not ignored."""

Inputs = tuple[Any, ...]
"""Arguments of the loss besides the model: tensors [samples, ...], or tuples, lists and dicts of them."""


def samples_in(inputs: Inputs) -> int:
    """Samples of a batch.

    Raises:
        BadInput: there are none, tensors have different numbers of them, or inputs are no tensors.
    """
    leaves = tree_leaves(inputs)
    for leaf in leaves:
        if not isinstance(leaf, Tensor | int | float | str | None):
            raise BadInput(
                f"inputs hold a {type(leaf).__name__}, which has no samples: expected tensors, or tuples, lists and "
                "dicts of them"
            )
    sizes = {len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim}
    if len(sizes) != 1 or 0 in sizes:
        found = " and ".join(map(str, sorted(sizes))) or "no"
        raise BadInput(f"inputs have {found} samples; expected tensors [samples, ...] of the same number, at least 1")
    return sizes.pop()


def check_loss_takes(loss: Loss, model: nn.Module, inputs: Inputs) -> None:
    """Refuse a batch of another form than the loss is written for, whose own mistakes are none of it.

    Raises:
        BadInput: the loss has other arguments.
    """
    try:
        inspect.signature(loss).bind(model, *inputs)
    except ValueError:  # of what is not written in Python
        return
    except TypeError as error:
        given = count(len(inputs), "input")
        raise BadInput(f"the loss cannot be called with the model and {given}: {first_line(error)}") from error


class Split(Protocol):
    """Micro-batches, each with its share of the batch, that may be walked through more than once."""

    @property
    def sizes(self) -> Sequence[int]:
        """Samples of each."""

    def __iter__(self) -> Iterator[tuple[Inputs, float]]: ...


@dataclass(frozen=True)
class Parts:
    """Micro-batches of a batch on a device, each with its share; a text for each sample goes with its sample.

    Walked through anew each time. A part whose share is 0 is left out: nothing in it counts.
    """

    inputs: Inputs
    sizes: Sequence[int]
    batch: int
    device: torch.device
    weight: Weight | None = None

    def __iter__(self) -> Iterator[tuple[Inputs, float]]:
        for (first, size), share in zip(self._places(), self.shares(), strict=True):
            if share:
                yield self._cut(first, size, self.device), share

    def shares(self) -> list[float]:
        """Share of each part in the batch: by its samples, or by what counts in it; all 0 where nothing does."""
        if self.weight is None:
            return [size / self.batch for size in self.sizes]
        weights = [_number(self.weight(*self._cut(first, size, None))) for first, size in self._places()]
        if any(not weight >= 0 for weight in weights):
            raise BadInput(f"weight= gives {min(weights):g}; expected how much counts in its inputs, at least 0")
        return [weight / (sum(weights) or 1) for weight in weights]

    def _places(self) -> Iterator[tuple[int, int]]:
        first = 0
        for size in self.sizes:
            yield first, size
            first += size

    def _cut(self, first: int, size: int, device: torch.device | None) -> Inputs:
        places = slice(first, first + size)
        cut: Inputs = tree_map(partial(taken, places=places, device=device), self.inputs, partial(is_texts, self.batch))
        return cut


def _number(weight: Any) -> float:
    """Return the weight of a part.

    Raises:
        BadInput: it is no number.
    """
    if isinstance(weight, int | float) or (isinstance(weight, Tensor) and weight.numel() == 1):
        return float(weight)
    what = f"a tensor {list(weight.shape)}" if isinstance(weight, Tensor) else f"a {type(weight).__name__}"
    raise BadInput(f"weight= gives {what}; expected one number, such as (labels != -100).sum()")


def is_texts(batch: int, leaf: Any) -> bool:
    """Return whether something is a list of texts, one for each sample."""
    return isinstance(leaf, list | tuple) and len(leaf) == batch > 1 and all(isinstance(x, str) for x in leaf)


def taken(leaf: Any, *, places: slice | Tensor, device: torch.device | None) -> Any:
    """Some samples of a tensor, on a device, or of a list of texts; anything else as it is."""
    if isinstance(leaf, list | tuple):
        return leaf[places] if isinstance(places, slice) else [leaf[place] for place in places.tolist()]
    if not isinstance(leaf, Tensor):
        return leaf
    cut = leaf if not leaf.ndim else leaf[places] if isinstance(places, slice) else leaf[places.to(leaf.device)]
    return cut if device is None else cut.to(device, non_blocking=True)


@dataclass(frozen=True)
class LossValue:
    """Value of a loss for one micro-batch, and what it is over."""

    value: Tensor  # scalar, fp32 at least: a mean, or a sum
    count: Tensor | None  # that the sum is over, a scalar; None: the value is a mean
    beside: Mapping[str, Any]  # what else it returned, cut off from the graph

    @classmethod
    def of(cls, returned: Any) -> "LossValue":
        """Read it.

        Raises:
            BadInput: it is none of what a loss may return.
        """
        beside: dict[str, Any] = {}
        if isinstance(returned, Mapping) and "loss" in returned:
            beside = {key: tree_map(_cut_off, value) for key, value in returned.items() if key != "loss"}
            returned = returned["loss"]
        count: Any = None
        if isinstance(returned, tuple | list) and len(returned) == 2:
            returned, count = returned
        if not isinstance(returned, Tensor) or returned.numel() != 1:
            what = (
                f"a tensor {list(returned.shape)}" if isinstance(returned, Tensor) else f"a {type(returned).__name__}"
            )
            raise BadInput(
                f"the loss gives {what}; expected a scalar, the mean over the samples, or (sum, count), or a mapping "
                'with either as "loss"'
            )
        value = returned.reshape(()).to(torch.promote_types(returned.dtype, torch.float32))
        if count is not None:
            count = torch.as_tensor(count, device=value.device).detach().reshape(()).to(value.dtype)
        return cls(value, count, beside)


def _cut_off(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


@dataclass
class Sums:
    """Adds up what a loss gives of the parts of a batch, and has their gradients added up.

    A sum is divided by the count of the first part that has one, as that of the whole is known at the end alone; what
    gradients are to be multiplied by then is the `correction`.
    """

    scale: float  # of the loss, against underflow
    parts: int = 0
    _total: Tensor | None = None
    _count: Tensor | None = None  # of all parts so far
    _first: Tensor | None = None  # count of the first part in which anything counts, at least 1
    _beside: list[tuple[Mapping[str, Any], int, float]] = field(default_factory=list)

    def add(self, returned: Any, inputs: Inputs, share: float) -> None:
        """Run backward of a part, and add its loss.

        Raises:
            BadInput: the loss gives neither a scalar nor (sum, count), or now the one and now the other.
        """
        part = LossValue.of(returned)
        if self.parts and (part.count is None) != (self._count is None):
            raise BadInput(
                "the loss gives a scalar for some parts of a batch and (sum, count) for others: expected one"
            )
        if part.count is None:
            torch.autograd.backward(part.value, torch.full_like(part.value, self.scale * share))
            value = part.value.detach() * share
        else:
            count = part.count.clamp(min=1)
            if self._first is None or self._count is None:
                self._first = count
            else:  # so far all gradients were 0
                self._first = torch.where(self._count > 0, self._first, count)
            torch.autograd.backward(part.value, self._first.reciprocal() * self.scale)
            value = part.value.detach()
            self._count = part.count if self._count is None else self._count + part.count
        self._total = value if self._total is None else self._total + value
        self.parts += 1
        if part.beside:
            self._beside.append((part.beside, samples_in(inputs), share))

    def loss(self) -> Tensor:
        """Mean over the batch, a scalar in fp32."""
        assert self._total is not None
        return (self._total if self._count is None else self._total / self._count).float()

    def correction(self) -> Tensor | None:
        """Factor for gradients, a scalar; None: 1."""
        if self._count is None or self._first is None or self.parts == 1:
            return None
        return self._first / self._count

    def beside(self) -> dict[str, Any]:
        """Return the other results of the loss, of the whole batch.

        Tensors [samples, ...] are joined, scalars averaged over the samples, and anything else is a list of the parts'.
        """
        if not self._beside:
            return {}
        return {key: _joined([(b[key], size, share) for b, size, share in self._beside]) for key in self._beside[0][0]}


def _joined(parts: Sequence[tuple[Any, int, float]]) -> Any:
    leaves = zip(*(tree_leaves(tree) for tree, _, _ in parts), strict=True)
    sizes, shares = [size for _, size, _ in parts], [share for _, _, share in parts]
    joined = iter([_joined_leaf(list(values), sizes, shares) for values in leaves])
    return tree_map(lambda _: next(joined), parts[0][0])


def _joined_leaf(values: list[Any], sizes: list[int], shares: list[float]) -> Any:
    if len(values) == 1:
        return values[0]
    if all(isinstance(v, Tensor) and v.ndim and len(v) == size for v, size in zip(values, sizes, strict=True)):
        return torch.cat(values)
    if all(isinstance(v, float) or (isinstance(v, Tensor) and not v.ndim) for v in values):
        return sum(value * share for value, share in zip(values, shares, strict=True))
    return values
