"""What happens between steps: saving, resuming, stopping, skipping."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.made_up import MadeUpFamily
from contract.rig import FP16, Rig, assert_same
from engine.runs import train
from frugan.contract.phase import MicroBatch, Networks, PhaseState, Terms
from frugan.engine.run.checkpoint import BackupLimits, list_checkpoints, newest_whole, restore, save_checkpoint, verify
from frugan.engine.run.events import read_events
from frugan.engine.run.tensor_files import digest
from frugan.errors import BadInput, TrainingFailed
from frugan.reporting.progress_line import describe
from limits import Limit


def test_resume_is_bit_for_bit_after_a_kill(tmp_path: Path) -> None:
    """10 steps = 4, then work up to step 7 that a kill throws away, then 6 more from the checkpoint at 4."""
    whole, _, _ = train(tmp_path / "whole", 10)

    class Killed(BaseException):
        pass

    rig = Rig.create(MadeUpFamily())
    run = type(rig.step).run

    class Dying(type(rig.step)):  # type: ignore[misc]
        def run(self, state: object, *args: object, **kwargs: object) -> object:
            if rig.state.step == 7:
                raise Killed
            return run(self, state, *args, **kwargs)  # type: ignore[arg-type]

    rig.step = Dying(**{f: getattr(rig.step, f) for f in rig.step.__dataclass_fields__})
    with pytest.raises(Killed):
        train(tmp_path / "parts", 10, rig=rig)
    assert [c.step for c in list_checkpoints(tmp_path / "parts" / "checkpoints")] == [4]
    resumed, events, finished = train(tmp_path / "parts", 10)
    assert finished
    assert [e["step"] for e in events if e["event"] == "step"] == [5, 6, 7, 8, 9, 10]
    assert_same(whole.tensors(), resumed.tensors())


@pytest.mark.parametrize(("updates", "saved"), [(0, 6), (1, 4)])
def test_an_error_saves_whole_steps_alone(tmp_path: Path, updates: int, saved: int) -> None:
    """Before the first update of step 7 all of step 6 is there; after it, a part of step 7 has moved."""
    whole, _, _ = train(tmp_path / "whole", 10)
    rig = Rig.create(MadeUpFamily())
    update, made = type(rig.step).update, [0]

    class Failing(type(rig.step)):  # type: ignore[misc]
        def update(self, state: Any, *args: Any) -> object:
            if state.step == 6:
                made[0] += 1
                if made[0] > updates:
                    raise BadInput("a picture is gone")
            return update(self, state, *args)

    rig.step = Failing(**{f: getattr(rig.step, f) for f in rig.step.__dataclass_fields__})
    with pytest.raises(BadInput, match="a picture is gone"):
        train(tmp_path / "parts", 10, rig=rig)
    assert [c.step for c in list_checkpoints(tmp_path / "parts" / "checkpoints")][-1] == saved
    resumed, _, finished = train(tmp_path / "parts", 10)
    assert finished
    assert_same(whole.tensors(), resumed.tensors())


def test_stop_request_saves_and_goes_on(tmp_path: Path) -> None:
    whole, _, _ = train(tmp_path / "whole", 6)
    _, events, finished = train(tmp_path / "parts", 6, stop_after=2)
    assert not finished
    # the outcome of step 2 is read while step 3 runs, which is finished before the stop
    assert events[-1]["event"] in ("checkpoint", "snapshot")
    stopped_at = list_checkpoints(tmp_path / "parts" / "checkpoints")[-1].step
    assert stopped_at == 3
    resumed, _, finished = train(tmp_path / "parts", 6)
    assert finished
    assert_same(whole.tensors(), resumed.tensors())


def test_a_run_without_an_end_says_nothing_of_what_is_left(tmp_path: Path) -> None:
    _, events, finished = train(tmp_path, None, stop_after=2)
    assert not finished
    steps = [e for e in events if e["event"] == "step"]
    assert [e["step"] for e in steps] == [1, 2, 3]
    assert [e["eta_seconds"] for e in steps] == [None] * 3
    assert "left" not in str(describe(steps[-1]))


def test_step_events_hold_what_readers_need(tmp_path: Path) -> None:
    train(tmp_path, 4)
    steps = [e for e in read_events(tmp_path / "events.jsonl") if e["event"] == "step"]
    assert [e["step"] for e in steps] == [1, 2, 3, 4]
    assert [e["images"] for e in steps] == [20, 36, 56, 72]  # the critic sees two batches; every other step 4 more
    assert steps[0]["eta_seconds"] is None  # one step alone does not tell
    assert [e["eta_seconds"] > 0 for e in steps[1:]] == [True, True, False]
    first = steps[0]["phases"]
    assert set(first) == {"critic", "penalty", "maker"}
    assert set(first["critic"]["terms"]) == {"real", "fake", "drift"}
    assert first["critic"]["gradient_norm"] > 0
    assert first["critic"]["skipped"] == 0
    assert len(first["maker"]["gradients"]) == 12
    assert 0 <= max(first["maker"]["zero_share"].values()) <= 1
    assert "critic.linear.bias" in first["penalty"]["without_gradient"]  # the slope does not depend on it
    assert "gradients" not in steps[1]["phases"]["critic"]
    assert "gradients" in steps[3]["phases"]["critic"]  # every 3 steps: after step 3


def test_a_step_tells_how_long_it_waited_for_data(tmp_path: Path) -> None:
    rig = Rig.create(MadeUpFamily())
    pictures, wait = rig.step.pictures, 0.02

    class Slow:
        taken = 0

        def take(self, *which: Any) -> Mapping[str, Tensor]:
            Slow.taken += 1
            time.sleep(wait)
            return pictures.take(*which)

    rig.step = replace(rig.step, pictures=Slow())
    _, events, _ = train(tmp_path, 4, rig=rig)
    steps = [e for e in events if e["event"] == "step"]
    assert sum(e["data_seconds"] for e in steps) >= Slow.taken * wait
    assert all(wait <= e["data_seconds"] <= e["took_seconds"] for e in steps)


@pytest.mark.long
def test_carried_state_is_told_where_gradients_are_reported(tmp_path: Path) -> None:
    _, events, _ = train(tmp_path, 9)
    told = {e["step"]: e["carried"]["path length"] for e in events if e["event"] == "step" and "carried" in e}
    assert told.keys() == {e["step"] for e in events if e["event"] == "step" and "gradients" in e["phases"]["critic"]}
    assert len(set(told.values())) > 1
    last = max(told)
    rig = Rig.create(MadeUpFamily())
    rig.run(last)
    assert told[last] == pytest.approx(float(rig.state.carried["length"]))


def test_newest_are_kept_and_backups_for_good(tmp_path: Path) -> None:
    pictured: list[int] = []
    train(tmp_path, 16, checkpoint_every="2 steps", pictured=pictured)
    # and the first, until one is long before the end: here all may come from within a divergence
    assert [c.step for c in list_checkpoints(tmp_path / "checkpoints")] == [2, 14, 16]
    assert [c.step for c in list_checkpoints(tmp_path / "backups")] == [5, 10, 15]
    assert pictured == [1, 4, 8, 10, 12, 16]  # every 32 images, and after 1 and 10 steps; the last once only


@pytest.mark.parametrize(("number", "backups", "kept"), [(2, None, [10, 15]), (None, 2.5, [10, 15]), (9, 0.5, [15])])
def test_backups_keep_a_number_and_a_size(
    tmp_path: Path, number: int | None, backups: float | None, kept: list[int]
) -> None:
    train(tmp_path, 15)
    folder = tmp_path / "backups"
    size = sum(path.stat().st_size for path in (folder / "step-000000015").iterdir())
    BackupLimits(number, None if backups is None else int(backups * size)).apply(folder, 15)
    assert [c.step for c in list_checkpoints(folder)] == kept


def test_a_backup_that_was_just_written_stays_whatever_lies_beside_it(tmp_path: Path) -> None:
    """Those of a training that went further, before an older checkpoint was put back."""
    train(tmp_path, 15)
    BackupLimits(number=1).apply(tmp_path / "backups", 10)
    assert [c.step for c in list_checkpoints(tmp_path / "backups")] == [10]


def test_backups_are_limited_while_training_goes_on(tmp_path: Path) -> None:
    train(tmp_path, 15, backup_limits=BackupLimits(number=1))
    assert [c.step for c in list_checkpoints(tmp_path / "backups")] == [15]


def test_damaged_checkpoint_is_named_and_passed_over(tmp_path: Path) -> None:
    train(tmp_path, 8)
    newest = list_checkpoints(tmp_path / "checkpoints")[-1].path / "networks.safetensors"
    content = bytearray(newest.read_bytes())
    content[-3] ^= 1
    newest.write_bytes(content)
    whole = newest_whole(tmp_path / "checkpoints")
    assert whole is not None
    assert whole[0].step == 4
    assert [str(newest) in line for line in whole[2]] == [True]
    (tmp_path / "checkpoints" / "step-000000004" / "state.json").unlink()
    with pytest.raises(BadInput, match="no checkpoint is whole"):
        newest_whole(tmp_path / "checkpoints")


@pytest.mark.long
def test_skips_in_a_row_stop_the_run_and_name_the_cause(tmp_path: Path) -> None:
    rig = Rig.create(MadeUpFamily())
    maker = next(p for p in rig.phases if p.name == "maker")

    def broken(networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        return {name: term * torch.inf for name, term in maker.parts[0](networks, micro, state).items()}

    phases = tuple(replace(p, parts=(broken,)) if p.name == "maker" else p for p in rig.phases)
    rig.step = replace(rig.step, phases=phases)
    with pytest.raises(TrainingFailed, match=r"phase maker: 20 .*term 'maker' is not finite.*maker\.linear\.weight"):
        train(tmp_path, 100, rig=rig)
    events = [e for e in read_events(tmp_path / "events.jsonl") if e["event"] == "skipped"]
    assert [e["in_a_row"] for e in events] == list(range(1, 21))
    assert int(rig.state.skipped["maker"]) in (20, 21)  # read a step later


@pytest.mark.long
def test_a_divergence_names_where_to_go_on_from(tmp_path: Path) -> None:
    rig = Rig.create(MadeUpFamily())
    maker = next(p for p in rig.phases if p.name == "maker")

    def broken_later(networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        factor = torch.inf if rig.state.step >= 6 else 1.0
        return {name: term * factor for name, term in maker.parts[0](networks, micro, state).items()}

    phases = tuple(replace(p, parts=(broken_later,)) if p.name == "maker" else p for p in rig.phases)
    rig.step = replace(rig.step, phases=phases)
    with pytest.raises(TrainingFailed, match=r"step-000000004 is from before that") as failed:
        train(tmp_path, 100, rig=rig, command=True)
    optimizer = maker.optimizer
    assert f"frugan train somewhere optimizers.{optimizer}.learning_rate=0.005" in str(failed.value)
    whole = [c.step for c in list_checkpoints(tmp_path / "checkpoints")]
    assert whole == [4]
    aside = sorted(p.name for p in (tmp_path / "checkpoints").glob("diverged-*"))
    assert aside[-1] == "diverged-step-000000024"
    resumed, events, _ = train(tmp_path, 8)
    assert [e["step"] for e in events if e["event"] == "step"] == [5, 6, 7, 8]
    assert resumed.state.step == 8


def test_every_save_is_told_once(tmp_path: Path) -> None:
    _, events, _ = train(tmp_path, 8)  # the end is due by the interval as well
    assert [e["step"] for e in events if e["event"] == "checkpoint" and "checkpoints" in e["path"]] == [4, 8]
    _, events, _ = train(tmp_path, 8)  # over already: nothing is saved again
    assert [e for e in events if e["event"] == "checkpoint"] == []


@pytest.mark.long
def test_images_are_counted_over_resumptions(tmp_path: Path) -> None:
    _, whole, _ = train(tmp_path / "whole", 7)
    train(tmp_path / "parts", 3)
    _, parts, _ = train(tmp_path / "parts", 7)
    last = [next(e for e in reversed(events) if e["event"] == "step") for events in (whole, parts)]
    assert [e["images"] for e in last] == [20 * 4 + 16 * 3] * 2


def test_the_time_left_follows_recent_steps(tmp_path: Path) -> None:
    """A checkpoint that says a thousand hours went into 4 steps, on a machine that is now faster."""
    train(tmp_path, 4)
    state = tmp_path / "checkpoints" / "step-000000004" / "state.json"
    values = json.loads(state.read_text())
    state.write_text(json.dumps({**values, "seconds": 3.6e6}))
    manifest = state.with_name("MANIFEST.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "state.json": digest(state)}))
    _, events, _ = train(tmp_path, 8)
    left = [e["eta_seconds"] for e in events if e["event"] == "step"]
    assert len(left) == 4
    assert max(left[1:]) < 60


def test_a_stop_draws_no_slow_grids(tmp_path: Path, limit: Limit) -> None:
    pictured: list[int] = []
    train(tmp_path / "quick", 9, stop_after=2, pictured=pictured)
    assert pictured == [1, 3]
    limit("seconds of sheets at a stop", -1.0)
    train(tmp_path / "slow", 9, stop_after=2, pictured=pictured)
    assert pictured == [1, 3, 1]
    train(tmp_path / "slow", 9, pictured=pictured)  # to the end: drawn, however long it takes
    assert pictured[-1] == 9


def test_a_stop_waits_for_no_pictures_that_are_due(tmp_path: Path, limit: Limit) -> None:
    """Grids are due after step 4, in which the stop is heard; the checkpoint that is due as well is written."""
    limit("seconds of sheets at a stop", -1.0)
    pictured: list[int] = []
    _, events, finished = train(tmp_path, 9, stop_after=3, pictured=pictured)
    assert (pictured, finished) == ([1], False)
    assert [e["step"] for e in events if e["event"] == "checkpoint"] == [4]


def test_a_loss_scale_goes_on_where_it_was(tmp_path: Path) -> None:
    rig, fresh = (Rig.create(MadeUpFamily(), precision=FP16) for _ in range(2))
    rig.run(1)
    for scale in rig.state.loss_scales.values():
        scale.scale.fill_(2048.0)
    checkpoint = save_checkpoint(tmp_path, rig.state, {}, {})
    restore(checkpoint, verify(checkpoint), fresh.state)
    assert {float(scale.scale) for scale in fresh.state.loss_scales.values()} == {2048.0}


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (3, "no checkpoint was written yet, so 3 steps must be done again"),
        (4, "no checkpoint was written yet, so 4 steps must be done again"),
        (5, "the checkpoint of step 4 is whole, and 1 step after it must be done again"),
    ],
)
def test_an_interrupt_says_how_many_steps_are_lost(at: int, words: str, tmp_path: Path) -> None:
    rig = Rig.create(MadeUpFamily())

    def now() -> float:
        if rig.state.step == at:
            raise KeyboardInterrupt
        return 0.0

    with pytest.raises(KeyboardInterrupt, match=words):
        train(tmp_path, 9, rig=rig, now=now)
    *_, last = read_events(tmp_path / "events.jsonl")
    assert (last["event"], last["over"], last["at_once"], last["step"]) == ("stop", False, True, at)
