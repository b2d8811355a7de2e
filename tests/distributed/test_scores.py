"""Scores that several ranks take together: those of one process, and no rank waits for one that fails or is gone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from distributed.processes import environment, together
from distributed.score_work import METRICS, OPTIONS, TRUNCATIONS, curve
from frugan.engine.run.events import read_events
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from frugan.wording import by_pictures
from training.pictures import RECIPE, write_pictures, write_recipe

WORK = "distributed.score_work"
EVALUATION = """
[evaluation]
every = "2 steps"
metrics = ["fid", "is", "kid", "two-sample"]
samples = 100
"""
CPU = TrainingOptions(device="cpu")
BY_FEATURES = [name for name in METRICS if not by_pictures(name)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its pictures, and a recipe that is scored while it trains."""
    made = tmp_path_factory.mktemp("scored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRUGAN_BASE", str(made / "base"))
        train(write_recipe(made), write_pictures(made / "pictures", each=60), made / "run", options=CPU)
    text = RECIPE.replace('"4 steps"', '"6 steps"', 1) + EVALUATION + f'network = "{WORK}:colours"\n'
    write_recipe(made, text, "scored.toml")
    return made


def _torchrun(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "frugan", *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)


def test_scores_of_two_ranks_are_those_of_one(folder: Path) -> None:
    """A curve with every metric."""
    before = {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*")}
    for rank, done in enumerate(together(2, "together", folder, module=WORK)):
        assert done.returncode == 0, f"rank {rank}:\n{done.stdout}"
    first, other = (json.loads((folder / f"scores-{rank}.json").read_text()) for rank in (0, 1))
    assert first["found"] == other["found"]
    assert other["said"] == []
    assert first["said"][0].startswith("ranks: 2, 2 of them on this machine")
    assert {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*")} == before
    alone = [each.as_json() for each in curve(folder, say=lambda _: None)]
    assert len(alone) == len(TRUNCATIONS)
    for mine, theirs in zip(alone, first["found"], strict=True):
        assert theirs["scores"] == pytest.approx(mine["scores"], rel=1e-9)
        assert theirs["by_class"] == pytest.approx(mine["by_class"], rel=1e-9)
        assert len(theirs["scores"]) == 12
        assert theirs["provenance"] == mine["provenance"]


@pytest.mark.long
def test_a_training_is_scored_by_two_ranks_as_by_one(folder: Path) -> None:
    """Its networks neither the scores nor the other rank moves."""
    for rank, done in enumerate(together(2, "training", folder, module=WORK)):
        assert done.returncode == 0, f"rank {rank}:\n{done.stdout}"
    train(str(folder / "scored.toml"), folder / "pictures", folder / "scored-alone", options=CPU)
    both = [
        {e["step"]: e["scores"] for e in read_events(folder / name / "events.jsonl") if e["event"] == "metrics"}
        for name in ("scored", "scored-alone")
    ]
    assert list(both[0]) == list(both[1]) == [2, 4, 6]
    for step, scores in both[1].items():
        assert both[0][step] == pytest.approx(scores, rel=0.02), step  # of weights that agree to rounding
    events = list(read_events(folder / "scored" / "events.jsonl"))
    assert [e for e in events if e["event"] == "warning" and "apart" in e["line"]] == []


@pytest.mark.long
def test_a_rank_that_cannot_draw_is_named(folder: Path) -> None:
    first, _ = together(2, "fails_on_the_second", folder, module=WORK)
    assert first.returncode == 1
    assert "BadInput: rank 1 (" in first.stdout
    assert "RuntimeError: no room for features" in first.stdout


@pytest.mark.long
def test_a_rank_that_is_lost_ends_the_scores(folder: Path) -> None:
    first, killed = together(2, "kills_the_second", folder, module=WORK)
    assert killed.returncode == -9
    assert first.returncode == 1
    assert "rank 1 (" in first.stdout
    assert "is lost" in first.stdout


@pytest.mark.long
@pytest.mark.parametrize("which", ["first", "second"])
def test_a_training_goes_on_where_a_rank_cannot_draw(which: str, folder: Path, tmp_path: Path) -> None:
    write_recipe(tmp_path, (folder / "scored.toml").read_text().replace(":colours", f":fails_on_the_{which}"))
    words = [str(tmp_path / "tiny.toml"), "--data", str(folder / "pictures"), "--out", str(tmp_path / "run")]
    done = _torchrun("train", *words, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    warned = [e["line"] for e in events if e["event"] == "warning" and "no scores" in e["line"]]
    assert len(warned) == 3
    assert which == "first" or "rank 1 (" in warned[0]
    assert "no room for features" in warned[0]
    assert [e["over"] for e in events if e["event"] == "stop"] == [True]


@pytest.mark.long
def test_the_command_by_torchrun(folder: Path, tmp_path: Path) -> None:
    """Rank 0 alone prints and keeps."""
    words = ["evaluate", str(folder / "run"), "--data", str(folder / "pictures"), "--samples", str(OPTIONS.samples)]
    words += ["--network", str(OPTIONS.network), "--metrics", ",".join(BY_FEATURES), "--device", "cpu", "--json"]
    done = _torchrun(*words, "--out", str(tmp_path / "found.jsonl"))
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "found.jsonl").read_text().splitlines()
    kept = (folder / "run" / "scores.jsonl").read_text().splitlines()
    assert kept == [line]
    assert json.loads(done.stdout) == json.loads(line)
    alone = curve(folder, say=lambda _: None)[-1]  # at truncation 1
    scores = {name: value for name, value in alone.scores.items() if not by_pictures(name)}
    assert json.loads(line)["scores"] == pytest.approx(scores, rel=1e-5)  # in other micro-batches
