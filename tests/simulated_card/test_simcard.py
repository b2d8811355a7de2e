"""The simulated card itself: what it refuses, when its copies are done, what it counts."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from frugan.accelerator.base import Accelerator
from frugan.accelerator.choice import accelerator_of
from frugan.engine.ranks.place import Place
from frugan.errors import BadInput
from frugan.setup.devices import choose_device, device_of_rank

Cards = Callable[..., Any]
NUMBERS = 64


@pytest.fixture
def card(cards: Cards) -> Accelerator:
    return accelerator_of(torch.device("simcard", 0))


def ramp() -> Tensor:
    return torch.arange(NUMBERS, dtype=torch.float32)


def test_devices_do_not_mix(cards: Cards) -> None:
    cards(SIMCARD_COUNT=2)
    first, second = torch.ones(3, device="simcard:0"), torch.ones(3, device="simcard:1")
    with pytest.raises(RuntimeError, match=r"aten.add.Tensor.*simcard:0 and cpu"):
        first + torch.ones(3)
    with pytest.raises(RuntimeError, match=r"aten.mul.Tensor.*simcard:0 and simcard:1"):
        first * second
    assert (first + torch.tensor(1.0)).cpu().tolist() == [2.0] * 3  # one number of the host's is an argument


def test_the_host_waits_where_it_reads(cards: Cards, card: Accelerator) -> None:
    x = ramp().to(card.device)
    waits = cards().clock.waits
    assert x.sum().item() == float(ramp().sum())
    assert waits["aten::_local_scalar_dense"] == 1
    with card.refusing_to_wait():
        y = x * 2
        for reading in (y.sum().item, y.cpu, y.nonzero, lambda: y[y > 3], lambda: bool(y.sum() > 0)):
            with pytest.raises(RuntimeError, match="makes the host wait"):
                reading()
    assert torch.equal(y.cpu(), ramp() * 2)


def test_a_copy_to_pinned_memory_has_not_arrived_before_it_was_waited_for(cards: Cards, card: Accelerator) -> None:
    x = ramp().to(card.device)
    there = card.pinned_like(x).copy_(x, non_blocking=True)
    arrived = card.queued_so_far()
    assert torch.isnan(there).all()
    arrived.synchronize()
    assert torch.equal(there, ramp())
    cards(SIMCARD_SCHEDULE="earliest")
    x = ramp().to(card.device)
    assert torch.equal(card.pinned_like(x).copy_(x, non_blocking=True), ramp())


def test_a_copy_to_pageable_memory_is_waited_for(cards: Cards, card: Accelerator) -> None:
    x = ramp().to(card.device)
    with card.refusing_to_wait(), pytest.raises(RuntimeError, match="pageable memory makes the host wait"):
        torch.empty(NUMBERS).copy_(x, non_blocking=True)


def test_pinned_memory_that_is_filled_again_too_early_is_told(card: Accelerator) -> None:
    here = card.pin(ramp())
    x = here.to(card.device, non_blocking=True)
    behind = card.queued_so_far()
    here.zero_()
    with pytest.raises(RuntimeError, match="was filled again before the card had copied from it"):
        behind.synchronize()
    assert torch.equal(x.cpu(), ramp())


def test_the_host_writes_no_memory_that_is_on_its_way(card: Accelerator) -> None:
    x = ramp().to(card.device)
    there = card.pinned_like(x).copy_(x, non_blocking=True)
    there.zero_()
    with pytest.raises(RuntimeError, match="before a copy from the card had arrived"):
        card.synchronize()


def test_a_card_reads_what_it_was_to_write_before(card: Accelerator) -> None:
    """The host is ahead of both copies, and kept away."""
    x = ramp().to(card.device)
    there = card.pinned_like(x).copy_(x, non_blocking=True)
    back = there.to(card.device, non_blocking=True)
    assert torch.equal(back.cpu(), ramp())


def test_a_queue_that_does_not_wait_for_another_is_told(card: Accelerator) -> None:
    side = card.side_stream()
    x = torch.zeros(NUMBERS, device=card.device)
    there = card.pinned_like(x)
    x.add_(1)
    with card.on(side), pytest.raises(RuntimeError, match="nothing says which comes first"):
        there.copy_(x, non_blocking=True)
    side.wait_event(card.queued_so_far())
    with card.on(side):
        there.copy_(x, non_blocking=True)
        copied = side.record_event()
    with pytest.raises(RuntimeError, match="nothing says which comes first"):
        x.add_(1)
    card.current_stream.wait_event(copied)
    x.add_(1)
    assert torch.isnan(there).all()  # a card that waits lets no host wait
    copied.synchronize()
    assert torch.equal(there, torch.ones(NUMBERS))


def test_memory_that_another_queue_reads_is_not_freed(card: Accelerator) -> None:
    side = card.side_stream()
    x = torch.ones(NUMBERS, device=card.device)
    there = card.pinned_like(x)
    side.wait_event(card.queued_so_far())
    with card.on(side):
        there.copy_(x, non_blocking=True)
    del x
    with pytest.raises(RuntimeError, match="was freed before a copy to the host on simcard:0/"):
        torch.ones(NUMBERS, device=card.device)


def test_no_memory_is_taken_on_another_queue(card: Accelerator) -> None:
    x = torch.ones(NUMBERS, device=card.device)
    with card.on(card.side_stream()), pytest.raises(RuntimeError, match="from a pool of its own"):
        x + 1


def test_memory_is_counted_limited_and_refused(cards: Cards, card: Accelerator) -> None:
    x = torch.zeros(3 * 2**20 // 4, device=card.device)
    assert (card.live_bytes, card.reserved_bytes) == (3 * 2**20, 20 * 2**20)
    card.limit(24 * 2**20)
    with pytest.raises(torch.OutOfMemoryError, match="simulated card out of memory"):
        torch.zeros(2**23, device=card.device)
    del x
    assert (card.live_bytes, card.reserved_bytes, card.peak_live_bytes) == (0, 20 * 2**20, 3 * 2**20)
    card.give_back()
    assert card.reserved_bytes == 0
    cards(SIMCARD_REFUSE="2")
    kept = [torch.zeros(3, device=card.device)]
    with pytest.raises(torch.OutOfMemoryError, match="allocation 2 is refused"):
        kept.append(kept[0] + 1)
    assert (kept[0] + 1).cpu().tolist() == [1.0] * 3


def test_new_memory_holds_nothing(card: Accelerator) -> None:
    assert torch.isnan(torch.empty(4, device=card.device).cpu()).all()
    assert torch.equal(torch.empty(4, dtype=torch.int64, device=card.device).cpu(), torch.full((4,), -1))


def test_a_card_has_a_generator_of_its_own(cards: Cards, card: Accelerator) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = torch.rand(4, device=card.device)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(4, device=card.device).cpu(), first.cpu())
    generator = torch.Generator(card.device)
    with pytest.raises(RuntimeError, match="expected a generator of simcard:0"):
        torch.rand(4, device=card.device, generator=torch.Generator("cpu"))
    cards(SIMCARD_COUNT=2)
    with pytest.raises(RuntimeError, match="expected a generator of simcard:1"):
        torch.rand(4, device="simcard:1", generator=generator)


class _Seen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, threads: list[str]) -> Tensor:
        ctx.threads = threads
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.threads.append(threading.current_thread().name)
        return gradients[0] * 2, None


def test_backward_runs_on_a_thread_of_the_card(card: Accelerator) -> None:
    threads: list[str] = []
    x = torch.ones(3, device=card.device, requires_grad=True)
    loss: Tensor = _Seen.apply(x, threads).sum()
    loss.backward()
    with torch.autograd.set_multithreading_enabled(False):
        loss = _Seen.apply(x, threads).sum()
        loss.backward()
    assert threads[0] != threading.current_thread().name
    assert threads[1] == threading.current_thread().name


def _trained(device: torch.device) -> list[Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    pictures = torch.linspace(-1, 1, 4 * 3 * 64).reshape(4, 3, 8, 8).to(device).requires_grad_()
    for _ in range(3):
        outputs = model(pictures)
        (slope,) = torch.autograd.grad(outputs.sum(), pictures, create_graph=True)
        optimizer.zero_grad()
        (outputs.mean() + slope.square().sum()).backward()
        optimizer.step()
    return [each.detach().cpu() for each in model.parameters()]


@pytest.mark.usefixtures("a_cards_bits")
def test_a_training_with_a_second_derivative_is_a_processors(card: Accelerator) -> None:
    for own, processors in zip(_trained(card.device), _trained(torch.device("cpu")), strict=True):
        assert torch.equal(own, processors)


def test_what_a_selective_recomputation_refuses_within_a_backward_is_told(card: Accelerator) -> None:
    def kept_products() -> Any:
        return checkpoint.create_selective_checkpoint_contexts([torch.ops.aten.mm.default])

    x = torch.ones(3, 3, device=card.device, requires_grad=True)
    made = checkpoint.checkpoint(lambda x: (x @ x).sin(), x, use_reentrant=False, context_fn=kept_products)
    made.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="selective activation checkpoint"):
        made.sum().backward()


def test_what_is_known_of_pinned_memory_goes_with_it(cards: Cards, card: Accelerator) -> None:
    """Else it grows with every copy of a long run, and its address may be another's by then."""
    order = cards().clock.order
    card.side_stream()  # from here on accesses are watched
    for _ in range(3):
        there = card.pin(ramp())
        x = there.to(card.device, non_blocking=True)
        there.copy_(x * 2, non_blocking=True)
        card.synchronize()
        assert order._touched
        del there, x
        assert card.live_bytes == 0
        assert order._touched == {}


def test_the_context_grows_with_kernels_that_are_used_first(cards: Cards, card: Accelerator) -> None:
    memory = cards(SIMCARD_KERNEL_BYTES=2**20).memory[0]
    x = ramp().to(card.device)
    before = memory.context_bytes
    for _ in range(3):
        x = x.sin()
    assert memory.context_bytes == before + 2**20
    assert card.total_bytes - card.free_bytes - card.reserved_bytes == memory.context_bytes


def test_messages_about_devices_know_its_kind(cards: Cards) -> None:
    with pytest.raises(BadInput, match=r"--device simcard:3: this torch \(\S+\) sees 1 SIMCARD card$"):
        choose_device("simcard:3")
    with pytest.raises(BadInput, match="expected auto, cpu, cuda or cuda:N, simcard or simcard:N"):
        choose_device("card")
    with pytest.raises(BadInput, match=r"2 ranks take a card each: expected auto, cuda, simcard or cpu$"):
        device_of_rank("simcard:1", Place(0, 2, 0, 2))
