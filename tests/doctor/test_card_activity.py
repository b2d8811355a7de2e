"""What doctor says of what a card does, now and in the last training, by a made-up NVML."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accelerator.made_up_nvml import usual
from frugan.accelerator.nvml import nvml_sensors
from frugan.doctor import card_activity
from frugan.doctor.card_activity import activity_finding, last_training_finding

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugan.doctor.card_activity.time.sleep", lambda _: None)


def pretend(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
    library = usual(**answers)
    own = SimpleNamespace(sensors=lambda: nvml_sensors("GPU-a", library))
    monkeypatch.setattr(card_activity, "accelerator_of", lambda _: own)


def test_a_card_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, UtilizationRates=SimpleNamespace(gpu=0))
    found = activity_finding(CUDA)
    assert (found.state, found.cure) == ("fine", None)
    assert found.line == "busy 0 % of the time, 6.0 GiB used, 71 °C, 285 W, 1410 MHz"
    assert found.values["power_w"] == 285.4


def test_a_card_on_which_another_program_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    found = activity_finding(CUDA)
    assert found.state == "limited"
    assert found.line.startswith("busy 45 % of the time")
    assert "another program computes on it now" in str(found.cure)


def test_a_card_that_cannot_be_asked() -> None:
    found = activity_finding(torch.device("cpu"))
    assert (found.state, found.line) == ("fine", "not known: nothing tells of cpu")


def run_with(folder: Path, busy: float, waited: float, padding: int = 0) -> None:
    folder.mkdir(parents=True)
    common = {"event": "step", "took_seconds": 1.0, "data_seconds": waited, "phases": {}, "padding": "x" * padding}
    events = [{**common, "step": n, "card": {"samples": 1, "busy": busy}} for n in range(1, 101)]
    lines = [json.dumps(each) for each in ({"event": "start", "step": 0}, *events)]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


def test_the_last_training_is_judged_by_its_events(tmp_path: Path) -> None:
    assert last_training_finding(tmp_path / "none") is None
    run_with(tmp_path / "runs" / "first", busy=0.2, waited=0.7)
    found = last_training_finding(tmp_path / "runs")
    assert found is not None
    assert found.state == "limited"
    assert found.line.endswith("first: busy with it 20 % of the time; it waits for pictures, 70 % of each step")
    assert str(found.cure).startswith("pictures stored as pixels")


def test_of_a_long_training_the_end_is_read_and_a_busy_card_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with(tmp_path / "long", busy=0.9, waited=0.0, padding=100)
    monkeypatch.setattr(card_activity, "LAST_BYTES", 15_000)  # from the middle of a line on
    found = last_training_finding(tmp_path)
    assert found is not None
    assert (found.state, found.values["busy"]) == ("fine", 0.9)
    monkeypatch.setattr(card_activity, "LAST_BYTES", 1000)
    assert last_training_finding(tmp_path) is None  # too little to judge
