"""The best checkpoints are the best of all, in whatever order they come."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frugan.engine.run.best_checkpoints import BestCheckpoints
from frugan.engine.run.checkpoint import Checkpoint, list_checkpoints


def offer(best: BestCheckpoints, step: int, value: float, **by: object) -> bool:
    def save(folder: Path) -> Checkpoint:
        path = folder / f"step-{step:09d}"
        path.mkdir(parents=True)
        return Checkpoint(path, step)

    return best.offer(step, value, {"weights": f"at step {step}", **by}, save)


def steps(best: BestCheckpoints) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(best.folder)]


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=12, unique=True), st.integers(1, 4), st.booleans())
@settings(max_examples=30)
def test_the_best_are_kept(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], count: int, lower: bool
) -> None:
    best = BestCheckpoints(tmp_path_factory.mktemp("best"), "fid" if lower else "is_mean", count)
    for number, value in enumerate(values, 1):
        offer(best, number, value)
    ranked = sorted(range(1, len(values) + 1), key=lambda n: values[n - 1], reverse=not lower)
    assert steps(best) == sorted(ranked[:count])


def test_no_luck_beats_guessing_and_of_equals_the_later_is_kept(tmp_path: Path) -> None:
    best = BestCheckpoints(tmp_path, "two_sample", 1)
    kept = [offer(best, step, value) for step, value in enumerate([0.45, 0.6, 0.5, 0.52, 0.48, 0.51], 1)]
    assert kept == [True, False, True, False, True, False]
    assert steps(best) == [5]


def test_what_is_no_number_is_never_best(tmp_path: Path) -> None:
    best = BestCheckpoints(tmp_path, "fid", 1)
    assert not offer(best, 1, float("nan"))
    assert offer(best, 2, 5.0)
    assert not offer(best, 3, float("inf"))
    assert steps(best) == [2]
    assert not offer(BestCheckpoints(tmp_path / "none", "fid", 0), 1, 1.0)


def test_another_score_starts_to_compare_anew(tmp_path: Path) -> None:
    offer(BestCheckpoints(tmp_path, "fid", 1), 1, 0.1)
    best = BestCheckpoints(tmp_path, "is_mean", 1)
    assert offer(best, 2, 3.0)
    assert steps(best) == [2]


def test_scores_by_another_judge_or_of_other_pictures_do_not_compare(tmp_path: Path) -> None:
    best = BestCheckpoints(tmp_path, "two_sample", 2)
    kept = [offer(best, step, value, judge="strict") for step, value in enumerate([0.9, 0.8], 1)]
    assert not best.wants(3, 0.95, {"judge": "strict"})
    assert [*kept, offer(best, 3, 0.95, judge="stricter")] == [True] * 3
    assert steps(best) == [3]
    aside = sorted(path.name for path in tmp_path.iterdir() if path.is_dir() and path.name != "step-000000003")
    assert aside == ["earlier-step-000000001", "earlier-step-000000002"]  # nothing that was the best is deleted
    assert offer(best, 4, 0.96, judge="stricter")
    assert steps(best) == [3, 4]


def test_what_a_score_does_not_depend_on_may_change(tmp_path: Path) -> None:
    best = BestCheckpoints(tmp_path, "fid", 1)
    assert offer(best, 1, 5.0, network_digest="a", judge="none")
    assert not offer(best, 2, 80.0, network_digest="a", judge="strict")
    assert offer(best, 3, 80.0, network_digest="b", judge="strict")
    older = {"score": "fid", "steps": {"3": 80.0}}  # an older version kept no more
    (tmp_path / "scores.json").write_text(json.dumps(older), "utf-8")
    assert not offer(best, 4, 90.0, network_digest="c")


def by_an_older_version(best: BestCheckpoints, value: float, **by: object) -> None:
    """Keep the checkpoint of step 1 as a version that knew of no counts by pixels did."""
    offer(best, 1, value)
    older = {"score": best.score, "by": by, "steps": {"1": value}}
    (best.folder / "scores.json").write_text(json.dumps(older), "utf-8")


def test_precision_and_recall_of_other_counts_do_not_compare_and_other_scores_go_on(tmp_path: Path) -> None:
    before = {"network_digest": "a", "samples": 500, "rows": 322}
    now = before | {"neighbours": 161, "judge": "160 pictures"}
    best = {score: BestCheckpoints(tmp_path / score, score, 1) for score in ("f_score", "fid", "two_sample")}
    by_an_older_version(best["f_score"], 0.9, **before)
    assert offer(best["f_score"], 2, 0.1, **now)  # nothing is known of how these compare
    assert not offer(best["f_score"], 3, 0.05, **now)
    by_an_older_version(best["fid"], 5.0, **before)
    assert not offer(best["fid"], 2, 80.0, **now)
    by_an_older_version(best["two_sample"], 0.6, judge="160 pictures", samples=500)
    assert not offer(best["two_sample"], 2, 0.9, **now | {"samples": 161})  # the same judge
    published = BestCheckpoints(tmp_path / "published", "recall", 1)
    by_an_older_version(published, 0.9, **before)
    assert not offer(published, 2, 0.1, **before, neighbours=0)


@pytest.mark.parametrize("content", ["", "{", '{"score": "fid"}', '{"score": "fid", "steps": []}'])
def test_a_damaged_list_is_begun_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "scores.json").write_text(content, "utf-8")
    assert offer(BestCheckpoints(tmp_path, "fid", 1), 1, 0.1)
