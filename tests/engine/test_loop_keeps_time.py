"""The loop of a training that keeps a time, by a clock that the test moves."""

from dataclasses import replace
from pathlib import Path

import pytest

from contract.made_up import MadeUpFamily
from contract.rig import Rig
from engine.runs import train
from frugan.engine.durations import Course, Length
from frugan.engine.run.kept_time import KeptTime
from frugan.engine.state.ema import EmaSettings


class MadeUpClock:
    """A clock by which each step takes a second, and four from a step on."""

    def __init__(self, rig: Rig, slow_from: int) -> None:
        self.rig, self.slow_from = rig, slow_from

    def __call__(self) -> float:
        step = self.rig.state.step
        return step + 3.0 * max(0, step - self.slow_from)


def test_the_average_reaches_back_over_a_share_of_the_length_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, length, told = Rig.create(MadeUpFamily()), Length.of(8), list[int | None]()
    length.decide(2, 5)
    rig.step = replace(rig.step, course=Course(64, length=length, share=1.0))

    def decay_at(settings: EmaSettings, step: int, batch: int, course: float, steps: int | None) -> float:
        told.append(steps)
        return 0.5

    monkeypatch.setattr(EmaSettings, "decay_at", decay_at)
    for _ in range(4):
        rig.step.run(rig.state, rig.plan)
    assert told == [8, 8, 5, 5]
    settings = EmaSettings(schedule="constant", decay=0.999, run_share=0.1)
    monkeypatch.undo()
    assert [settings.decay_at(9, 8, steps=steps) for steps in (None, 100, 5, 10**6)] == [0.999, 0.9, 0.0, 0.999]


def test_a_loop_ends_in_time_when_its_machine_becomes_slower(tmp_path: Path) -> None:
    rig = Rig.create(MadeUpFamily())
    clock = MadeUpClock(rig, slow_from=20)
    kept = KeptTime(100.0, Length.of(90))
    _, events, over = train(tmp_path, 90, rig=rig, checkpoint_every="50 steps", kept_time=kept, now=clock)
    assert over
    assert rig.state.step == kept.length.steps < 45
    assert 95 <= clock() <= 105
    assert events[-1]["event"] == "snapshot" or events[-1]["step"] == rig.state.step
    left = [event["eta_seconds"] for event in events if event["event"] == "step"]
    assert left[10] == 100 - 11  # by the promise, not by the pace
