"""Whether a small network tells generated pictures from real ones, as a score: without weights and without labels."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from evaluation.scored import CPU
from frugan.cli.application import application
from frugan.data.digits import SPLIT_SEED, digits_set, split_digits
from frugan.data.formats.picture_set import PictureSet, picture_digest
from frugan.engine.durations import EvaluationSettings
from frugan.engine.run.events import read_events
from frugan.errors import BadInput
from frugan.evaluation import judged
from frugan.evaluation.class_shares import with_shares
from frugan.evaluation.evaluation import evaluate
from frugan.evaluation.judged import PixelTest, TwoSampleTest
from frugan.evaluation.real_scores import evaluate_real
from frugan.evaluation.scorer import EvaluationOptions
from frugan.metrics.control import Control
from frugan.metrics.feature_network import PixelFeatures
from frugan.metrics.scores import proportion_half_width
from frugan.metrics.two_sample import Judge, TwoSample
from frugan.progress import quiet
from frugan.sampling.requests import DrawRequest
from frugan.training.scores import possible
from frugan.training.training import train
from training.pictures import write_pictures

QUICK = Judge(networks=2, steps=12, batch=16)
OPTIONS = EvaluationOptions(metrics=("two-sample",), samples=64, device="cpu", judge=QUICK)


def noise(count: int, side: int = 32, few: int = 2) -> PictureSet:
    """Noise in two classes, of which the second has a picture in so many."""
    array = np.random.default_rng(0).integers(0, 255, (count, 3, side, side)).astype(np.uint8)
    labels = (np.arange(count) % few == 0).astype(np.int64)
    return PictureSet(array, labels, ("dunkel ü", "hell"), True, picture_digest(array, labels))


def test_it_needs_no_feature_network(scored: Path, said: list[str]) -> None:
    """Inception's weights are not here; what four steps have made is told from noise."""
    pictures = noise(150)
    found = evaluate(scored / "run", pictures, OPTIONS, say=said.append)
    assert list(found.scores) == ["two_sample", "two_sample_half_width", "two_sample_real"]
    assert found.scores["two_sample"] > 0.8
    assert abs(found.scores["two_sample_real"] - 0.5) < 0.2
    of = found.provenance
    assert (of.network, of.network_digest, of.rows, of.real, of.samples) == ("none", "none", 0, 150, 64)
    assert of.judge == "64 pictures on either side; fixed features, leaving out each picture that is judged"
    assert of.control.startswith(
        "two-sample sees a blur of 0.5 pixels, 10% of another picture laid over, colours off by"
    )
    assert of.measured_by == f"two-sample: {of.judge}"
    assert not [line for line in said if "features" in line or "warning" in line or "in place of" in line]
    assert evaluate(scored / "run", pictures, OPTIONS, say=quiet) == found
    all_there_are = evaluate(scored / "run", pictures, replace(OPTIONS, samples=400), say=said.append).provenance
    assert (all_there_are.samples, all_there_are.judge[:11]) == (74, "74 pictures")
    fewer = "two-sample: 74 samples in place of 400, as they are judged against a half of the 150 real pictures"
    assert said.count(fewer) == 1
    evaluate(scored / "run", pictures, replace(OPTIONS, samples=50_000), say=said.append)
    assert sum("in place of" in line for line in said) == 1  # nobody asked for the usual number
    real = evaluate_real(pictures, OPTIONS, say=quiet)
    assert real.scores["two_sample"] == found.scores["two_sample_real"]
    assert real.provenance.judge == of.judge


def test_what_it_is_at_is_told(scored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged, "FEWEST_FOR_NETWORKS", 60)
    monkeypatch.setattr(judged, "control_of", lambda sees, real: Control({"blur": sees(real) or 0.5, "blend": 0.1}))
    monkeypatch.setattr(judged, "remembered", lambda _, find: find())
    steps: dict[str, list[tuple[int, int]]] = {}

    def moved(done: int, of: int) -> None:
        next(reversed(steps.values())).append((done, of))

    pictures = noise(150)
    evaluate(
        scored / "run", pictures, OPTIONS, say=quiet, progress=moved, stage=lambda name: steps.__setitem__(name, [])
    )
    samples, control, generated, real = (
        "two-sample: drawing samples",
        "two-sample: control, 1 of at most 10",
        "two-sample: judging the samples",
        "two-sample: judging real pictures, for comparison",
    )
    assert list(steps) == ["reading real pictures", samples, control, generated, real]
    assert steps[samples][-1] == (64, 64)
    assert all(steps[stage] == [(done, 24) for done in range(1, 25)] for stage in (control, generated, real))
    of_real: list[str] = []
    evaluate_real(pictures, OPTIONS, say=quiet, stage=of_real.append)
    assert of_real == ["reading real pictures", "two-sample: control, 1 of at most 10", real]


def test_precision_by_pixels_has_the_real_pictures_beside_it_and_says_when_it_flatters() -> None:
    """A tenth of the pictures again and again lies near many real ones, which real ones from each other do not."""
    random = np.random.default_rng(0)
    array = np.repeat(random.integers(0, 255, (300, 3, 8, 8)), 2, 2).repeat(2, 3).astype(np.uint8)
    labels = np.zeros(300, np.int64)
    pictures = PictureSet(array, labels, ("all",), True, picture_digest(array, labels))
    test = PixelTest.of(pictures, 50_000, ("pr",))
    assert test is not None
    assert test.count == 150
    real = test.of_real
    assert real.keys() == {"precision", "recall", "f_score"}
    assert test.flatters({"precision": real["precision"]}) is None
    assert test.flatters({"density": 1.0}) is None
    assert "no sign of quality" in str(test.flatters({"precision": 1.0}))
    assert real["precision"] < 0.9
    rows = PixelFeatures()(torch.from_numpy(array)).pooled.numpy()  # those of a half are among the first 150, or not
    beside = test.scores(rows)
    assert beside == test.scores(rows[:150])  # more generated ones are not compared
    assert 0 < beside["recall"] < 1
    assert (beside["precision_real"], beside["recall_real"]) == (real["precision"], real["recall"])
    assert PixelTest.of(pictures, 29, ("pr",)) is None


def test_score_and_control_by_pixels_have_the_same_counts(scored: Path, said: list[str]) -> None:
    """More samples than a half of the real pictures are neither drawn nor compared, and change nothing."""
    pictures = noise(150)
    by_pixels = replace(OPTIONS, metrics=("pr", "dc"), network="pixels", samples=80)
    found, more = (
        evaluate(scored / "run", pictures, replace(by_pixels, samples=samples), say=said.append)
        for samples in (80, 300)
    )
    assert found.scores == more.scores
    assert (found.provenance.neighbours, found.provenance.samples, found.provenance.rows) == (75, 75, 150)
    of = found.provenance.measured("recall")
    assert (of.samples, of.compared_with[:24]) == ("75", "75 of 150 real pictures ")
    assert found.half_width("recall") == proportion_half_width(found.scores["recall"], 75)
    assert found.half_width("precision") == proportion_half_width(found.scores["precision"], 75)
    half = "as they are compared with a half of the 150 real pictures"
    words = "precision and recall, density and coverage by pixels: 75 samples in place of"
    assert [line for line in said if "in place of" in line] == [f"{words} {asked}, {half}" for asked in (80, 300)]
    # one half in place of generated pictures has just what stands beside these as the control
    real = evaluate_real(pictures, by_pixels, say=quiet)
    assert {f"{name}_real": real.scores[name] for name in ("precision", "recall", "density", "coverage")} == {
        name: score for name, score in found.scores.items() if name.endswith("_real")
    }
    assert (real.provenance.neighbours, real.provenance.control) == (75, found.provenance.control)
    fewer = evaluate(scored / "run", pictures, replace(by_pixels, samples=40), say=quiet)
    assert fewer.provenance.neighbours == 40
    assert fewer.scores["recall_real"] != found.scores["recall_real"]


def test_beside_other_scores_neighbours_by_pixels_keep_their_counts(scored: Path) -> None:
    both = replace(OPTIONS, metrics=("fid", "pr"), network="pixels", samples=100)
    found = evaluate(scored / "run", noise(150), both, say=quiet)
    alone = evaluate(scored / "run", noise(150), replace(both, metrics=("pr",)), say=quiet)
    assert found.scores.items() >= alone.scores.items()
    assert (found.provenance.samples, found.provenance.neighbours) == (100, 75)
    assert found.provenance.measured("fid").samples == "100"


def test_published_precision_and_recall_compare_all_pictures(scored: Path) -> None:
    """As the papers count, and without a control, which had other counts."""
    of_network = replace(OPTIONS, metrics=("pr",), network="evaluation.scored:colours", samples=100)
    found = evaluate(scored / "run", noise(150), of_network, say=quiet)
    assert found.scores.keys() == {"precision", "recall", "f_score"}
    assert (found.provenance.samples, found.provenance.rows, found.provenance.neighbours) == (100, 150, 0)
    assert found.half_width("recall") == proportion_half_width(found.scores["recall"], 150)


def test_precision_by_pixels_comes_with_its_control(scored: Path, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=40)
    by_pixels = replace(OPTIONS, metrics=("pr",), network="pixels")
    found = evaluate(scored / "run", pictures, by_pixels, say=quiet)
    assert {"precision_real", "recall_real"} <= found.scores.keys()
    assert 0 < found.scores["precision_real"] <= 1
    runner = CliRunner()
    words = ["--data", str(pictures), "--metrics", "pr", "--network", "pixels", "--samples", "64", "--device", "cpu"]
    shown = runner.invoke(application(), ["evaluate", str(scored / "run"), *words]).output
    assert "by pixels: 40 generated beside 40 real; as many others of the real ones have precision " in shown
    assert "precision_real" not in shown


def test_density_by_pixels_comes_with_its_control_and_what_real_pictures_have(scored: Path, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=40)
    alone = evaluate(scored / "run", pictures, replace(OPTIONS, metrics=("dc",), network="pixels"), say=quiet)
    assert alone.scores.keys() == {"density", "density_half_width", "coverage", "density_real", "coverage_real"}
    assert 0 < alone.scores["coverage_real"] <= 1
    assert alone.provenance.control.startswith("dc ")
    words = ["--data", str(pictures), "--metrics", "pr,dc,two-sample", "--network", "pixels", "--samples", "64"]
    shown = CliRunner().invoke(application(), ["evaluate", str(scored / "run"), *words, "--device", "cpu"]).output
    line = next(line for line in shown.splitlines() if line.startswith("by pixels (says little yet): 40 generated "))
    assert re.search(r"have precision [\d.]+ and recall [\d.]+, density [\d.]+ and coverage [\d.]+$", line)
    assert "pr,dc" not in shown


def test_beside_other_metrics_each_has_its_own_samples(scored: Path) -> None:
    """Features are taken of classes as often as all real pictures have them, a judge sees them as a half has them."""
    pictures = noise(150, few=10)
    both = replace(OPTIONS, metrics=("fid", "two-sample"), network="evaluation.scored:colours")
    found = evaluate(scored / "run", pictures, both, say=quiet)
    alone = [evaluate(scored / "run", pictures, replace(both, metrics=(m,)), say=quiet) for m in ("fid", "two-sample")]
    assert found.scores == {**alone[0].scores, **alone[1].scores}
    assert (found.provenance.network, found.provenance.rows) == ("evaluation.scored:colours", 150)


def test_classes_are_drawn_as_often_as_the_real_pictures_have_them() -> None:
    test = TwoSampleTest(noise(400, few=8), 200, QUICK)
    assert len(test.compared_with) == test.count == 200
    classes = with_shares(DrawRequest(), test.compared_with, 2).classes
    assert classes is not None
    assert sum(classes) / len(classes) == test.compared_with.labels.mean()
    assert 10 < test.compared_with.labels.sum() < 40


def test_too_few_pictures_are_refused_or_leave_a_training_without_scores(scored: Path) -> None:
    words = "59 real pictures and 64 samples; expected at least 60 real ones and 30 samples"
    with pytest.raises(BadInput, match=words):
        evaluate(scored / "run", noise(59), OPTIONS, say=quiet)
    with pytest.raises(BadInput, match=words):
        evaluate_real(noise(59), OPTIONS, say=quiet)
    stages = list[str]()
    with_features = replace(OPTIONS, metrics=("fid", "two-sample"), network="evaluation.scored:colours")
    with pytest.raises(BadInput, match=words):
        evaluate_real(noise(59), with_features, say=quiet, stage=stages.append)
    assert stages == ["reading real pictures"]  # before features are taken, which may need an hour
    with pytest.raises(BadInput, match="150 real pictures and 29 samples"):
        evaluate(scored / "run", noise(150), replace(OPTIONS, samples=29), say=quiet)
    with pytest.raises(BadInput, match=r"--reference x\.npz: holds moments"):
        evaluate(scored / "run", None, replace(OPTIONS, reference=Path("x.npz")), say=quiet)
    run = SimpleNamespace(ranks=SimpleNamespace(size=1), sources={"images": noise(59)})
    settings = EvaluationSettings(metrics=("two-sample",), samples=64)
    taken, lacking = possible(cast(Any, run), settings)
    assert taken is None
    assert words in str(lacking)
    assert "--holdout" not in str(lacking)
    run.recipe = SimpleNamespace(data=SimpleNamespace(holdout=0.2))
    run.sources = {"images": replace(noise(90), held_out=noise(18))}
    assert "18 real pictures" in str(possible(cast(Any, run), settings)[1])
    assert "hold out as many (--holdout 60), or none" in str(possible(cast(Any, run), settings)[1])
    run.sources = {"images": noise(60)}
    assert possible(cast(Any, run), settings) == (settings, None)  # whatever weights are missing


@pytest.mark.parametrize(
    ("metrics", "names"),
    [
        (("pr",), "precision and recall"),
        (("dc",), "density and coverage"),
        (("dc", "pr"), "precision and recall, density and coverage"),
    ],
)
def test_neighbours_of_few_pictures_by_pixels_are_left_out(scored: Path, metrics: tuple[str, ...], names: str) -> None:
    found = evaluate(scored / "run", noise(25), replace(OPTIONS, metrics=metrics, network="pixels"), say=quiet)
    assert found.scores == {}
    assert {*found.provenance.blind.split(",")} == {*metrics}
    (line,) = found.warnings
    assert line.startswith(f"{names} by pixels: left out, as 25 real pictures are too few")


def test_neighbours_by_pixels_whose_control_sees_nothing_are_left_out(
    scored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PixelTest, "control", Control({"blur": None, "blend": None, "colour": 8}))
    both = replace(OPTIONS, metrics=("pr", "dc", "fid"), network="pixels")
    found = evaluate(scored / "run", noise(150), both, say=quiet)
    assert found.scores.keys() == {"fid"}
    (line,) = (line for line in found.warnings if "blind" in line)
    assert line.startswith("precision and recall, density and coverage by pixels: blind")
    assert line.endswith("so they are left out")


def test_what_a_judge_that_sees_nothing_says_is_left_out(
    scored: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    pictures = noise(150)
    with monkeypatch.context() as patched:
        patched.setattr(judged, "leave_one_out", lambda first, _: TwoSample((0.51,), len(first)))
        found = evaluate(scored / "run", pictures, OPTIONS, say=said.append)
    assert found.scores == {}
    assert found.provenance.blind == "two-sample"
    (line,) = found.warnings
    assert line.startswith("two-sample: blind at 64 pictures on either side: the judge does not see a blur of 1 pixels")
    assert "so it is left out" in line
    assert "checkpoint" not in line  # of which `evaluate` chooses none
    assert f"warning: {line}" in said
    # what was found is remembered: nothing is judged again, though all would be told apart
    assert evaluate_real(pictures, OPTIONS, say=quiet).scores == {}


def test_the_command_says_it_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged, "FEWEST_FOR_NETWORKS", 60)
    monkeypatch.setattr(judged, "two_sample", lambda first, *_: TwoSample((0.5, 0.52, 0.54), len(first)))
    pictures = write_pictures(tmp_path / "pictures", each=60, side=16)
    words = ["evaluate", "--real", str(pictures), "--resolution", "16", "--metrics", "two-sample", "--device", "cpu"]
    monkeypatch.setattr(judged.TwoSampleTest, "control", Control({"blur": 0.5, "blend": None, "colour": 8}))
    shown = CliRunner().invoke(application(), words).stdout
    who = "a small network (60 pictures on either side, 3 networks)"
    said = f"{who} tells two halves of the real pictures apart 52 times in 100; 50 is guessing"
    assert f"two-sample 0.52 ± 0.10: {said}" in shown
    assert (
        "damaged a little, it sees a blur of 0.5 pixels, colours off by 8 of 255 levels; does not see 40% of" in shown
    )
    assert "two-sample: 60 pictures on either side; 3 networks, 400 steps of 32" in shown


@pytest.mark.long
def test_a_discriminator_that_gave_up_is_told_in_a_training(tmp_path: Path) -> None:
    """A penalty far too strong leaves it nothing but to find all pictures alike."""
    fit, _ = split_digits(SPLIT_SEED)
    run = tmp_path / "run"
    train("r3gan-digits-32", {"images": digits_set(32, fit)}, run, overrides=FLAT, options=CPU, say=quiet)
    events = list(read_events(run / "events.jsonl"))
    assert [e["scores"]["two_sample"] > 0.9 for e in events if e["event"] == "metrics"] == [True] * 3
    (line,) = [e["line"] for e in events if e["event"] == "warning"]
    assert line.startswith("D has given up: at this score and the one before, its loss stood at that of guessing (0.69")


FLAT = [
    *("networks.widths=[8, 8, 8, 8]", "networks.groups=[1, 1, 1, 1]", "networks.latent_size=8"),
    *("objective.gamma=1e4", "objective.final_gamma=1e4", "training.batch=8", "evaluation.every=105 steps"),
    *("training.duration=315 steps", "saving.snapshot_every=1k steps", "saving.checkpoint_every=1k steps"),
]
