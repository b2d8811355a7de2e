"""The live-byte tracker counts what lives, on real and on fake tensors."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from frugan.memory.tracker import LiveBytes, storages_bytes

KIB = 1024


def _work() -> None:
    a = torch.zeros(64, KIB)  # 256 KiB
    b = a + 1  # 512
    view = b[:32]
    del b
    c = view * 2  # 512 + 128
    del a, view  # 128
    c.add_(1)
    torch.zeros(32, KIB)  # 256, gone at once


@pytest.mark.parametrize("fake", [False, True])
def test_follows_storages(fake: bool) -> None:
    with FakeTensorMode() if fake else torch.no_grad(), LiveBytes() as live:
        _work()
    assert live.peak_bytes == 640 * KIB
    assert live.live_bytes == 0
    assert live.allocations == 4
    assert live.peak_allocation == 2


def test_what_is_there_already_counts_and_sizes_are_rounded() -> None:
    there = torch.zeros(1)
    with LiveBytes([there, there[:1]]) as live:
        assert live.live_bytes == 512
        kept = there + 1
        assert live.live_bytes == 1024
    assert storages_bytes([there, there.view(1), kept]) == 1024


def test_the_wanted_allocation_is_shown() -> None:
    seen: list[int] = []
    with LiveBytes(at_allocation=2, on_allocation=lambda live: seen.append(live.live_bytes)):
        _work()
    assert seen == [640 * KIB]


def test_a_backward_is_followed() -> None:
    weight = torch.zeros(256, 256, requires_grad=True)  # 256 KiB
    with LiveBytes([weight]) as live:
        (weight * 2).sin().sum().backward()
    assert live.live_bytes == 512 * KIB  # the weight and its gradient
    assert live.peak_bytes >= 1024 * KIB
