"""Peaks and latencies of this machine."""

import time
from types import SimpleNamespace

import pytest
import torch

from frugan.stepmemory import calibration
from frugan.stepmemory.calibration import measure_latency, measure_peaks
from frugan.stepmemory.tracker import Tracker
from frugan.wording import MIB


@pytest.mark.long
def test_peaks_are_those_of_a_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_MATRIX", 512)
    monkeypatch.setattr(calibration, "_COPY_BYTES", 2**24)
    for dtype in (torch.float32, torch.bfloat16):
        peaks = measure_peaks("cpu", dtype)
        assert 1e8 < peaks.macs_per_s < 1e15
        assert 1e8 < peaks.bytes_per_s < 1e14


@pytest.mark.parametrize(("free", "most"), [(1024, 64), (64, 32), (24, 12)])
def test_peaks_of_a_card_take_no_more_than_half_of_what_is_free(
    free: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In MiB; matrices and copies one after the other, each as large as is wanted or as there is room for."""
    own = SimpleNamespace(is_card=True, free_bytes=free * MIB, give_back=lambda: None, synchronize=lambda: None)
    monkeypatch.setattr(calibration, "accelerator_of", lambda _: own)
    monkeypatch.setattr(calibration, "_MATRIX_ON_CARD", 2048)  # 16 MiB each in fp32, three of them
    monkeypatch.setattr(calibration, "_COPY_BYTES_ON_CARD", 32 * MIB)
    with Tracker() as live:
        measure_peaks("cpu")
    assert live.peak_bytes == most * MIB
    assert live.live_bytes == 0


def test_products_of_random_numbers_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants let a card clock higher than any training does."""
    monkeypatch.setattr(calibration, "_MATRIX", 64)
    monkeypatch.setattr(calibration, "_COPY_BYTES", 2**10)
    product, given = torch.mm, list[torch.Tensor]()

    def mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        given[:] = a, b
        return product(a, b, out=out)

    monkeypatch.setattr(torch, "mm", mm)
    measure_peaks("cpu")
    assert [len(each.unique()) > 4000 for each in given] == [True, True]


def test_latency_is_the_least_of_several_runs_after_a_warm_up() -> None:
    naps = iter([0.2, 0.03, 0.01, 0.03, 0.03])
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        time.sleep(next(naps))

    assert 0.01 <= measure_latency(call, "cpu", repeats=4) < 0.03
    assert calls == 5


def test_latency_keeps_to_its_budget() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.02)

    measure_latency(call, "cpu", repeats=50, budget_seconds=0.01)
    assert calls == 3  # a warm-up and the two that are always timed
