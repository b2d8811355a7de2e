"""What is asked of torch about a card, with torch's answers made up; its real ones need a card (tests/gpu)."""

import pytest
import torch

from frugan.doctor.cards import CardTools, tools_of
from frugan.wording import GIB, MIB

CARD = CardTools(torch.device("cuda", 0))


class Counters:
    """torch.cuda's, by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocated, self.reserved, self.peak_allocated, self.peak_reserved = 100, 200, 0, 0
        self.fraction, self.sync_mode = 0.9, 0
        self.fractions: list[float] = []
        self.modes: list[int | str] = []
        properties = type("Properties", (), {"total_memory": 8 * GIB})
        for name, made in {
            "synchronize": lambda _: None,
            "empty_cache": lambda: None,
            "reset_peak_memory_stats": lambda _: None,
            "mem_get_info": lambda _: (2 * GIB, 8 * GIB),
            "memory_allocated": lambda _: self.allocated * MIB,
            "memory_reserved": lambda _: self.reserved * MIB,
            "max_memory_allocated": lambda _: self.peak_allocated * MIB,
            "max_memory_reserved": lambda _: self.peak_reserved * MIB,
            "get_device_properties": lambda _: properties,
            "get_per_process_memory_fraction": lambda _: self.fraction,
            "set_per_process_memory_fraction": lambda share, _: self.fractions.append(share),
            "get_sync_debug_mode": lambda: self.sync_mode,
            "set_sync_debug_mode": self.modes.append,
        }.items():
            monkeypatch.setattr(torch.cuda, name, made)


@pytest.mark.long
def test_what_was_there_before_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters(monkeypatch)
    with CARD.watched() as taken:
        counters.peak_allocated, counters.peak_reserved, counters.reserved = 1100, 1700, 900
    assert (taken.allocated_bytes, taken.reserved_bytes, taken.kept_bytes) == (1000 * MIB, 1500 * MIB, 700 * MIB)


@pytest.mark.parametrize(("more", "share"), [(1848 * MIB, 0.25), (80 * GIB, 0.9)])
def test_a_cap_is_set_and_taken_away_whatever_happens(more: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters(monkeypatch)
    with pytest.raises(torch.OutOfMemoryError), CARD.capped(more):
        raise torch.OutOfMemoryError("full")
    assert counters.fractions == pytest.approx([share, 0.9])
    assert all(isinstance(each, float) for each in counters.fractions)  # torch takes nothing else


def test_waiting_is_refused_and_allowed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters(monkeypatch)
    with pytest.raises(RuntimeError), CARD.refusing_to_wait():
        raise RuntimeError("called a synchronizing CUDA operation")
    assert counters.modes == ["error", 0]


def test_a_processor_has_no_such_tools() -> None:
    assert tools_of(torch.device("cpu")) is None
    assert tools_of(torch.device("cuda", 1)) == CardTools(torch.device("cuda", 1))
