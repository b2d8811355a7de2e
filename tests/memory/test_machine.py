"""Peaks and latencies of this machine."""

import time

import pytest
import torch

from frugan.memory import calibration
from frugan.memory.calibration import measure_latency, measure_peaks


@pytest.mark.long
def test_peaks_are_those_of_a_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_MATRIX", 512)
    monkeypatch.setattr(calibration, "_COPY_BYTES", 2**24)
    for dtype in (torch.float32, torch.bfloat16):
        peaks = measure_peaks("cpu", dtype)
        assert 1e8 < peaks.macs_per_s < 1e15
        assert 1e8 < peaks.bytes_per_s < 1e14


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
