"""What is known of updates, and which checkpoints are from before trouble."""

import json
from pathlib import Path

import pytest

from frugan.engine.run.checkpoint import keep_newest, list_checkpoints
from frugan.engine.run.step_log import DivergenceWatch, divergence_advice


def saved(folder: Path, step: int, finite_steps: int) -> None:
    path = folder / f"step-{step:09d}"
    path.mkdir(parents=True)
    (path / "state.json").write_text(json.dumps({"finite_steps": finite_steps}))


def trained(folder: Path, steps: int, every: int, bad_from: int | None = None, keep: int = 2) -> DivergenceWatch:
    """Steps, of which every second one from `bad_from` on has a skipped update; checkpoints as the loop keeps them."""
    divergence = DivergenceWatch()
    for step in range(1, steps + 1):
        bad = bad_from is not None and step >= bad_from and step % 2 == 0
        divergence.count(step, {"D": 1, "G": 1}, {"D": int(bad), "G": 0})
        if step % every == 0:
            saved(folder, step, divergence.finite_steps)
            keep_newest(folder, keep, divergence.kept(folder, step))
    return divergence


def steps_in(folder: Path) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(folder)]


def test_rare_checkpoints_need_no_room(tmp_path: Path) -> None:
    trained(tmp_path, 2000, 500)
    assert steps_in(tmp_path) == [1500, 2000]


def test_one_from_long_before_is_kept_beside_the_newest(tmp_path: Path) -> None:
    trained(tmp_path, 1000, 20)
    steps = steps_in(tmp_path)
    assert steps[-2:] == [980, 1000]
    assert len(steps) <= 4
    assert 700 <= steps[0] <= 900


def test_trouble_does_not_take_the_last_sound_one(tmp_path: Path) -> None:
    trained(tmp_path, 1000, 20, bad_from=550)
    steps = steps_in(tmp_path)
    assert 300 <= steps[0] <= 450  # long before
    assert steps[-2:] == [980, 1000]
    rates = {"D.learning_rate": 4e-4, "D.final_learning_rate": 1e-4, "G.learning_rate": 1e-4}
    line = divergence_advice(tmp_path, "frugan train runs/x --data p", rates, "bf16")
    newest = max(step for step in steps if step <= 550)
    assert f"step-{newest:09d} is from before that" in line
    words = "optimizers.D.learning_rate=0.0002 optimizers.D.final_learning_rate=5e-05 optimizers.G.learning_rate=5e-05"
    assert f"frugan train runs/x --data p {words}" in line
    assert "training.precision=fp32" in line
    assert steps_in(tmp_path) == [step for step in steps if step <= 550]  # what the same command goes on from
    assert (tmp_path / "diverged-step-000001000").is_dir()


def test_trouble_is_over_after_long(tmp_path: Path) -> None:
    divergence = trained(tmp_path, 400, 100)
    divergence.count(401, {"D": 1}, {"D": 1})
    assert (divergence.trouble, divergence.in_a_row) == (401, {"D": 1, "G": 0})
    for step in range(402, 501):
        divergence.count(step, {"D": 1}, {"D": 0})
    assert divergence.trouble == 401
    divergence.count(501, {"D": 1}, {"D": 0})
    assert divergence.trouble is None


def test_what_a_checkpoint_says_is_taken_up() -> None:
    assert DivergenceWatch.of({"finite_steps": 300}, 1000) == DivergenceWatch(300)
    assert DivergenceWatch.of({"finite_steps": 7}, 1000) == DivergenceWatch(7, trouble=993)
    assert DivergenceWatch.of({"finite_steps": 7}, 7) == DivergenceWatch(7)
    assert DivergenceWatch.of({}, 50) == DivergenceWatch(50)  # written before this was kept


@pytest.mark.parametrize("command", ["frugan train x", None])
def test_no_checkpoint_is_said(tmp_path: Path, command: str | None) -> None:
    assert divergence_advice(tmp_path, command, {"D": 1e-3}, "fp32") == (
        "No checkpoint is older than that: begin a new run with a smaller learning rate"
    )
