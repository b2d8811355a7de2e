"""Scores of real pictures: one half against the other, and where they are shown."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from evaluation.scored import OPTIONS, colours
from frugan.cli.application import application
from frugan.data.batches import random_order
from frugan.data.formats.picture_set import PictureSet, picture_digest
from frugan.data.survey import Fit
from frugan.engine.run.events import EventLog
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.evaluation.real_scores import evaluate_real
from frugan.evaluation.results import keep_in_run
from frugan.evaluation.scorer import EvaluationOptions
from frugan.metrics.scores import Moments, StreamingInceptionScore, frechet_distance, precision_recall
from frugan.progress import quiet
from frugan.reporting.report import floors, taken_scores, view
from training.pictures import write_pictures


def noise(count: int) -> PictureSet:
    array = np.random.default_rng(0).integers(0, 255, (count, 3, 8, 8)).astype(np.uint8)
    labels = np.arange(count) % 2
    return PictureSet(array, labels, ("a", "b"), True, picture_digest(array, labels))


def test_one_half_is_scored_against_the_other(said: list[str]) -> None:
    pictures = noise(61)
    options = replace(OPTIONS, metrics=("fid", "is", "kid", "pr", "intra-fid"))
    evaluation = evaluate_real(pictures, options, say=said.append)
    rows, logits = colours(torch.from_numpy(pictures.pictures[random_order(f"real/{pictures.digest}", 61)]))
    halves = [Moments.of(rows[:30]), Moments.of(rows[30:])]
    assert evaluation.scores["fid"] == pytest.approx(frechet_distance(*halves), rel=1e-6)
    precision, recall = precision_recall(rows[:30].numpy(), rows[30:].numpy())
    assert (evaluation.scores["precision"], evaluation.scores["recall"]) == (precision, recall)
    of_all = StreamingInceptionScore(61, 3)
    of_all.update(logits)
    assert evaluation.scores["is_mean"] == pytest.approx(of_all.finish()[0], rel=1e-6)
    assert set(evaluation.by_class) == {"a", "b"}
    of = evaluation.provenance
    assert (of.samples, of.real, of.rows, of.is_of_real, of.data_digest) == (30, 31, 31, True, pictures.digest)
    assert any("subsets of 30 instead of 1000" in line for line in said)


def test_the_first_part_has_as_many_as_would_be_generated() -> None:
    of = evaluate_real(noise(61), replace(OPTIONS, metrics=("fid",), samples=12), say=quiet).provenance
    assert (of.samples, of.real, of.rows) == (12, 49, 0)


def test_real_digits_are_the_floor_of_a_run_of_digits(said: list[str]) -> None:
    options = EvaluationOptions(network="digits", device="cpu")
    evaluation = evaluate_real("digits", options, say=said.append)
    assert evaluation.scores["fid"] < 0.2
    assert min(evaluation.scores["precision"], evaluation.scores["recall"]) > 0.8
    assert evaluation.provenance.split == "unseen by the demo"
    assert any(line.startswith("no inception score") for line in said)


def test_the_report_draws_them_as_a_line(scored: Path, tmp_path: Path) -> None:
    """Through the chart of what was measured by the same network, and of nothing else."""
    evaluation = evaluate_real(scored / "pictures", OPTIONS, of=scored / "run", say=quiet)
    assert evaluation.provenance.real == 30
    run = RunFolder(tmp_path / "run")
    provenance = evaluation.provenance.as_json() | {"scored": "generated"}
    with EventLog(run.events) as log:
        for step in (10, 20):
            log.write("metrics", step=step, scores={"fid": 50.0 / step, "precision": 0.5}, provenance=provenance)
    (run.path / "recipe.json").write_text("{}", "utf-8")
    (run.path / "checkpoints").mkdir()
    own = replace(evaluation.provenance, weights=str(run.path / "checkpoints" / "step-1" / "ema.safetensors"))
    keep_in_run([replace(evaluation, provenance=own)], quiet)
    charts = view(run, "run").charts
    fid = charts["Score: FID (evaluation.scored:colours), lower is better"]
    assert list(fid) == ["FID", "FID of real pictures"]
    assert fid["FID of real pictures"].steps == [10, 20]
    assert fid["FID of real pictures"].values == [evaluation.scores["fid"]] * 2
    both = charts["Score: precision and recall (evaluation.scored:colours), higher is better"]
    assert list(both) == ["precision", "precision of real pictures"]  # recall was not measured while it trained
    ((row,), _) = taken_scores(run.scores)
    assert (row["step"], row["weights"]) == ("-", "real pictures")
    assert "fid (evaluation.scored:colours)" in row
    other = replace(own, network_digest="another")
    run.scores.unlink()
    keep_in_run([replace(evaluation, provenance=other)], quiet)
    assert list(floors(run.scores)) == ["another"]
    assert list(view(run, "run").charts["Score: FID (evaluation.scored:colours), lower is better"]) == ["FID"]


def evaluated(*words: str) -> tuple[str, BaseException | None]:
    result = CliRunner().invoke(application(), ["evaluate", *words])
    return result.stdout, result.exception


def test_the_command(scored: Path, tmp_path: Path) -> None:
    pictures = str(write_pictures(tmp_path / "pictures", each=15))
    how = ("--real", pictures, "--network", "evaluation.scored:colours", "--device", "cpu")
    shown, _ = evaluated(*how, "--resolution", "16")
    assert "15 real pictures against 15 others" in shown
    assert "(evaluation.scored:colours)" in shown
    for words, message in (
        (how, "--resolution is missing"),
        ((), "a run, checkpoint or weights file is missing"),
        ((str(scored / "run"), "--resolution", "16", "--data", pictures), "--resolution 16: goes with --real alone"),
        ((str(scored / "run"), *how, "--resolution", "16"), "--resolution 16: the run has one"),
        ((str(scored / "run"), *how, "--fit", "pad"), "--fit pad: pictures are fitted as the run's were"),
        ((str(scored / "run"), "--fit", "pad", "--data", pictures), "--fit pad: goes with --real alone"),
        ((*how, "--data", pictures), "--data: is about generated pictures"),
        ((*how, "--standing-size", "8"), "--standing-size: is about generated pictures"),
        ((*how, "--resolution", "16", "--metrics", "cmmd"), "cmmd: is defined with CLIP's features"),
        ((*how, "--resolution", "16", "--metrics", "Beauty"), "not beauty"),
        ((*how, "--resolution", "16", "--network-file", "x"), "--network-file x: goes with --network inception"),
    ):
        _, error = evaluated(*words)
        assert isinstance(error, BadInput), words
        assert message in str(error)


def test_too_few_pictures() -> None:
    with pytest.raises(BadInput, match="--real given: 19 pictures; expected at least 20"):
        evaluate_real(noise(19), OPTIONS, say=quiet)


def test_pictures_that_are_not_square_are_cropped_or_padded(tmp_path: Path) -> None:
    """As by hand: the middle third of wide ones, or these with white above and below."""
    wide = np.random.default_rng(0).integers(0, 255, (24, 16, 48, 3), np.uint8)
    padded = np.full((24, 48, 48, 3), 255, np.uint8)
    padded[:, 16:32] = wide
    for name, pictures in {"wide": wide, "crop": wide[:, :, 16:32], "pad": padded}.items():
        (tmp_path / name).mkdir()
        for number, picture in enumerate(pictures):
            Image.fromarray(picture).save(tmp_path / name / f"{number:02d}.png")

    def digest(name: str, fit: Fit, side: int) -> str:
        options = replace(OPTIONS, metrics=("fid",))
        return evaluate_real(tmp_path / name, options, resolution=side, fit=fit, say=quiet).provenance.data_digest

    fits: dict[Fit, int] = {"crop": 16, "pad": 48}  # sides at which nothing is resized
    for fit, side in fits.items():
        assert digest("wide", fit, side) == digest(fit, "crop", side)
