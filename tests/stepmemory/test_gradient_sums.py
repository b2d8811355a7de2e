"""A watched backward adds gradients where an unwatched one does; what that takes is held to torch's own profiler."""

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from frugan.stepmemory.dataless import META, Dataless, WithoutData
from frugan.stepmemory.tracker import Tracker
from frugan.wording import MIB

ELEMENTS = 2**18
"""Of fp32: a mebibyte."""


def _three_uses(x: Tensor) -> None:
    """Backward adds three gradients up: an expanded one each time, or the products of one."""
    h = x * 2
    (h.exp().sum() + h.sin().sum() + h.cos().sum() + h.tanh().sum()).backward()


def _held_elsewhere(x: Tensor) -> None:
    """The first gradient is still wanted by others: it must not be written into."""
    h = x * 2
    held: list[Tensor] = []
    a, b = h * 3, h * 5
    a.register_hook(held.append)
    b.register_hook(held.append)
    (a.exp().sum() + b.sin().sum()).backward()


def _unwatched_bytes(run: object) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        run()  # type: ignore[operator]
    live = most = 0
    for event in watched.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most


@pytest.mark.parametrize("run", [_three_uses, _held_elsewhere])
def test_as_much_as_unwatched(run: object) -> None:
    given = torch.zeros(ELEMENTS, requires_grad=True)
    expected = _unwatched_bytes(lambda: run(given))  # type: ignore[operator]
    given.grad = None
    with Tracker({"parameters": [given]}) as real:
        run(given)  # type: ignore[operator]
    with WithoutData(Dataless()):
        blank = torch.empty(ELEMENTS, device=META, requires_grad=True)
    with Tracker({"parameters": [blank]}, dataless=Dataless()) as dataless:
        run(blank)  # type: ignore[operator]
    for tracked in (real, dataless):
        assert tracked.peak_bytes - MIB == pytest.approx(expected, abs=16 * 512)


def test_sums_are_right() -> None:
    """In place on real tensors too."""
    x, watched = (torch.linspace(-1, 1, 9).requires_grad_() for _ in range(2))
    _three_uses(x)
    with Tracker():
        _three_uses(watched)
    assert torch.equal(x.grad, watched.grad)  # type: ignore[arg-type]


def test_a_shared_gradient_is_not_written_into() -> None:
    held: list[Tensor] = []
    x = torch.ones(4, requires_grad=True)
    with Tracker():
        h = x * 1
        a, b = h * 3, h * 5
        a.register_hook(held.append)
        b.register_hook(held.append)
        (a + b).sum().backward()
    assert all(torch.equal(each, torch.ones(4)) for each in held)
    assert torch.equal(x.grad, torch.full((4,), 8.0))  # type: ignore[arg-type]
