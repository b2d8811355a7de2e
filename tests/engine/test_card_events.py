"""Waiting for a card, seen without one."""

from contextlib import suppress

import pytest
import torch

from frugan.accelerator.cuda import Cuda


def test_events_stand_on_the_devices_own_stream_and_let_the_host_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    class Event:
        def __init__(self, *, blocking: bool) -> None:
            seen.append(blocking)

        def record(self, stream: object) -> None:
            seen.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream of", device))
    card = torch.device("cuda", 1)
    assert isinstance(Cuda(card).queued_so_far(), Event)
    assert seen == [True, ("stream of", card)]


def test_what_makes_the_host_wait_is_an_error_inside_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int | str] = [1]  # torch's number for "warn"
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with suppress(RuntimeError), Cuda(torch.device("cuda", 1)).refusing_to_wait():
        assert modes == [1, "error"]
        raise RuntimeError("called a synchronizing CUDA operation")
    assert modes == [1, "error", 1]
