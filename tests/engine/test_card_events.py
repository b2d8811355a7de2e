"""Waiting for a card, seen without one."""

import pytest
import torch

from frugan.engine.accelerator.cuda import Cuda


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
