"""Terms that take their own gradient at once give the gradient of ordinary terms."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from frugan.objectives import eager_gradient
from frugan.stepmemory.tracker import Tracker
from limits import Limit
from stepmemory.storages import storages_bytes


def _loss(made: Sequence[Tensor], given: Sequence[Tensor]) -> dict[str, Tensor]:
    return {
        "a": (made[0] - given[0]).square().mean() * 3,
        "b": (made[1].sin() * given[1]).mean(),
        "c": (made[0].mean((2, 3)) - made[1].mean((2, 3))).abs().mean(),
    }


def _inputs() -> tuple[list[Tensor], list[Tensor]]:
    random = torch.Generator().manual_seed(0)
    made = [torch.randn(5, c, 4, 6, generator=random, dtype=torch.float64).requires_grad_() for c in (3, 1)]
    return made, [torch.randn(5, c, 4, 6, generator=random, dtype=torch.float64) for c in (3, 1)]


@pytest.mark.parametrize("elements", [1, 150, 1 << 21])
def test_values_and_gradients_are_those_of_plain_autograd(elements: int, limit: Limit) -> None:
    limit("elements of a piece", elements)
    made, given = _inputs()
    plain = _loss(made, given)
    wanted = torch.autograd.grad(torch.stack(list(plain.values())).sum() * 7, made)
    terms = eager_gradient(_loss, made, given)
    assert list(terms) == list(plain)
    for name, value in plain.items():
        torch.testing.assert_close(terms[name], value)
    gradients = torch.autograd.grad(torch.stack(list(terms.values())).sum() * 7, made)
    for a, b in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_without_gradients_it_is_the_loss_itself() -> None:
    made, given = _inputs()
    with torch.no_grad():
        terms = eager_gradient(_loss, made, given)
    assert not any(term.requires_grad for term in terms.values())


def test_little_is_kept_for_backward() -> None:
    """One map for each prediction, whatever the loss computes."""
    made = [torch.zeros(5, c, 64, 64, requires_grad=True) for c in (3, 1)]
    given = [torch.zeros(5, c, 64, 64) for c in (3, 1)]
    with Tracker({"batch": [*made, *given]}) as live:
        before = live.live_bytes
        terms = eager_gradient(_loss, made, given)
        kept_bytes = live.live_bytes - before
    assert terms["a"].requires_grad
    assert 0 <= kept_bytes - storages_bytes(made) <= 16 * 512
