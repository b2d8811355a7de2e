"""Losses over a whole batch, exact though the model sees it in parts: by caching gradients (Gao et al. 2021)."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from frugan.errors import BadInput
from frugan.training.own_loop.batch import Inputs, Loss, Sums, Weight
from frugan.training.own_loop.recompute import Before


@dataclass(frozen=True)
class BatchLoss:
    """A loss that compares the samples of a batch by their representations, as contrastive ones do.

    Called, it is a loss as any other. Where a plan splits the batch, representations of all parts are computed without
    a graph, then the loss over all of them and its gradients, and then each part once more with a graph, with the same
    dropout and buffers (arXiv 2101.06983): the gradients are those of the whole batch, for one more forward.

    Args:
        represent: (model, *inputs) -> representations [samples, ...], one tensor or several.
        compare: (*representations) -> what a loss returns, over the whole batch.

    Example:
        >>> def represent(model, pictures, texts):
        ...     return model.see(pictures), model.read(texts)
        >>> def compare(seen, read):
        ...     return F.cross_entropy(seen @ read.T, torch.arange(len(seen), device=seen.device))
        >>> loss = frugan.BatchLoss(represent, compare)
    """

    represent: Callable[..., Tensor | tuple[Tensor, ...]]
    compare: Callable[..., Any]

    def __call__(self, model: nn.Module, *inputs: Any) -> Any:
        """Return the loss of a batch as a whole."""
        return self.compare(*self.representations(model, inputs))

    def representations(self, model: nn.Module, inputs: Inputs) -> tuple[Tensor, ...]:
        """Represent some samples.

        Raises:
            BadInput: what comes back is no tensor of samples.
        """
        returned = self.represent(model, *inputs)
        found = (returned,) if isinstance(returned, Tensor) else tuple(returned)
        if not found or not all(isinstance(tensor, Tensor) and tensor.ndim for tensor in found):
            kinds = (f"a tensor {list(t.shape)}" if isinstance(t, Tensor) else f"a {type(t).__name__}" for t in found)
            raise BadInput(
                f"represent gives {', '.join(kinds) or 'nothing'}; expected tensors [samples, ...]. What is of no "
                "sample, such as a temperature that is learned, is given once for each: scale.expand(len(samples))"
            )
        return found

    def over(self, model: nn.Module, parts: Iterable[tuple[Inputs, float]]) -> tuple[list[int], list[Tensor]]:
        """Represent a batch in parts: samples in each, and representations of all."""
        found = [self.representations(model, inputs) for inputs, _ in parts]
        return [len(tensors[0]) for tensors in found], [torch.cat(column) for column in zip(*found, strict=True)]


def check_weight(loss: Loss, weight: Weight | None) -> None:
    """Refuse a weight of parts that cannot be called, or where the loss sees the whole batch.

    Raises:
        BadInput: it is one.
    """
    if weight is not None and not callable(weight):
        raise BadInput(f"weight={weight!r}: expected a function of what the loss is given besides the model")
    if weight is not None and isinstance(loss, BatchLoss):
        raise BadInput("weight= is for means over parts; a BatchLoss sees all of the batch: leave weight= out")


def backward_over_batch(
    model: nn.Module,
    loss: BatchLoss,
    parts: Iterable[tuple[Inputs, float]],
    sums: Sums,
    add_up: Callable[[], None],
    rules: AbstractContextManager[Any],
) -> None:
    """Run forward and backward of a batch in parts, which are walked through twice.

    Args:
        add_up: is called after backward of each part.
        rules: what forwards run in.
    """
    draws = _Draws(next(model.parameters()).device)
    with rules, torch.no_grad(), Before.of(model, (), {}).restored(model):
        sizes, representations = loss.over(model, draws.noted(parts))
    leaves = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in representations]
    with rules:
        compared = loss.compare(*leaves)
    sums.add(compared, (leaves[0],), 1.0)
    wanted = [(place, leaf.grad.split(sizes)) for place, leaf in enumerate(leaves) if leaf.grad is not None]
    del representations, leaves, compared
    for number, (inputs, _) in enumerate(draws.repeated(parts)):
        with rules:
            again = loss.representations(model, inputs)
        moved = [(again[place], gradients[number]) for place, gradients in wanted if again[place].requires_grad]
        torch.autograd.backward([tensor for tensor, _ in moved], [gradient for _, gradient in moved])
        add_up()


class _Draws:
    """States of random numbers before each part, so that the second forward draws what the first one drew."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._states: list[tuple[Tensor, Tensor | None]] = []

    def noted(self, parts: Iterable[tuple[Inputs, float]]) -> Iterable[tuple[Inputs, float]]:
        """Walk through parts, and remember the states."""
        for part in parts:
            if self._device.type != "meta":
                on_card = None if self._device.type == "cpu" else self._module().get_rng_state(self._device)
                self._states.append((torch.get_rng_state(), on_card))
            yield part

    def repeated(self, parts: Iterable[tuple[Inputs, float]]) -> Iterable[tuple[Inputs, float]]:
        """Walk through them once more."""
        states = iter(self._states)
        for part in parts:
            on_host, on_card = next(states, (None, None))
            if on_host is not None:
                torch.set_rng_state(on_host)
            if on_card is not None:
                self._module().set_rng_state(on_card, self._device)
            yield part

    def _module(self) -> Any:
        return torch.get_device_module(self._device)
