"""State in host memory."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import pytest
import torch
from torch import Tensor

from contract.made_up import MadeUpFamily
from contract.rig import OPTIMIZERS, Rig, assert_same
from frugan.accelerator import host_memory
from frugan.accelerator.base import Processor
from frugan.accelerator.host_memory import Blocks, HostCopies, host_like, host_likes, pinned_copy, zeros_for
from frugan.engine.run.checkpoint import OPTIMIZERS_FILE, newest_whole, restore, save_checkpoint
from frugan.engine.state.optimizer_settings import OptimizerSettings
from limits import Limit

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class OnCard:
    """Says that it is on a card, where host memory is pinned for it: which a machine without one refuses."""

    device = CUDA

    def detach(self) -> Tensor:
        return torch.ones(2, 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here memory can be pinned")
def test_where_nothing_can_be_pinned_it_is_said_and_done_without() -> None:
    card = cast(Tensor, OnCard())
    with pytest.warns(UserWarning, match="pageable memory"):
        made = zeros_for(card, on_host=True)
    with pytest.warns(UserWarning, match="what recomputed blocks are given lies in pageable memory"):
        assert host_like(card, "what recomputed blocks are given").shape == (2, 3)
    assert made.shape == (2, 3)
    assert not made.any()
    with pytest.warns(UserWarning, match="optimizer state lies in pageable memory"):
        several = host_likes([card, card], "optimizer state")
    assert [tensor.shape for tensor in several] == [(2, 3), (2, 3)]
    with pytest.warns(UserWarning, match="what is drawn lies in pageable memory"):
        assert pinned_copy(made, CUDA, "what is drawn") is made


def test_what_is_drawn_is_pinned_beside_a_card_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, pinned = torch.zeros(2), torch.ones(2)
    monkeypatch.setattr(Tensor, "pin_memory", lambda _: pinned)
    assert pinned_copy(drawn, CUDA, "what is drawn") is pinned
    assert pinned_copy(drawn, torch.device("cpu"), "what is drawn") is drawn


def test_tensors_in_one_allocation_keep_their_layouts_and_do_not_meet() -> None:
    likes = [
        torch.zeros(3, 5, 2, 2).contiguous(memory_format=torch.channels_last),
        torch.zeros(7, dtype=torch.float64),
        torch.zeros(()),
        torch.zeros(1000, 3),
    ]
    made = host_likes(likes, "test")
    for value, (like, tensor) in enumerate(zip(likes, made, strict=True)):
        assert (tensor.shape, tensor.stride(), tensor.dtype) == (like.shape, like.stride(), like.dtype)
        tensor.fill_(value)
    assert len({tensor.untyped_storage().data_ptr() for tensor in made}) == 1
    assert all(bool((tensor == value).all()) for value, tensor in enumerate(made))


@pytest.mark.parametrize("optimizers", OPTIMIZERS)
def test_state_on_the_host_is_saved_once_and_comes_back(
    optimizers: Callable[[float], OptimizerSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with neighbours in one allocation, which are no aliases and need no second copy in memory."""
    away, here = (Rig.create(MadeUpFamily(), optimizers=optimizers, optimizer_on_host=kept) for kept in (True, False))
    slots = [t for o in away.state.optimizers.values() for s in o.state.values() for t in s.values() if t.ndim]
    assert len({t.untyped_storage().data_ptr() for t in slots}) == len(away.state.optimizers)
    away.run(2)
    here.run(2)
    assert_same(away.tensors(), here.tensors())
    with monkeypatch.context() as without_copies:
        without_copies.setattr(Tensor, "clone", None)
        save_checkpoint(tmp_path, away.state, {}, {})
    newest = newest_whole(tmp_path)
    assert newest is not None
    assert (newest[0].path / OPTIMIZERS_FILE).stat().st_size < sum(t.nbytes for t in slots) + 40_000
    fresh = Rig.create(MadeUpFamily(), optimizers=optimizers, optimizer_on_host=True)
    restore(newest[0], newest[1], fresh.state)
    assert_same(away.tensors(), fresh.tensors())


@dataclass(frozen=True)
class _Card(Processor):
    """Pins by taking ordinary memory, and counts how often."""

    is_card: ClassVar[bool] = True
    made: ClassVar[list[int]] = []
    room: ClassVar[int] = 99

    def pinned_like(self, like: Tensor) -> Tensor:
        self.made.append(like.nbytes)
        if len(self.made) > self.room:
            raise RuntimeError("CUDA error: out of memory")
        return torch.empty_like(like, device="cpu")


@pytest.fixture
def pinning(monkeypatch: pytest.MonkeyPatch) -> type[_Card]:
    monkeypatch.setattr(host_memory, "accelerator_of", _Card)
    monkeypatch.setattr(_Card, "made", [])
    return _Card


def test_what_is_needed_no_more_lends_its_memory_to_what_is_sent_next(pinning: type[_Card]) -> None:
    """Torch would ask for new memory as long as the card has not read the old, and the host is far ahead of it."""
    copies, given = HostCopies(), [torch.full((3, 5), float(i)) for i in range(4)]
    for _ in range(3):  # micro-batches
        away = [copies.send(each) for each in given]
        for _ in range(2):  # a second derivative asks twice
            for each, sent in zip(away, given, strict=True):
                copies.bring(each)
                back = each.take()
                assert back is not None
                assert torch.equal(back, sent)
        del away, each
    assert pinning.made == [64] * 4


def test_what_a_graph_keeps_is_not_lent(pinning: type[_Card], limit: Limit) -> None:
    limit("bytes sent to the host", 1)
    copies, x = HostCopies(), torch.arange(6.0, requires_grad=True)
    with copies.keeping():
        y = (x * 2).exp().sum()
    copies.let_go()  # as before the next block
    others = [copies.send(torch.zeros(6)) for _ in range(3)]
    (gradient,) = torch.autograd.grad(y, x)
    torch.testing.assert_close(gradient, 2 * (x.detach() * 2).exp())
    assert all(not other.there.any() for other in others)


def test_memory_that_was_refused_once_is_not_asked_for_again(
    pinning: type[_Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinning, "room", 1)
    copies = HostCopies()
    with pytest.warns(UserWarning, match="what recomputed blocks are given lies in pageable memory"):
        kept = [copies.send(torch.full((9,), float(i))) for i in range(4)]
    assert len(pinning.made) == 2
    assert [float(each.there[0]) for each in kept] == [0.0, 1.0, 2.0, 3.0]


def test_blocks_are_used_again_also_by_what_is_smaller() -> None:
    """Phases send tensors of their own sizes, and a smaller plan smaller ones: that pins nothing more."""
    blocks = Blocks[str]()
    taken = [blocks.take(size, lambda size=size: f"of {size}") for size in (16, 64, 32)]  # type: ignore[misc]
    for block in taken:
        blocks.give_back(block)
    assert blocks.take(20, str) == (32, "of 32")
    assert blocks.take(20, str) == (64, "of 64")
    assert blocks.take(8, str) == (16, "of 16")
    assert blocks.total_bytes == 112
    assert blocks.take(8, str) == (8, "")
    assert blocks.total_bytes == 120
