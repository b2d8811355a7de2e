"""State in host memory."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from contract.made_up import MadeUpFamily
from contract.rig import OPTIMIZERS, Rig, assert_same
from frugan.engine.checkpoint import OPTIMIZERS_FILE, newest_whole, restore, save_checkpoint
from frugan.engine.host_memory import host_like, host_likes, pinned_copy, zeros_for
from frugan.engine.optimizers import OptimizerSettings

CUDA = torch.device("cuda")


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
