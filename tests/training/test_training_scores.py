"""Scores while training: training does not notice them."""

import errno
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from evaluation.scored import CPU, EVALUATED, OPTIONS, low
from frugan.engine.durations import EvaluationSettings
from frugan.engine.run import loop as training_loop
from frugan.engine.run.checkpoint import Checkpoint, save_checkpoint
from frugan.engine.run.events import read_events
from frugan.engine.run.kept_time import KeptTime
from frugan.errors import BadInput
from frugan.evaluation import reference as evaluate_reference
from frugan.evaluation.score_cost import ScoreCost, score_cost
from frugan.evaluation.scorer import Scorer
from frugan.metrics.scores import ball_radii
from frugan.metrics.two_sample import Judge
from frugan.progress import quiet
from frugan.training import scores as training_scores
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe


@pytest.mark.long
def test_scores_while_training_take_the_standing_statistics_of_the_recipe(tmp_path: Path) -> None:
    text = RECIPE + EVALUATED + 'statistics = "standing"\nstanding_batches = 3\nstanding_size = 8\n'
    recipe = write_recipe(tmp_path, text.replace('metrics = ["fid", "is"]', 'metrics = ["fid"]'))
    train(recipe, write_pictures(tmp_path / "pictures"), tmp_path / "run", options=CPU, say=quiet)
    cards = [e["provenance"] for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "metrics"]
    assert cards
    assert {provenance["statistics"] for provenance in cards} == {"standing, 3 batches of 8"}


def test_training_does_not_notice_that_it_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, averages, optimizers: bit for bit; and the best checkpoint is kept besides the newest."""
    of_real: list[int] = []

    def counted(rows: NDArray[np.float32]) -> Tensor:
        of_real.append(len(rows))
        return ball_radii(rows)

    monkeypatch.setattr(evaluate_reference, "ball_radii", counted)
    monkeypatch.setattr(training_scores, "low_recall", low)
    pictures = write_pictures(tmp_path / "pictures", each=60)
    monkeypatch.setattr(training_scores, "JUDGE_WHILE_TRAINING", Judge(networks=1, steps=8, batch=16))
    judged = EVALUATED.replace('"is"]', '"is", "pr", "two-sample"]').replace("samples = 20", "samples = 60")
    for name, text in (("plain", RECIPE), ("scored", RECIPE + judged)):
        train(write_recipe(tmp_path, text, f"{name}.toml"), pictures, tmp_path / name, options=CPU, say=quiet)
    newest = "checkpoints/step-000000004"
    for file in ("networks", "ema", "optimizers"):
        plain, scored = (load_file(tmp_path / n / newest / f"{file}.safetensors") for n in ("plain", "scored"))
        assert plain.keys() == scored.keys()
        assert all(torch.equal(plain[key], scored[key]) for key in plain)
    events = list(read_events(tmp_path / "scored" / "events.jsonl"))
    assert [e["line"] for e in events if e["event"] == "warning"] == ["words at 1"]  # twice seen, once said
    scores = {e["step"]: e["scores"]["fid"] for e in events if e["event"] == "metrics"}
    assert list(scores) == [2, 4]
    assert all("two_sample_real" in e["scores"] for e in events if e["event"] == "metrics")
    assert all("two_sample_half_width" in e["scores"] for e in events if e["event"] == "metrics")
    assert all("recall" in e["scores"] for e in events if e["event"] == "metrics")
    assert len(of_real) == 1  # distances among real pictures: scored twice, taken once
    kept = [p.name for p in (tmp_path / "scored" / "best").iterdir() if p.is_dir()]
    assert kept == [f"step-{min(scores, key=scores.__getitem__):09d}"]
    assert next(e["provenance"]["split"] for e in events if e["event"] == "metrics") == "trained on"


def test_what_scores_will_take_is_timed_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    costs: list[ScoreCost] = []

    def timed(*given: Any) -> ScoreCost:
        costs.append(score_cost(*given))
        return costs[-1]

    monkeypatch.setattr(training_scores, "score_cost", timed)
    monkeypatch.setattr(training_scores, "JUDGE_WHILE_TRAINING", Judge(networks=1, steps=8, batch=16))
    monkeypatch.setattr(KeptTime, "decide", lambda *_: None)
    judged = EVALUATED.replace('"is"]', '"is", "two-sample"]').replace("samples = 20", "samples = 60")
    pictures, fields = write_pictures(tmp_path / "pictures", each=60), ["training.time=1h", "evaluation.every=4 steps"]
    for name, text in (("plain", RECIPE), ("scored", RECIPE + judged)):
        words = fields[: 1 + (name == "scored")]
        recipe = write_recipe(tmp_path, text, f"{name}.toml")
        train(recipe, pictures, tmp_path / name, overrides=words, options=CPU, say=said.append)
    (cost,) = costs
    assert 0 < cost.usual < cost.first < 60
    assert not any("scores: the next" in line for line in said)
    assert [e["step"] for e in read_events(tmp_path / "scored" / "events.jsonl") if e["event"] == "metrics"] == [4]
    for file in ("networks", "ema", "optimizers"):
        path = f"checkpoints/step-000000004/{file}.safetensors"
        plain, scored = (load_file(tmp_path / name / path) for name in ("plain", "scored"))
        assert all(torch.equal(plain[key], scored[key]) for key in plain)


@pytest.mark.parametrize(
    ("each", "scored", "told"),
    [
        (800.0, 1, "scores: the next would take about 13 min of the run's 1h: one is taken, at the end"),
        (4000.0, 0, "scores: the next would take about 67 min of the run's 1h: none is taken (afterwards: frugan "),
    ],
)
def test_scores_that_would_take_the_time_are_left_to_the_end_or_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], each: float, scored: int, told: str
) -> None:
    monkeypatch.setattr(training_scores, "score_cost", lambda *_: ScoreCost(each, 0.0))
    monkeypatch.setattr(KeptTime, "decide", lambda *_: None)
    monkeypatch.setattr(KeptTime, "pace", 1.0)
    recipe, fields = write_recipe(tmp_path, RECIPE + EVALUATED), ["training.time=1h", "evaluation.every=0.25"]
    run = tmp_path / "second try"
    train(recipe, write_pictures(tmp_path / "p"), run, overrides=fields, options=CPU, say=said.append)
    assert [e["step"] for e in read_events(run / "events.jsonl") if e["event"] == "metrics"] == [4] * scored
    (line,) = [line for line in said if line.startswith(told)]
    assert scored or line.endswith(f"evaluate '{run}' --data PICTURES)")


def test_a_disk_without_room_for_the_best_ends_no_training_that_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, *rest: Any) -> Checkpoint:
        if folder.name == "best":
            raise OSError(errno.ENOSPC, "No space left on device")
        return save_checkpoint(folder, *rest)

    monkeypatch.setattr(training_loop, "save_checkpoint", full)
    recipe, pictures = write_recipe(tmp_path, RECIPE + EVALUATED), write_pictures(tmp_path / "p")
    with pytest.raises(OSError, match="No space left"):
        train(recipe, pictures, tmp_path / "stops", options=CPU, say=quiet)
    going_on = ["saving.when_full=go-on"]
    assert train(recipe, pictures, tmp_path / "run", overrides=going_on, options=CPU, say=quiet).finished
    failed = [e for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "checkpoint_failed"]
    assert [e["step"] for e in failed] == [2, 4]
    assert "training goes on" in failed[0]["reason"]


@pytest.mark.long
@pytest.mark.parametrize("kind", [BadInput, RuntimeError, OSError, ValueError])
def test_a_score_that_fails_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise kind("it does not work")

    monkeypatch.setattr(Scorer, "score", failing)
    recipe = write_recipe(tmp_path, RECIPE + EVALUATED)
    result = train(recipe, write_pictures(tmp_path / "p"), tmp_path / "run", options=CPU, say=quiet)
    assert result.finished
    warnings = [e["line"] for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "warning"]
    assert len(warnings) == 2
    assert all("no scores" in line and "it does not work" in line for line in warnings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            EVALUATED.replace('"fid", "is"', '"is"'),
            "best checkpoints go by fid, and evaluation.metrics are is; give evaluation.best_by=is_mean",
        ),
        (EVALUATED.replace(OPTIONS.network, "nothing"), "--network nothing"),
        (EVALUATED.replace("samples = 20", "samples = 2"), "greater than or equal to 10"),
        (EVALUATED.replace(":colours", ":no_scores"), "gives no class probabilities"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_the_first_step(tmp_path: Path, text: str, message: str) -> None:
    recipe = write_recipe(tmp_path, RECIPE + text)
    with pytest.raises(BadInput, match=message):
        train(recipe, write_pictures(tmp_path / "p"), tmp_path / "run", options=CPU, say=quiet)


def test_without_the_weights_a_training_says_so_once_and_goes_on(tmp_path: Path, said: list[str]) -> None:
    """Recipes ask for scores by themselves; a person who has not fetched the weights loses nothing but them."""
    text = RECIPE + EVALUATED.replace(OPTIONS.network, "inception-torchvision")
    pictures, run = write_pictures(tmp_path / "pictures"), tmp_path / "run"
    assert train(write_recipe(tmp_path, text), pictures, run, options=CPU, say=said.append).finished
    (line,) = [line for line in said if "scores" in line]
    assert line.startswith("warning: no scores while training: ")
    assert "`frugan fetch inception-torchvision` gets them" in line
    assert line.endswith("; evaluation.every=none leaves out this line")
    events = list(read_events(run / "events.jsonl"))
    assert not [e for e in events if e["event"] in ("metrics", "best")]
    assert [e["step"] for e in events if e["event"] == "warning" and "no scores" in e["line"]] == [0]


@dataclass
class RanksThatLack:
    """Ranks of which the second one has no weights."""

    size: int = 2
    rank: int = 0

    @property
    def watch(self) -> Any:
        return SimpleNamespace(names=("rank 0 on a", "rank 1 on b"))

    def gather(self, value: str | None) -> list[str | None]:
        return [value, "they are not there"]


def test_one_rank_without_the_weights_is_enough(tmp_path: Path) -> None:
    """All ranks draw their part of the pictures, and come to the same decision: else they would wait for each other."""
    run = SimpleNamespace(ranks=RanksThatLack())
    settings = EvaluationSettings(network="digits")
    assert training_scores.possible(cast(Any, run), settings) == (None, "rank 1 on b: they are not there")


def test_what_is_too_little_for_one_score_is_enough_for_another(tmp_path: Path, said: list[str]) -> None:
    judged = EVALUATED.replace('["fid", "is"]', '["pr", "two-sample"]') + 'best_by = "two_sample"\n'
    pictures = write_pictures(tmp_path / "pictures", each=12)
    train(write_recipe(tmp_path, RECIPE + judged), pictures, tmp_path / "run", options=CPU, say=said.append)
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    scored = [e["scores"] for e in events if e["event"] == "metrics"]
    assert scored
    assert all("recall" in scores and "two_sample" not in scores for scores in scored)
    (line,) = (e["line"] for e in events if e["event"] == "warning" and "two-sample" in e["line"])
    assert line.startswith("not all scores while training: two-sample: 24 real pictures")


@pytest.mark.parametrize("fields", [[], ["evaluation.samples=300"]])
def test_fewer_samples_are_told_of_where_somebody_named_a_number(
    tmp_path: Path, said: list[str], fields: list[str]
) -> None:
    judged = EVALUATED.replace('["fid", "is"]', '["two-sample"]').replace("2 steps", "4 steps")
    recipe = write_recipe(
        tmp_path, RECIPE + judged.replace("samples = 20", "samples = 400") + 'best_by = "two_sample"\n'
    )
    pictures = write_pictures(tmp_path / "pictures", each=30)
    train(recipe, pictures, tmp_path / "run", overrides=fields, options=CPU, say=said.append)
    told = [line.partition(",")[0] for line in said if "in place of" in line]
    assert told == (["two-sample: 30 samples in place of 300"] if fields else [])


@pytest.mark.long
def test_best_checkpoints_of_a_given_up_training_go(tmp_path: Path, said: list[str]) -> None:
    recipe, pictures = write_recipe(tmp_path, RECIPE + EVALUATED), write_pictures(tmp_path / "pictures")
    run = tmp_path / "run"
    train(recipe, pictures, run, options=CPU, say=quiet)
    shutil.rmtree(run / "checkpoints" / "step-000000004")
    (kept,) = [p for p in (run / "best").iterdir() if p.is_dir()]
    kept.replace(run / "best" / "step-000000004")
    train(recipe, pictures, run, options=CPU, say=said.append)
    assert any("deleted" in line and "step-000000004" in line for line in said)
    events = [e for e in read_events(run / "events.jsonl") if e["event"] == "metrics"]
    assert [e["step"] for e in events] == [2, 4, 4]
