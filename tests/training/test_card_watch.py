"""What a card does is in a run's events, on its progress line, in its report and at TensorBoard; by a made-up NVML."""

import os
import socket
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from accelerator.made_up_nvml import usual
from frugan.accelerator.nvml import nvml_sensors
from frugan.accelerator.sensors import CardWatch, Holder, NoSensors
from frugan.engine.run.events import EventLog, read_events
from frugan.reporting import signs
from frugan.reporting.progress_line import describe
from frugan.reporting.report import page_of
from frugan.training import card_watch as watching
from frugan.training.card_watch import RankProcess, judge_card, look_for_second_cards, second_cards
from frugan.training.observers import scalars
from frugan.training.run import TrainingOptions, TrainRun
from frugan.training.training import train
from training.pictures import write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")
HOST, OWN = socket.gethostname(), os.getpid()


def pretend(monkeypatch: pytest.MonkeyPatch, sensors: Any) -> None:
    """Let what trains here be a card with these sensors, asked without a pause."""
    made_up = SimpleNamespace(is_card=True, sensors=sensors, collectives="nccl", uuid="a")
    monkeypatch.setattr(watching, "accelerator_of", lambda _: made_up)
    monkeypatch.setattr(watching, "CardWatch", partial(CardWatch, every_seconds=0.001))


def test_a_run_tells_what_its_card_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    library = usual(OWN)
    pretend(monkeypatch, lambda: nvml_sensors("GPU-a", library))
    monkeypatch.setattr(signs, "FIRST_STEPS", 1)
    monkeypatch.setattr(signs, "LEAST_SAMPLES", 2)
    run = tmp_path / "run"
    train(write_recipe(tmp_path), write_pictures(tmp_path / "pictures"), run, options=CPU, say=said.append)
    assert library.open == 0
    events = list(read_events(run / "events.jsonl"))
    step = [event for event in events if event["event"] == "step" and "card" in event][-1]
    assert step["card"] | {"samples": 1} == {
        "samples": 1,
        "busy": 0.45,
        "others_busy": 0.0,
        "others": 0,
        "used_bytes": 6 << 30,
        "temperature_c": 71,
        "power_w": 285.4,
        "clock_mhz": 1410,
    }
    assert " | card 45 % 6.0 GiB used 71 °C 285 W 1410 MHz" in str(describe(step))
    assert {"card/busy": 0.45, "card/power_w": 285.4}.items() <= scalars(step).items()
    assert "card/samples" not in scalars(step)
    page = page_of([run])
    for shown in ("Card busy (% of the time)", "Card temperature", "Card power (W)", "on the card, by all programs"):
        assert shown in page
    assert "<b>45 %</b>" in page
    # and that it idles, once, as a warning that the report shows too
    warned = [line for line in said if "the card was busy with this training 45 %" in line]
    assert len(warned) == 1
    assert "the host does not start its many small kernels" in warned[0]
    assert "the card was busy with this training 45 %" in page
    share, line = judge_card(events) or (0.0, "")
    assert share == pytest.approx(0.45)
    assert f"warning: {line}" == warned[0]


def test_why_nothing_is_known_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    def missing() -> None:
        raise NoSensors("nvidia-ml-py is not installed: pip install 'frugan[nvml]'")

    pretend(monkeypatch, missing)
    run = tmp_path / "run"
    train(write_recipe(tmp_path), write_pictures(tmp_path / "pictures"), run, options=CPU, say=said.append)
    told = "card: how busy and how warm it is stays unknown: nvidia-ml-py is not installed: pip install 'frugan[nvml]'"
    assert said.count(told) == 1
    assert not any("card" in event for event in read_events(run / "events.jsonl"))


def test_a_processor_is_not_asked(tmp_path: Path, said: list[str]) -> None:
    run = tmp_path / "run"
    train(write_recipe(tmp_path), write_pictures(tmp_path / "pictures"), run, options=CPU, say=said.append)
    assert not any(line.startswith("card: ") for line in said)
    assert judge_card(read_events(run / "events.jsonl")) is None


RANKS = (RankProcess(0, HOST, OWN, "a"), RankProcess(1, HOST, 77, "b"), RankProcess(2, "elsewhere", 78, "a"))


def test_a_process_on_a_second_card_is_named() -> None:
    held = [Holder("GPU-a", 0, OWN, 2 << 30), Holder("GPU-b", 1, 77, 3 << 30)]
    assert list(second_cards(held, RANKS, HOST)) == []
    astray = [Holder("GPU-a", 0, 77, 300 << 20), Holder("GPU-b", 1, OWN, None)]
    first, second = second_cards([*held, *astray], RANKS, HOST)
    assert first.startswith("rank 1 (process 77) holds 300 MiB on card 0 beside its own")
    assert second.startswith(f"rank 0 (process {OWN}) holds memory on card 1 beside its own")
    others = [Holder("GPU-b", 1, 78, 1 << 20), Holder("GPU-b", 1, 4242, 1 << 20)]  # another machine's, a stranger's
    assert list(second_cards(others, RANKS, HOST)) == []


@pytest.mark.parametrize(("collectives", "size", "warns"), [("nccl", 2, True), ("gloo", 2, False), ("nccl", 1, False)])
def test_second_cards_are_looked_for_after_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collectives: str, size: int, warns: bool
) -> None:
    library = usual(OWN, 77)
    library.cards["GPU-b"] = [SimpleNamespace(pid=77, usedGpuMemory=1 << 30)]
    made_up = SimpleNamespace(is_card=True, collectives=collectives, uuid="a")
    monkeypatch.setattr(watching, "accelerator_of", lambda _: made_up)
    ranks = SimpleNamespace(size=size, rank=0, gather=lambda own: [own, RANKS[1]])
    warned: list[tuple[int, str]] = []
    with EventLog(tmp_path / "events.jsonl") as log:
        run = SimpleNamespace(ranks=ranks, log=log, warn=lambda step, line: warned.append((step, line)))
        watch = CardWatch(nvml_sensors("GPU-a", library))
        look_for_second_cards(cast(TrainRun, run), torch.device("cuda", 0), watch)
        log.write("start", step=0)
        assert not warned
        for step in (1, 2):
            log.write("step", step=step)
    assert [step for step, _ in warned] == [1] * warns
    if warns:
        assert warned[0][1].startswith("rank 1 (process 77) holds 1.00 GiB on card 0 beside its own")
