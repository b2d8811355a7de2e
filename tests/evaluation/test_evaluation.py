"""Scores of generators: what they are compared with, what their card says, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from evaluation.scored import OPTIONS, colours, drawn, low, no_scores
from frugan.cli.application import application
from frugan.cli.evaluate import EvaluateOptions
from frugan.data.formats.picture_set import PictureSet, picture_digest
from frugan.errors import BadInput
from frugan.evaluation import evaluation
from frugan.evaluation.evaluation import evaluate, truncation_curve
from frugan.evaluation.reference import reference_of
from frugan.evaluation.results import plot_truncation_curve, save_evaluations
from frugan.metrics.feature_network import NamedFeatures
from frugan.metrics.provenance import Provenance
from frugan.progress import quiet
from frugan.sampling.generators import Opened
from frugan.sampling.requests import DrawRequest
from frugan.setup.networks import Weights
from training.pictures import write_pictures


def test_scores_and_their_card(scored: Path, said: list[str]) -> None:
    options = replace(OPTIONS, metrics=("fid", "is", "kid", "pr", "intra-fid"))
    evaluation = evaluate(scored / "run", scored / "pictures", options, say=said.append)
    names = ["fid", "is_mean", "is_std", "kid_mean", "kid_std", "precision", "recall", "f_score", "intra_fid"]
    assert list(evaluation.scores) == names
    assert all(np.isfinite(value) for value in evaluation.scores.values())
    assert set(evaluation.by_class) == {"hell", "dunkel ü"}
    of = evaluation.provenance
    assert (of.samples, of.real, of.step, of.ema, of.precision) == (
        70,
        60,
        4,
        True,
        "fp32",
    )
    assert of.compared_with == "60 real pictures of the training set (trained on)"  # as scores while training say it
    assert any("subsets of 60 instead of 1000" in line for line in said)


def test_other_pictures_than_those_of_the_training_go_by_their_path(scored: Path, tmp_path: Path) -> None:
    others = write_pictures(tmp_path / "others", each=15)
    of = evaluate(scored / "run", others, replace(OPTIONS, metrics=("fid",)), say=quiet).provenance
    assert of.compared_with == f"30 real pictures of {others}"


def test_the_usual_metrics_are_those_that_the_network_can_give(scored: Path, said: list[str]) -> None:
    options = replace(OPTIONS, network="evaluation.scored:no_scores")
    evaluation = evaluate(scored / "run", scored / "pictures", options, say=said.append)
    assert {"fid", "kid_mean", "precision"} <= evaluation.scores.keys()
    assert "is_mean" not in evaluation.scores
    (line,) = [line for line in said if line.startswith("no inception score: feature network")]
    assert "gives no class probabilities" in line


def test_what_recall_says_is_told_at_the_largest_truncation_alone(
    scored: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(evaluation, "low_recall", low)
    options = replace(OPTIONS, metrics=("pr",))
    curve = truncation_curve(scored / "run", scored / "pictures", (0.2, 1.0, 0.6), options, say=said.append)
    assert [each.warnings[-1] for each in curve] == ["words at 0.2", "words at 1", "words at 0.6"]
    assert [line for line in said if "words" in line] == ["warning: words at 1"]


def test_a_set_against_itself(scored: Path, opened: Opened) -> None:
    """The same pictures as real and as generated ones: no distance, whole precision."""
    pictures, labels = drawn(opened, DrawRequest(), count=70)
    array, numbers = pictures.numpy(), labels.numpy()
    own = PictureSet(array, numbers, ("a", "b"), True, picture_digest(array, numbers))
    alike = replace(OPTIONS, draw=DrawRequest(classes=(0, 1)))  # as these were drawn
    evaluation = evaluate(scored / "run", own, alike, say=quiet)
    assert evaluation.scores["fid"] == pytest.approx(0, abs=1e-9)
    assert evaluation.scores["precision"] == evaluation.scores["recall"] == 1


@pytest.mark.long
def test_a_curve_over_truncations(scored: Path, tmp_path: Path) -> None:
    options = replace(OPTIONS, metrics=("fid", "is"))
    curve = truncation_curve(scored / "run", scored / "pictures", (0.2, 0.6, 1.0), options, say=quiet)
    assert [each.provenance.truncation for each in curve] == [0.2, 0.6, 1.0]
    assert len({each.scores["fid"] for each in curve}) == 3
    plot_truncation_curve(curve, tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as picture:
        assert min(picture.size) > 300
    save_evaluations(curve, tmp_path / "found.jsonl")
    assert len((tmp_path / "found.jsonl").read_text("utf-8").splitlines()) == 3


def test_a_reference_is_computed_once_and_for_its_pictures(tmp_path: Path) -> None:
    asked = 0

    def counting(pictures: Tensor) -> Tensor:
        nonlocal asked
        asked += len(pictures)
        return no_scores(pictures)

    def made(seed: int) -> PictureSet:
        array = np.random.default_rng(seed).integers(0, 255, (30, 3, 8, 8)).astype(np.uint8)
        labels = np.zeros(30, np.int64)
        return PictureSet(array, labels, ("a",), False, picture_digest(array, labels))

    network = NamedFeatures(counting, "counting", "d" * 64, torch.device("cpu"))
    first = reference_of(made(0), network, tmp_path, batch=7)
    again = reference_of(made(0), network, tmp_path, batch=7)
    assert asked == 30
    assert torch.equal(first.moments.covariance, again.moments.covariance)
    np.testing.assert_array_equal(first.rows, again.rows)
    reference_of(made(1), network, tmp_path, batch=7)
    assert asked == 60
    for damaged in tmp_path.glob("*.safetensors"):
        damaged.write_bytes(b"cut")
    reference_of(made(0), network, tmp_path, batch=7)
    assert asked == 90
    for damaged in tmp_path.glob("*.npy"):
        damaged.write_bytes(b"cut")
    np.testing.assert_array_equal(reference_of(made(0), network, tmp_path, batch=7).rows, first.rows)
    assert asked == 120


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"metrics": ("fid", "beauty")}, "metrics: expected some of"),
        ({"metrics": ()}, "metrics: expected some"),
        ({"samples": 5}, "--samples 5"),
        ({"network": "nothing"}, "--network nothing"),
        ({"network": "inception"}, "`frugan fetch inception` gets them.* Without weights: --metrics two-sample"),
        ({"draw": DrawRequest(classes=(0, 7))}, "--classes 7: expected 0 to 1"),
        ({"draw": DrawRequest(truncation=0.0)}, "--truncation 0"),
        ({"draw": DrawRequest(statistics="standing", standing_size=6)}, "--standing-size 6: expected a multiple"),
        ({"network": "evaluation.scored:no_scores", "metrics": ("is",)}, "gives no class probabilities"),
    ],
)
def test_requests_that_make_no_sense(scored: Path, changed: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        evaluate(scored / "run", scored / "pictures", replace(OPTIONS, **changed), say=quiet)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["fid,pr", "fid, pr", "fid pr", "[fid, pr]", "[ fid ,pr ]", '["fid", "pr"]', "(fid pr)", "FID,Pr"]
)
def test_metrics_may_be_typed_as_recipes_have_them(text: str) -> None:
    assert EvaluateOptions(metrics=text).metric_names == ("fid", "pr")
    assert EvaluateOptions(metrics="[]").metric_names == ()  # which is refused


@pytest.mark.parametrize(("metric", "count"), [("pr", 3), ("kid", 1), ("fid", 1)])
def test_fewer_pictures_than_a_metric_needs_are_refused_before_any_is_drawn(
    metric: str, count: int, scored: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, labels = (made.numpy() for made in drawn(opened, DrawRequest(), count=count))
    few = PictureSet(pictures, labels, ("a", "b"), True, picture_digest(pictures, labels))

    def draws(*_: object, **__: object) -> None:
        raise AssertionError("pictures were drawn")

    monkeypatch.setattr("frugan.evaluation.scorer.FeatureCollector.draw", draws)
    with pytest.raises(BadInput, match=rf"--metrics {metric}: {count} real pictures; expected at least"):
        evaluate(scored / "run", few, replace(OPTIONS, metrics=(metric,)), say=quiet)


def test_a_diverged_generator_has_no_score(scored: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> dict[str, torch.nn.Module]:
        for parameter in opened.networks["G"].parameters():
            torch.nn.init.constant_(parameter, torch.nan)
        return opened.networks

    monkeypatch.setattr(evaluation, "networks_from", broken)
    with pytest.raises(BadInput, match="70 of 70 pictures hold values that are not finite"):
        evaluate(scored / "run", scored / "pictures", OPTIONS, say=quiet)


def test_networks_of_one_module_are_told_apart(scored: Path) -> None:
    """Moments of real pictures that one made are not another's."""
    options = replace(OPTIONS, metrics=("fid",))
    one = evaluate(scored / "run", scored / "pictures", options, say=quiet)
    other = replace(options, network="evaluation.scored:other_colours")
    two = evaluate(scored / "run", scored / "pictures", other, say=quiet)
    assert one.provenance.network_digest != two.provenance.network_digest
    assert two.scores["fid"] == pytest.approx(one.scores["fid"], rel=1e-5)  # mirrored features are as far apart


def test_the_card_tells_averages_and_classes(scored: Path) -> None:
    checkpoint = scored / "run" / "checkpoints" / "step-000000004"
    options = replace(OPTIONS, metrics=("fid",), draw=DrawRequest(classes=(1,)))
    trained = evaluate(checkpoint / "networks.safetensors", scored / "pictures", options, say=quiet).provenance
    assert (trained.ema, trained.classes) == (False, "1")
    standing = replace(OPTIONS, metrics=("fid",), draw=DrawRequest(statistics="standing", standing_size=8))
    provenance = evaluate(scored / "run", scored / "pictures", standing, say=quiet).provenance
    assert (provenance.ema, provenance.statistics) == (True, "standing, 16 batches of 8")
    assert trained.data_digest == provenance.data_digest


def test_too_few_pictures_are_warned_of(scored: Path) -> None:
    evaluation = evaluate(scored / "run", scored / "pictures", replace(OPTIONS, samples=12), say=quiet)
    assert any("12 generated pictures for 12 feature dimensions" in line for line in evaluation.warnings)
    neighbours = replace(OPTIONS, samples=12, metrics=("pr",))  # which need no covariance
    assert not any("dimensions" in line for line in evaluate(scored / "run", scored / "pictures", neighbours).warnings)


def stored(scored: Path, tmp_path: Path, network: str = "colours") -> Path:
    """The pictures' moments, written by the command."""
    out = tmp_path / f"{network}.npz"
    words = ["prepare", str(scored / "pictures"), str(out), "--reference", "--network", f"evaluation.scored:{network}"]
    result = CliRunner().invoke(application(), [*words, "--resolution", "32"])
    assert result.exit_code == 0, result.output
    assert (
        f"Next: frugan evaluate RUN --reference {out} --network evaluation.scored:{network} --metrics fid"
        in result.stdout
    )
    return out


def test_moments_made_ahead_give_the_score_of_the_pictures(
    scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setenv("FRUGAN_BASE", str(tmp_path / "base"))
    options = replace(OPTIONS, metrics=("fid", "is"))
    whole = evaluate(scored / "run", scored / "pictures", options, say=quiet)
    file = stored(scored, tmp_path)
    evaluation = evaluate(scored / "run", options=replace(OPTIONS, reference=file), say=said.append)
    assert evaluation.scores == pytest.approx(whole.scores, rel=1e-9)
    assert any(line.startswith("no kid, pr: pictures are compared one by one") for line in said)
    assert any(line.endswith("60 pictures of 32 pixels") for line in said)
    provenance = evaluation.provenance
    assert (provenance.data, provenance.data_digest, provenance.real, provenance.rows) == ("none", "none", 0, 0)
    assert (provenance.reference, len(provenance.reference_digest)) == (str(file), 64)
    assert provenance.compared_with == f"no real pictures, FID to {file} {provenance.reference_digest[:8]}"
    assert Provenance.from_json(provenance.as_json()) == provenance
    older = {k: v for k, v in whole.provenance.as_json().items() if not k.startswith("reference")}
    assert Provenance.from_json(older) == whole.provenance


def test_with_pictures_as_well_the_file_is_for_fid_alone(scored: Path, tmp_path: Path, said: list[str]) -> None:
    rows = colours(torch.randint(256, (50, 3, 32, 32), dtype=torch.uint8))[0].numpy()
    np.savez(tmp_path / "other.npz", mu=rows.mean(0), sigma=np.cov(rows, rowvar=False))
    plain = evaluate(scored / "run", scored / "pictures", OPTIONS, say=quiet)
    options = replace(OPTIONS, reference=tmp_path / "other.npz")
    evaluation = evaluate(scored / "run", scored / "pictures", options, say=said.append)
    assert any("does not say which network made it" in line for line in said)
    assert evaluation.scores["fid"] != plain.scores["fid"]
    assert {k: v for k, v in evaluation.scores.items() if k != "fid"} == {
        k: v for k, v in plain.scores.items() if k != "fid"
    }
    assert evaluation.provenance.real == 60
    assert "60 real pictures of" in evaluation.provenance.compared_with


def test_references_that_cannot_be_used(scored: Path, tmp_path: Path) -> None:
    file = stored(scored, tmp_path, "no_scores")
    narrow = tmp_path / "narrow.npz"
    np.savez(narrow, mu=np.zeros(3), sigma=np.eye(3))
    for options, message in (
        (replace(OPTIONS, reference=file), "made with another feature network"),
        (replace(OPTIONS, reference=scored / "pictures"), "a folder; expected an .npz file with mu and sigma"),
        (replace(OPTIONS, reference=narrow), r"mu is \[3\], the features here give \[12\]"),
        (replace(OPTIONS, reference=tmp_path / "absent.npz"), "no such file"),
        (OPTIONS, "no real pictures to compare with: add --data PICTURES"),
    ):
        with pytest.raises(BadInput, match=message):
            evaluate(scored / "run", options=options, say=quiet)
    good = replace(OPTIONS, reference=stored(scored, tmp_path), metrics=("fid", "pr", "intra-fid"))
    with pytest.raises(BadInput, match="--metrics pr, intra-fid: pictures are compared one by one"):
        evaluate(scored / "run", options=good, say=quiet)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("moments.npz",), "an .npz file is for the mean and covariance of features; add --reference"),
        (("moments.txt", "--reference", "--resolution", "32"), "moments go into an .npz file"),
        (("moments.npz", "--reference"), "--resolution is missing"),
        (("set", "--resolution", "32", "--network", "digits"), "--network digits: only goes with --reference"),
        (("there.npz", "--reference", "--resolution", "32"), "exists already"),
    ],
)
def test_preparations_of_moments_that_make_no_sense(
    scored: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "there.npz").touch()
    out, *others = words
    result = CliRunner().invoke(application(), ["prepare", str(scored / "pictures"), str(tmp_path / out), *others])
    assert isinstance(result.exception, BadInput)
    assert message in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["there.npz"]


def test_other_classes_are_told_of_in_a_sentence(scored: Path, tmp_path: Path, said: list[str]) -> None:
    options = replace(OPTIONS, metrics=("fid",))
    evaluation = evaluate(scored / "run", write_pictures(tmp_path, classes=("cat", "dog")), options, say=said.append)
    (line,) = evaluation.warnings[:1]
    assert line.startswith("the classes of the pictures (cat, dog) are not those that the run was trained on (dunkel ü")
    assert f"warning: {line}" in said
    by_class = evaluate(
        scored / "run", tmp_path, replace(OPTIONS, metrics=("intra-fid",), network=OPTIONS.network), say=quiet
    ).by_class
    assert by_class
    assert set(by_class) <= set(Weights.open(scored / "run").class_names)
    same = evaluate(scored / "run", scored / "pictures", options, say=quiet)
    assert not any("classes" in each for each in same.warnings)
