"""The live-byte tracker counts what lives, on real and on fake tensors."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from frugan.stepmemory.tracker import Tracker
from stepmemory.storages import storages_bytes

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
    with FakeTensorMode() if fake else torch.no_grad(), Tracker() as live:
        _work()
    assert live.peak_bytes == 640 * KIB
    assert live.live_bytes == 0
    assert [size // KIB for size in live.trace.live_bytes()] == [256, 512, 640, 384, 128, 256, 128, 0]
    assert live.trace.peak().size_bytes == 640 * KIB


def test_what_is_there_already_counts_and_sizes_are_rounded() -> None:
    there = torch.zeros(1)
    with Tracker({"batch": [there, there[:1]]}) as live:
        assert live.live_bytes == 512
        kept = there + 1
        assert live.live_bytes == 1024
    assert storages_bytes([there, there.view(1), kept]) == 1024


def test_a_backward_is_followed() -> None:
    weight = torch.zeros(256, 256, requires_grad=True)  # 256 KiB
    with Tracker({"parameters": [weight]}) as live:
        (weight * 2).sin().sum().backward()
    assert live.live_bytes == 512 * KIB  # the weight and its gradient
    assert live.peak_bytes >= 1024 * KIB


def test_what_tensors_are_for_is_known_afterwards() -> None:
    weight = torch.zeros(64, KIB, requires_grad=True)  # 256 KiB
    host = torch.zeros(64, KIB)
    with Tracker({"parameters": [weight]}) as live:
        live.ignore([host])
        batch = host * 2  # 256
        host.view(-1)
        live.mark("batch", [batch])
        live.place = "forward"
        with live.saved():
            loss = ((weight * batch).sin() + 1).sum()  # two of 256 last: the sine's input is saved, its output is not
        live.place = "backward"
        loss.backward()
        assert weight.grad is not None
        live.mark("gradients", [weight.grad])
    peak, whole = live.trace.peak(), 256 * KIB
    # in backward: what reaches the sine (the loss and its gradient are rounded to 512 each), and its cosine
    assert peak.categories == {
        "parameters": whole,
        "batch": whole,
        "saved activations": whole,
        "temporaries": 2 * whole + 1024,
    }
    assert (peak.place, peak.size_bytes) == ("backward", sum(peak.categories.values()))
    assert live.trace.peak(lambda place: place == "forward").size_bytes == 5 * whole
    assert live.trace.categories[-1] == "gradients"
