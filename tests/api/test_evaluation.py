"""Scores of generators: what is drawn, what it is compared with, and that training does not notice."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from api.pictures import RECIPE, write_pictures, write_recipe
from frugan.api.evaluate import evaluation
from frugan.api.evaluate.evaluation import evaluate, save_evaluations, truncation_curve
from frugan.api.evaluate.reference import reference_of
from frugan.api.evaluate.scorer import EvaluationOptions, Scorer
from frugan.api.evaluate.truncation_plot import plot_truncation_curve
from frugan.api.sample.drawing import animate, draw
from frugan.api.sample.generation import DrawRequest, generating
from frugan.api.sample.memorisation import check_memorisation
from frugan.api.sample.sampling import Opened, open_networks
from frugan.api.train import scores as training_scores
from frugan.api.train.options import TrainingOptions
from frugan.api.train.training import train
from frugan.cli.application import application
from frugan.contract.layers import GroupNormalised
from frugan.contract.samples import SheetRequest
from frugan.data.picture_set import PictureSet, picture_digest
from frugan.engine.events import read_events
from frugan.errors import BadInput
from frugan.metrics.feature_network import NamedFeatures
from frugan.metrics.provenance import Provenance, Statistics

CPU = TrainingOptions(device="cpu")
OPTIONS = EvaluationOptions(samples=70, network=f"{__name__}:colours", device="cpu")
EVALUATED = f"""
[evaluation]
every = "2 steps"
metrics = ["fid", "is"]
samples = 20
network = "{__name__}:colours"
keep_best = 1
"""


def colours(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """A feature network: means of quarters, and as class scores those of channels."""
    values = pictures.float() / 255
    quarters = torch.nn.functional.adaptive_avg_pool2d(values, 2).flatten(1)  # [N, 12]
    return quarters, values.mean((2, 3)) * 10


def no_scores(pictures: Tensor) -> Tensor:
    return colours(pictures)[0]


def silent(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, and its pictures."""
    made = tmp_path_factory.mktemp("scored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRUGAN_BASE", str(made / "base"))
        pictures = write_pictures(made / "pictures", each=30)
        train(write_recipe(made), pictures, made / "run", options=CPU, say=silent)
    return made


@pytest.fixture
def opened(folder: Path) -> Opened:
    return open_networks(folder / "run", "cpu", silent)


def drawn(opened: Opened, request: DrawRequest, first: int = 0, count: int = 40) -> tuple[Tensor, Tensor]:
    with generating(opened.recipe, opened.networks, opened.layout, request) as generator:
        parts = list(generator.draw(first, count))
    return torch.cat([p for p, _ in parts]), torch.cat([y for _, y in parts])


@pytest.mark.parametrize("statistics", ["running", "standing", "batch"])
def test_pictures_are_a_function_of_their_number(opened: Opened, statistics: Statistics) -> None:
    """However they are batched, wherever one begins: so that processes can share them out."""
    whole, labels = drawn(opened, DrawRequest(statistics=statistics, micro_batch=64), 0, 100)
    for micro_batch in (4, 12):
        request = DrawRequest(statistics=statistics, micro_batch=micro_batch)
        part, part_labels = drawn(opened, request, 50, 30)
        assert torch.equal(part_labels, labels[50:80])
        assert (part.int() - whole[50:80].int()).abs().max() <= 1  # rounding of another batch size
    assert len(whole.flatten(1).unique(dim=0)) == 100
    assert labels.unique().tolist() == [0, 1]


def test_statistics_differ_and_leave_no_trace(opened: Opened) -> None:
    layers = [m for n in opened.networks.values() for m in n.modules() if isinstance(m, GroupNormalised)]
    before = [{k: v.clone() for k, v in layer.named_buffers()} for layer in layers]
    found = [drawn(opened, DrawRequest(statistics=s))[0] for s in ("running", "standing", "batch")]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(found[one], found[other])
    for layer, kept in zip(layers, before, strict=True):
        assert not layer.training
        assert all(torch.equal(value, kept[name]) for name, value in layer.named_buffers())


def test_standing_statistics_are_means_over_batches(opened: Opened) -> None:
    """Of one batch they are that batch's own, and the pictures of that batch come out as in training."""
    request = DrawRequest(statistics="standing", standing_batches=1, standing_size=8)
    with generating(opened.recipe, opened.networks, opened.layout, request):
        one = {k: v.clone() for k, v in opened.networks["G"].named_buffers() if "stored" in k}
    with generating(opened.recipe, opened.networks, opened.layout, replace(request, standing_batches=4)):
        four = {k: v.clone() for k, v in opened.networks["G"].named_buffers() if "stored" in k}
    assert one
    assert any(not torch.allclose(one[k], four[k]) for k in one)
    less = replace(request, truncation=0.1, standing_batches=4)
    with generating(opened.recipe, opened.networks, opened.layout, less):
        other = dict(opened.networks["G"].named_buffers())
        assert any(not torch.allclose(four[k], other[k]) for k in four)  # gathered anew at this truncation


def test_scores_and_their_card(folder: Path) -> None:
    lines: list[str] = []
    options = replace(OPTIONS, metrics=("fid", "is", "kid", "pr", "intra-fid"))
    found = evaluate(folder / "run", folder / "pictures", options, say=lines.append)
    names = ["fid", "is_mean", "is_std", "kid_mean", "kid_std", "precision", "recall", "f_score", "intra_fid"]
    assert list(found.scores) == names
    assert all(np.isfinite(value) for value in found.scores.values())
    assert set(found.by_class) == {"hell", "dunkel ü"}
    of = found.provenance
    assert (of.samples, of.real, of.step, of.ema, of.precision) == (
        70,
        60,
        4,
        True,
        "fp32",
    )
    assert any("subsets of 60 instead of 1000" in line for line in lines)


def test_the_usual_metrics_are_those_that_the_network_can_give(folder: Path) -> None:
    lines: list[str] = []
    options = replace(OPTIONS, network=f"{__name__}:no_scores")
    found = evaluate(folder / "run", folder / "pictures", options, say=lines.append)
    assert {"fid", "kid_mean", "precision"} <= found.scores.keys()
    assert "is_mean" not in found.scores
    (line,) = [line for line in lines if line.startswith("no inception score: feature network")]
    assert "gives no class probabilities" in line


def low(scores: Mapping[str, float], provenance: Provenance) -> str | None:
    """In place of `low_recall`: whatever the scores are."""
    return f"words at {provenance.truncation:g}"


def test_what_recall_says_is_told_at_the_largest_truncation_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "low_recall", low)
    lines: list[str] = []
    options = replace(OPTIONS, metrics=("pr",))
    found = truncation_curve(folder / "run", folder / "pictures", (0.2, 1.0, 0.6), options, say=lines.append)
    assert [each.warnings[-1] for each in found] == ["words at 0.2", "words at 1", "words at 0.6"]
    assert [line for line in lines if "words" in line] == ["warning: words at 1"]


def test_a_set_against_itself(folder: Path, opened: Opened) -> None:
    """The same pictures as real and as generated ones: no distance, whole precision."""
    pictures, labels = drawn(opened, DrawRequest(), count=70)
    array, numbers = pictures.numpy(), labels.numpy()
    own = PictureSet(array, numbers, ("a", "b"), True, picture_digest(array, numbers))
    found = evaluate(folder / "run", own, OPTIONS, say=silent)
    assert found.scores["fid"] == pytest.approx(0, abs=1e-9)
    assert found.scores["precision"] == found.scores["recall"] == 1


def test_a_curve_over_truncations(folder: Path, tmp_path: Path) -> None:
    options = replace(OPTIONS, metrics=("fid", "is"))
    found = truncation_curve(folder / "run", folder / "pictures", (0.2, 0.6, 1.0), options, say=silent)
    assert [each.provenance.truncation for each in found] == [0.2, 0.6, 1.0]
    assert len({each.scores["fid"] for each in found}) == 3
    plot_truncation_curve(found, tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as picture:
        assert min(picture.size) > 300
    save_evaluations(found, tmp_path / "found.jsonl")
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


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"metrics": ("fid", "beauty")}, "--metrics beauty"),
        ({"metrics": ()}, "--metrics: expected some"),
        ({"samples": 5}, "--samples 5"),
        ({"network": "nothing"}, "--network nothing"),
        ({"network": "inception"}, "Inception network are not there"),
        ({"draw": DrawRequest(classes=(0, 7))}, "--classes 7: expected 0 to 1"),
        ({"draw": DrawRequest(truncation=0.0)}, "--truncation 0"),
        ({"draw": DrawRequest(statistics="standing", standing_size=6)}, "--standing-size 6: expected a multiple"),
        ({"network": f"{__name__}:no_scores", "metrics": ("is",)}, "gives no class probabilities"),
    ],
)
def test_requests_that_make_no_sense(folder: Path, changed: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        evaluate(folder / "run", folder / "pictures", replace(OPTIONS, **changed), say=silent)  # type: ignore[arg-type]


def test_a_diverged_generator_has_no_score(folder: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> dict[str, torch.nn.Module]:
        for parameter in opened.networks["G"].parameters():
            torch.nn.init.constant_(parameter, torch.nan)
        return opened.networks

    monkeypatch.setattr(evaluation, "networks_from", broken)
    with pytest.raises(BadInput, match="70 of 70 pictures hold values that are not finite"):
        evaluate(folder / "run", folder / "pictures", OPTIONS, say=silent)


def other_colours(pictures: Tensor) -> Tensor:
    return 1 - colours(pictures)[0]


def test_networks_of_one_module_are_told_apart(folder: Path) -> None:
    """Moments of real pictures that one made are not another's."""
    options = replace(OPTIONS, metrics=("fid",))
    one = evaluate(folder / "run", folder / "pictures", options, say=silent)
    other = replace(options, network=f"{__name__}:other_colours")
    two = evaluate(folder / "run", folder / "pictures", other, say=silent)
    assert one.provenance.network_digest != two.provenance.network_digest
    assert two.scores["fid"] == pytest.approx(one.scores["fid"], rel=1e-5)  # mirrored features are as far apart


def test_the_card_tells_averages_and_classes(folder: Path) -> None:
    checkpoint = folder / "run" / "checkpoints" / "step-000000004"
    options = replace(OPTIONS, metrics=("fid",), draw=DrawRequest(classes=(1,)))
    trained = evaluate(checkpoint / "networks.safetensors", folder / "pictures", options, say=silent).provenance
    assert (trained.ema, trained.classes) == (False, "1")
    standing = replace(OPTIONS, metrics=("fid",), draw=DrawRequest(statistics="standing", standing_size=8))
    found = evaluate(folder / "run", folder / "pictures", standing, say=silent).provenance
    assert (found.ema, found.statistics) == (True, "standing, 16 batches of 8")
    assert trained.data_digest == found.data_digest


def test_too_few_pictures_are_warned_of(folder: Path) -> None:
    found = evaluate(folder / "run", folder / "pictures", replace(OPTIONS, samples=12), say=silent)
    assert any("12 generated pictures for 12 feature dimensions" in line for line in found.warnings)


def test_scores_while_training_take_the_standing_statistics_of_the_recipe(tmp_path: Path) -> None:
    text = RECIPE + EVALUATED + 'statistics = "standing"\nstanding_batches = 3\nstanding_size = 8\n'
    recipe = write_recipe(tmp_path, text.replace('metrics = ["fid", "is"]', 'metrics = ["fid"]'))
    train(recipe, write_pictures(tmp_path / "pictures"), tmp_path / "run", options=CPU, say=silent)
    cards = [e["provenance"] for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "metrics"]
    assert cards
    assert {provenance["statistics"] for provenance in cards} == {"standing, 3 batches of 8"}


def test_sample_takes_the_standing_statistics_asked_for(folder: Path, tmp_path: Path) -> None:
    runner = CliRunner()

    def drawn(*words: str) -> "np.ndarray":
        out = tmp_path / "-".join(("out", *words))
        common = ["sample", str(folder / "run"), "--out", str(out), "--npz", "4", "--device", "cpu"]
        result = runner.invoke(application(), [*common, "--statistics", "standing", *words])
        assert result.exit_code == 0, result.output
        return np.asarray(np.load(out / "samples.npz")["x"])

    plain = drawn()
    assert (plain != drawn("--standing-batches", "2", "--standing-size", "16")).any()


def test_training_does_not_notice_that_it_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, averages, optimizers: bit for bit; and the best checkpoint is kept besides the newest."""
    monkeypatch.setattr(training_scores, "low_recall", low)
    pictures = write_pictures(tmp_path / "pictures")
    for name, text in (("plain", RECIPE), ("scored", RECIPE + EVALUATED)):
        train(write_recipe(tmp_path, text, f"{name}.toml"), pictures, tmp_path / name, options=CPU, say=silent)
    newest = "checkpoints/step-000000004"
    for file in ("networks", "ema", "optimizers"):
        plain, scored = (load_file(tmp_path / n / newest / f"{file}.safetensors") for n in ("plain", "scored"))
        assert plain.keys() == scored.keys()
        assert all(torch.equal(plain[key], scored[key]) for key in plain)
    events = list(read_events(tmp_path / "scored" / "events.jsonl"))
    assert [e["line"] for e in events if e["event"] == "warning"] == ["words at 1"]  # twice seen, once said
    scores = {e["step"]: e["scores"]["fid"] for e in events if e["event"] == "metrics"}
    assert list(scores) == [2, 4]
    kept = [p.name for p in (tmp_path / "scored" / "best").iterdir() if p.is_dir()]
    assert kept == [f"step-{min(scores, key=scores.__getitem__):09d}"]
    assert next(e["provenance"]["split"] for e in events if e["event"] == "metrics") == "trained on"


@pytest.mark.parametrize(
    "kind", [BadInput, *(pytest.param(e, marks=pytest.mark.long) for e in (RuntimeError, OSError, ValueError))]
)
def test_a_score_that_fails_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise kind("it does not work")

    monkeypatch.setattr(Scorer, "score", failing)
    recipe = write_recipe(tmp_path, RECIPE + EVALUATED)
    result = train(recipe, write_pictures(tmp_path / "p"), tmp_path / "run", options=CPU, say=silent)
    assert result.finished
    warnings = [e["line"] for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "warning"]
    assert len(warnings) == 2
    assert all("no scores" in line and "it does not work" in line for line in warnings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (EVALUATED.replace('"fid", "is"', '"is"'), "best_by = fid: needs fid among metrics"),
        (EVALUATED.replace(f"{__name__}:colours", "nothing"), "--network nothing"),
        (EVALUATED.replace("samples = 20", "samples = 2"), "greater than or equal to 10"),
        (EVALUATED.replace(":colours", ":no_scores"), "gives no class probabilities"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_the_first_step(tmp_path: Path, text: str, message: str) -> None:
    recipe = write_recipe(tmp_path, RECIPE + text)
    with pytest.raises(BadInput, match=message):
        train(recipe, write_pictures(tmp_path / "p"), tmp_path / "run", options=CPU, say=silent)


@pytest.mark.long
def test_best_checkpoints_of_a_given_up_training_go(tmp_path: Path) -> None:
    recipe, pictures = write_recipe(tmp_path, RECIPE + EVALUATED), write_pictures(tmp_path / "pictures")
    run = tmp_path / "run"
    train(recipe, pictures, run, options=CPU, say=silent)
    shutil.rmtree(run / "checkpoints" / "step-000000004")
    (kept,) = [p for p in (run / "best").iterdir() if p.is_dir()]
    kept.replace(run / "best" / "step-000000004")
    lines: list[str] = []
    train(recipe, pictures, run, options=CPU, say=lines.append)
    assert any("deleted" in line and "step-000000004" in line for line in lines)
    events = [e for e in read_events(run / "events.jsonl") if e["event"] == "metrics"]
    assert [e["step"] for e in events] == [2, 4, 4]


def test_samples_for_other_programs(folder: Path, opened: Opened, tmp_path: Path) -> None:
    paths = draw(folder / "run", tmp_path, DrawRequest(), npz=70, pngs=9, sheet=(2, 3), device="cpu", say=silent)
    assert [path.name for path in paths] == ["samples.npz", "pngs", "random.png"]
    expected, labels = drawn(opened, DrawRequest(), count=70)
    with np.load(paths[0]) as archive:
        np.testing.assert_array_equal(archive["x"], expected.numpy())
        np.testing.assert_array_equal(archive["y"], labels.numpy())
    files = sorted(paths[1].rglob("*.png"), key=lambda p: p.name)
    assert [int(p.parent.name) for p in files] == labels[:9].tolist()
    with Image.open(files[0]) as picture:
        np.testing.assert_array_equal(np.asarray(picture), expected[0].permute(1, 2, 0).numpy())
        assert "synthetic" in picture.info["Description"]
    with pytest.raises(BadInput, match="holds something already"):
        draw(folder / "run", tmp_path, DrawRequest(), pngs=1, device="cpu", say=silent)


@pytest.mark.parametrize("kind", ["gif", "mp4"])
def test_a_film_goes_there_and_back(folder: Path, tmp_path: Path, kind: str) -> None:
    request = SheetRequest(interpolate="latent", columns=6, rows=3, spherical=True)
    path = animate(folder / "run", tmp_path / f"film.{kind}", request, device="cpu", say=silent)
    if kind == "gif":
        with Image.open(path) as film:
            assert film.n_frames == 10  # type: ignore[attr-defined]
            assert film.size[0] >= 256
    else:
        assert cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FRAME_COUNT) == 10
    with pytest.raises(BadInput, match=r"ends in \.gif or \.mp4"):
        animate(folder / "run", tmp_path / "film.avi", request, device="cpu", say=silent)


def test_copies_of_training_pictures_are_found(folder: Path, opened: Opened, tmp_path: Path) -> None:
    """Half of the set are the samples themselves, one of them mirrored."""
    pictures, _ = drawn(opened, DrawRequest(), count=6)
    noise = np.random.default_rng(0).integers(0, 255, (40, 3, 32, 32)).astype(np.uint8)
    array = np.concatenate([noise, pictures[:3].numpy(), pictures[3:4].flip(-1).numpy()])
    labels = np.arange(len(array), dtype=np.int64) % 2
    own = PictureSet(array, labels, ("a", "b"), True, picture_digest(array, labels))
    found = check_memorisation(folder / "run", own, tmp_path, samples=6, nearest=2, device="cpu", say=silent)
    assert found.ratios[:4] == pytest.approx([0, 0, 0, 0], abs=0.01)
    assert set(found.suspicious) >= {1, 2, 3, 4}
    with Image.open(found.sheet) as sheet:
        assert sheet.width < sheet.height


def stored(folder: Path, tmp_path: Path, network: str = "colours") -> Path:
    """The pictures' moments, written by the command."""
    out = tmp_path / f"{network}.npz"
    words = ["prepare", str(folder / "pictures"), str(out), "--reference", "--network", f"{__name__}:{network}"]
    result = CliRunner().invoke(application(), [*words, "--resolution", "32"])
    assert result.exit_code == 0, result.output
    assert f"Next: frugan evaluate RUN --reference {out} --network {__name__}:{network} --metrics fid" in result.stdout
    return out


def test_moments_made_ahead_give_the_score_of_the_pictures(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRUGAN_BASE", str(tmp_path / "base"))
    options = replace(OPTIONS, metrics=("fid", "is"))
    whole = evaluate(folder / "run", folder / "pictures", options, say=silent)
    file = stored(folder, tmp_path)
    lines: list[str] = []
    found = evaluate(folder / "run", options=replace(OPTIONS, reference=file), say=lines.append)
    assert found.scores == pytest.approx(whole.scores, rel=1e-9)
    assert any(line.startswith("no kid, pr: pictures are compared one by one") for line in lines)
    assert any(line.endswith("60 pictures of 32 pixels") for line in lines)
    provenance = found.provenance
    assert (provenance.data, provenance.data_digest, provenance.real, provenance.rows) == ("none", "none", 0, 0)
    assert (provenance.reference, len(provenance.reference_digest)) == (str(file), 64)
    assert provenance.compared_with == f"no real pictures, FID to {file} {provenance.reference_digest[:8]}"
    assert Provenance.from_json(provenance.as_json()) == provenance
    older = {k: v for k, v in whole.provenance.as_json().items() if not k.startswith("reference")}
    assert Provenance.from_json(older) == whole.provenance


def test_with_pictures_as_well_the_file_is_for_fid_alone(folder: Path, tmp_path: Path) -> None:
    rows = colours(torch.randint(256, (50, 3, 32, 32), dtype=torch.uint8))[0].numpy()
    np.savez(tmp_path / "other.npz", mu=rows.mean(0), sigma=np.cov(rows, rowvar=False))
    plain = evaluate(folder / "run", folder / "pictures", OPTIONS, say=silent)
    lines: list[str] = []
    options = replace(OPTIONS, reference=tmp_path / "other.npz")
    found = evaluate(folder / "run", folder / "pictures", options, say=lines.append)
    assert any("does not say which network made it" in line for line in lines)
    assert found.scores["fid"] != plain.scores["fid"]
    assert {k: v for k, v in found.scores.items() if k != "fid"} == {
        k: v for k, v in plain.scores.items() if k != "fid"
    }
    assert found.provenance.real == 60
    assert "60 real pictures of" in found.provenance.compared_with


def test_references_that_cannot_be_used(folder: Path, tmp_path: Path) -> None:
    file = stored(folder, tmp_path, "no_scores")
    narrow = tmp_path / "narrow.npz"
    np.savez(narrow, mu=np.zeros(3), sigma=np.eye(3))
    for options, message in (
        (replace(OPTIONS, reference=file), "made with another feature network"),
        (replace(OPTIONS, reference=folder / "pictures"), "a folder; expected an .npz file with mu and sigma"),
        (replace(OPTIONS, reference=narrow), r"mu is \[3\], the features here give \[12\]"),
        (replace(OPTIONS, reference=tmp_path / "absent.npz"), "no such file"),
        (OPTIONS, "no real pictures to compare with: add --data PICTURES"),
    ):
        with pytest.raises(BadInput, match=message):
            evaluate(folder / "run", options=options, say=silent)
    good = replace(OPTIONS, reference=stored(folder, tmp_path), metrics=("fid", "pr", "intra-fid"))
    with pytest.raises(BadInput, match="--metrics pr, intra-fid: pictures are compared one by one"):
        evaluate(folder / "run", options=good, say=silent)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("moments.npz",), "an .npz file holds the moments of pictures; say --reference"),
        (("moments.txt", "--reference", "--resolution", "32"), "moments go into an .npz file"),
        (("moments.npz", "--reference"), "--resolution is missing"),
        (("set", "--resolution", "32", "--network", "digits"), "--network digits: goes with --reference only"),
        (("there.npz", "--reference", "--resolution", "32"), "exists already"),
    ],
)
def test_preparations_of_moments_that_make_no_sense(
    folder: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "there.npz").touch()
    out, *others = words
    result = CliRunner().invoke(application(), ["prepare", str(folder / "pictures"), str(tmp_path / out), *others])
    assert isinstance(result.exception, BadInput)
    assert message in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["there.npz"]


def test_other_classes_are_told_of_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    options = replace(OPTIONS, metrics=("fid",))
    lines: list[str] = []
    found = evaluate(folder / "run", write_pictures(tmp_path, classes=("cat", "dog")), options, say=lines.append)
    (line,) = found.warnings[:1]
    assert line.startswith("the classes of the pictures (cat, dog) are not those that the run was trained on (dunkel ü")
    assert f"warning: {line}" in lines
    same = evaluate(folder / "run", folder / "pictures", options, say=silent)
    assert not any("classes" in each for each in same.warnings)
