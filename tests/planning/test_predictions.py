"""Predictions are run once, and kept for those whom they are still true for."""

import json
from pathlib import Path
from typing import Any

import pytest

from contract.made_up import MadeUpFamily
from contract.rig import BF16, FP16
from frugan.contract.family import Family
from frugan.families import families
from frugan.planning.prediction import predict
from frugan.planning.predictions import Job, Predictions, versions_of, write_predictions
from limits import Limit
from planning.formula import PredictionsBy, predicted_by_formula
from planning.tasks import plan_of, task

MADE_UP = MadeUpFamily()
OF = task(MADE_UP)
STAGE = OF.stages[0]


@pytest.fixture
def by_formula(predictions_by: PredictionsBy) -> None:
    """For what is kept it does not matter what a prediction says."""
    predictions_by(predicted_by_formula)


def store(*files: Path, version: str = "now", subject: str = "a") -> Predictions:
    return Predictions(OF, "card", {"recipe": subject}, version, files)


def test_what_is_known_is_not_run_again(tmp_path: Path) -> None:
    plan, file = plan_of(OF, 2), tmp_path / "known.json"
    first = store()
    prediction = first(plan, STAGE, rough=False)
    assert first(plan, STAGE, rough=False) == prediction
    assert first.ran == 1
    first.save(file)
    again = store(file)
    assert again(plan, STAGE, rough=False) == prediction
    assert again.ran == 0


@pytest.mark.usefixtures("by_formula")
@pytest.mark.parametrize("other", [{"version": "later"}, {"subject": "b"}])
def test_what_others_found_does_not_count(tmp_path: Path, other: dict[str, str]) -> None:
    file = tmp_path / "known.json"
    first = store()
    first(plan_of(OF, 2), STAGE, rough=False)
    first.save(file)
    changed = store(file, **other)
    changed(plan_of(OF, 2), STAGE, rough=False)
    assert changed.ran == 1


@pytest.mark.usefixtures("by_formula")
def test_a_file_holds_for_the_versions_it_names_and_what_is_added_for_the_one_that_made_it(tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    first = store()
    first(plan_of(OF, 2), STAGE, rough=False)
    write_predictions(file, ("now", "later"), first.known)
    before = file.read_bytes()

    later = store(file, version="later")
    later(plan_of(OF, 2), STAGE, rough=False)
    assert later.ran == 0
    later.save(file)
    assert file.read_bytes() == before

    later(plan_of(OF, 4), STAGE, rough=False)
    later.save(file)
    assert versions_of(file) == ("later",)
    assert (len(store(file, version="later").known), len(store(file).known)) == (2, 0)


@pytest.mark.usefixtures("by_formula")
def test_recipes_share_a_file(tmp_path: Path) -> None:
    plan, file = plan_of(OF, 2), tmp_path / "known.json"
    one, other = store(), store(subject="b")
    one(plan, STAGE, rough=True)
    other(plan, STAGE, rough=True)
    one.learn(other)
    one.save(file)
    for subject in ("a", "b"):
        again = store(file, subject=subject)
        again(plan, STAGE, rough=True)
        assert again.ran == 0


@pytest.mark.usefixtures("by_formula")
@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 0}', "\x00"])
def test_a_damaged_file_is_made_again(tmp_path: Path, content: str) -> None:
    file = tmp_path / "known.json"
    file.write_text(content, "utf-8")
    renewed = store(file)
    renewed(plan_of(OF, 2), STAGE, rough=True)
    assert renewed.ran == 1
    renewed.save(file)
    assert len(json.loads(file.read_text("utf-8"))["predictions"]) == 1


def test_refusals_are_kept_too(tmp_path: Path) -> None:
    of, file = task(families()["saehd"], batch=2, group=1), tmp_path / "known.json"
    plan = plan_of(of, 1, keeping="products")
    for ran in (1, 0):
        kept = Predictions(of, "card", {}, "now", (file,))
        with pytest.raises(RuntimeError, match="mutated"):
            kept(plan, of.stages[0], rough=True)
        assert kept.ran == ran
        kept.save(file)


class Helping:
    """A helper in the same process; gone after some jobs."""

    def __init__(self, lasts: int) -> None:
        self.jobs: list[Job] = []
        self.asked = 0
        self.lasts = lasts

    def submit(self, job: Job) -> None:
        self.jobs.append(job)
        self.asked += 1

    def take(self) -> dict[str, Any] | None:
        self.lasts -= 1
        job = self.jobs.pop(0)
        return None if self.lasts < 0 else store().outcome(job)

    def close(self) -> None:
        self.jobs.clear()


@pytest.mark.usefixtures("by_formula")
@pytest.mark.parametrize("lasts", [9, 1])
def test_a_helper_helps_and_may_go(lasts: int, limit: Limit) -> None:
    limit("seconds that a helper saves", 0.0)
    plans = [plan_of(OF, size) for size in (2, 4, 6)]
    alone, helped = store(), store()
    helper = Helping(lasts)
    helped.helper, helped.expected_seconds = helper, lambda: 1.0
    helped.ahead([(plan, STAGE, True) for plan in plans])
    for plan in plans:
        assert helped(plan, STAGE, rough=True) == alone(plan, STAGE, rough=True)
    assert helper.asked == 1  # every other plan of three


@pytest.mark.usefixtures("by_formula")
def test_a_full_disk_keeps_the_file_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "known.json"
    first = store()
    first(plan_of(OF, 2), STAGE, rough=True)
    first.save(file)
    before = file.read_bytes()
    first(plan_of(OF, 4), STAGE, rough=True)

    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        first.save(file)
    assert file.read_bytes() == before


@pytest.mark.parametrize("keeping", ["all", pytest.param("nothing", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "family",
    [
        MADE_UP,
        *(pytest.param(each, marks=pytest.mark.long, id=each.name) for each in families().values()),
    ],
    ids=["made-up", *families()],
)
def test_fp16_takes_what_bf16_takes(family: Family, keeping: str, predictions_by: PredictionsBy) -> None:
    of = task(family)
    one, other = (predict(of, plan_of(of, 2, p, keeping=keeping), "card", of.stages[0]) for p in (BF16, FP16))
    assert abs(one.live_bytes - other.live_bytes) <= 64 * 512  # scalars of loss scales, rounded up to blocks
    assert other.reserved_bytes == pytest.approx(one.reserved_bytes, rel=0.002, abs=2**21)
    predictions_by(predicted_by_formula)
    kept = Predictions(of, "card", {}, "now")
    kept(plan_of(of, 2, BF16, keeping=keeping), of.stages[0], rough=False)
    kept(plan_of(of, 2, FP16, keeping=keeping), of.stages[0], rough=False)
    assert kept.ran == 1
