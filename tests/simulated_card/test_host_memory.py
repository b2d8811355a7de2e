"""Host memory beside a card."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from frugan.accelerator.host_memory import Away, HostCopies
from limits import Limit

CARD = torch.device("privateuseone", 0)  # torch's name of the first simulated card until it is registered


@pytest.mark.parametrize(
    "part",
    [lambda x: x[:, 16:32].view(8, 1, 4, 4), lambda x: x[:, :1].expand(8, 3), lambda x: x.t(), lambda x: x],
    ids=["columns", "expanded", "transposed", "whole"],
)
def test_a_part_of_a_larger_tensor_goes_to_the_host_and_comes_back(
    part: Callable[[Tensor], Tensor], cards: Callable[..., Any], limit: Limit
) -> None:
    """Its copies take no memory of the queue's own."""
    limit("bytes sent to the host", 1)
    cards()
    whole = torch.arange(8 * 164, dtype=torch.float32).view(8, 164)
    copies, gradients = HostCopies(), list[Tensor]()
    for device in (CARD, torch.device("cpu")):
        x = whole.to(device).requires_grad_()
        with copies.keeping():
            y = part(x).square().sum()
        copies.let_go()
        gradients += torch.autograd.grad(y, x)
    assert torch.equal(gradients[0].cpu(), gradients[1])


class Noted(HostCopies):
    """Notes what begins to come back."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def bring(self, away: Away) -> None:
        self.notes.append("comes")
        super().bring(away)


@pytest.mark.parametrize("ahead", [True, False])
def test_what_backward_asks_for_next_comes_ahead(ahead: bool, cards: Callable[..., Any], limit: Limit) -> None:
    """Where it is to; and what was sent last is still there."""
    limit("bytes sent to the host", 1)
    cards()
    copies, y = Noted(), torch.full((4,), 2.0, device=CARD, requires_grad=True)
    y.register_hook(lambda _: copies.notes.append("x"))
    x = y
    with copies.until_done(bring_ahead=ahead):
        for _ in range(3):
            with copies.keeping():
                y = y.square()
            y.register_hook(lambda _: copies.notes.append("y"))
        y.sum().backward()
    assert copies.notes == (["y", "comes", "y", "comes", "y", "x"] if ahead else ["y", "y", "comes", "y", "comes", "x"])
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), torch.full((4,), 8 * 2.0**7))


def test_what_nobody_asks_for_is_kept_until_its_copies_are_done(cards: Callable[..., Any], limit: Limit) -> None:
    limit("bytes sent to the host", 1)
    cards()
    copies, x = HostCopies(), torch.ones(4, device=CARD, requires_grad=True)
    with copies.until_done(bring_ahead=True):
        middle = x * 1
        with copies.keeping():
            y = middle.square()
        del middle, y  # while it leaves
        first = x * 1
        with copies.keeping():
            middle = first.square()
        with copies.keeping():
            y = middle.square()
        del first
        torch.autograd.grad(y, middle, torch.ones(4, device=CARD))
        del middle, y  # while the one before it comes back
    assert torch.equal(torch.zeros(4, device=CARD).cpu(), torch.zeros(4))
