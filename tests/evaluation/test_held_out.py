"""Test pictures that were held out of training are what its scores are measured against."""

from dataclasses import replace
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pytest
import torch
from PIL import Image, ImageFilter
from typer.testing import CliRunner

from evaluation.scored import CPU, EVALUATED, OPTIONS, colours
from frugan.cli.application import application
from frugan.contract.data import RunData
from frugan.data.formats.picture_set import PictureSet
from frugan.data.parts import Drawing, held_out_by_place
from frugan.engine.run.events import read_events
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.evaluation.evaluation import evaluate
from frugan.evaluation.real_scores import evaluate_real
from frugan.metrics.scores import Moments, frechet_distance
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe
from frugan.sampling.sampling import check_memorisation
from frugan.setup.networks import Weights
from frugan.setup.run_data_sources import checkpoint_data, last_run_data, open_real
from frugan.training.starting_weights import recipe_to_start_from
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe

FID = replace(OPTIONS, metrics=("fid",))


@pytest.fixture(scope="module")
def with_test_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that held out 12 of its 60 pictures, and was trained on 20 of the others."""
    made = tmp_path_factory.mktemp("held-out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRUGAN_BASE", str(made / "base"))
        recipe = write_recipe(made, (RECIPE + EVALUATED).replace("4 steps", "2 steps").replace('"fid", "is"', '"fid"'))
        fields = ["data.holdout=12", "data.subset=20"]
        pictures = write_pictures(made / "pictures", each=30)
        train(recipe, pictures, made / "run", overrides=fields, options=CPU, say=quiet)
    return made


def test_while_training(with_test_pictures: Path) -> None:
    events = read_events(with_test_pictures / "run" / "events.jsonl")
    (of,) = [event["provenance"] for event in events if event["event"] == "metrics"]
    assert (of["real"], of["split"], of["data"]) == (12, "held out", "the run's pictures")


def test_of_the_run_afterwards(with_test_pictures: Path, said: list[str]) -> None:
    run, pictures = with_test_pictures / "run", with_test_pictures / "pictures"
    of = evaluate(run, pictures, FID, say=said.append).provenance
    assert (of.real, of.split) == (12, "held out")
    assert any(line.startswith("data: 12 pictures held out, ") for line in said)
    trained = next(e["provenance"] for e in read_events(run / "events.jsonl") if e["event"] == "metrics")
    assert of.data_digest == trained["data_digest"]


def test_a_number_alone_names_no_pictures(with_test_pictures: Path) -> None:
    with pytest.raises(BadInput, match=r"add --data PICTURES \(those of the training, of which data.holdout=12"):
        evaluate(with_test_pictures / "run", options=FID, say=quiet)


def test_weights_to_start_from_bring_no_part_of_other_pictures(with_test_pictures: Path) -> None:
    run = with_test_pictures / "run"
    assert load_recipe(str(run)).data.subset == 20
    start = recipe_to_start_from(run)
    assert start is not None
    assert (start.data.subset, start.data.holdout) == (None, None)


def test_pictures_that_are_added_leave_test_pictures_unseen(
    with_test_pictures: Path, tmp_path: Path, said: list[str]
) -> None:
    run, pictures = tmp_path / "run", tmp_path / "pictures"
    copytree(with_test_pictures / "run", run)
    copytree(with_test_pictures / "pictures", pictures)
    before = evaluate(run, pictures, FID, say=quiet).provenance
    copy(pictures / "hell" / "0.png", pictures / "hell" / "a.png")
    train(str(run), pictures, overrides=["training.duration=3 steps"], options=CPU, say=said.append)
    assert not any("flatter" in line for line in said)
    found = evaluate(run, pictures, FID, say=quiet)
    assert found.provenance.split == "held out"
    assert not any("flatter" in line for line in found.warnings)
    after = found.provenance
    same = before.data_digest == after.data_digest
    assert after.real in (12, 13)
    assert same == (after.real == 12)
    assert same == ("the test pictures of 'images' have changed: scores before and after do not compare" not in said)


def test_a_run_from_before_keeps_its_test_pictures(
    with_test_pictures: Path, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn by places in the set, they are others once pictures were added, which is said from then on."""
    recipe = write_recipe(tmp_path, (RECIPE + EVALUATED).replace("4 steps", "1 steps").replace('"fid", "is"', '"fid"'))
    run, pictures = tmp_path / "run", tmp_path / "pictures"
    copytree(with_test_pictures / "pictures", pictures)
    with monkeypatch.context() as patch:
        patch.setattr("frugan.setup.run_data_sources.held_out", by_place)
        patch.setattr("frugan.setup.run_data_sources.HOLDOUT", "0/holdout/images")
        train(recipe, pictures, run, overrides=["data.holdout=0.2"], options=CPU, say=quiet)
    train(str(run), pictures, overrides=["training.duration=2 steps"], options=CPU, say=said.append)
    assert any(line.startswith("data: 12 pictures held out, 6 of each of 2 classes") for line in said)
    assert not any("are not those" in line or "have changed" in line for line in said)
    found = evaluate(run, pictures, FID, say=quiet)
    assert (found.provenance.real, found.provenance.split) == (12, "held out")
    assert not any("flatter" in line for line in found.warnings)
    copy(pictures / "hell" / "0.png", pictures / "hell" / "a.png")
    train(str(run), pictures, overrides=["training.duration=3 steps"], options=CPU, say=said.append)
    assert any("warning: the run's pictures have changed since it began" in line for line in said)
    found = evaluate(run, pictures, FID, say=quiet)
    assert found.provenance.split == "held out"
    assert any("trained on some of these before, so scores against them flatter" in line for line in found.warnings)


def test_a_run_whose_seed_drew_its_test_pictures_keeps_them(
    with_test_pictures: Path, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions drew them, and noted no more than where they end."""
    recipe, pictures = write_recipe(tmp_path, RECIPE.replace("4 steps", "1 steps")), with_test_pictures / "pictures"
    kept = RunData.as_json

    def without(data: RunData) -> dict[str, Any]:
        return {key: value for key, value in kept(data).items() if key != "held_out_by_seed"}

    drawn = {}
    for name in ("earlier", "now"):
        with monkeypatch.context() as patch:
            if name == "earlier":
                patch.setattr("frugan.setup.run_data_sources.HOLDOUT", "0/holdout/images")
                patch.setattr(RunData, "as_json", without)
            train(recipe, pictures, tmp_path / name, overrides=["data.holdout=0.2"], options=CPU, say=quiet)
        drawn[name] = last_run_data(RunFolder(tmp_path / name))["images"].held_out
    assert drawn["earlier"] != drawn["now"]
    for steps in (2, 3):
        longer = [f"training.duration={steps} steps"]
        train(str(tmp_path / "earlier"), pictures, overrides=longer, options=CPU, say=said.append)
        assert not any("have changed" in line for line in said)
        assert last_run_data(RunFolder(tmp_path / "earlier"))["images"].held_out == drawn["earlier"]
    found = evaluate(tmp_path / "earlier", pictures, FID, say=quiet).provenance
    assert (found.data_digest, found.split) == (drawn["earlier"], "held out")


def by_place(pictures: PictureSet, part: float, drawing: Drawing, where: str, *, classes: bool) -> PictureSet:
    return held_out_by_place(pictures, part, drawing.stream, where, classes=classes)


def test_other_pictures_are_taken_whole(with_test_pictures: Path, tmp_path: Path, said: list[str]) -> None:
    others = write_pictures(tmp_path / "others", each=15)
    of = evaluate(with_test_pictures / "run", others, FID, say=said.append).provenance
    assert (of.real, of.split) == (30, "all")
    assert any("or they are others: all 30 are taken" in line for line in said)


def test_a_file_of_weights_knows_no_pictures(with_test_pictures: Path, said: list[str]) -> None:
    pictures = with_test_pictures / "pictures"
    weights = Weights.open(with_test_pictures / "run").path
    of = evaluate(weights, pictures, FID, say=said.append).provenance
    assert (of.real, of.split) == (60, "all")
    assert any("cannot be told" in line for line in said)


def test_the_floor_is_what_was_trained_on_against_what_was_held_out(with_test_pictures: Path, said: list[str]) -> None:
    run, pictures = with_test_pictures / "run", with_test_pictures / "pictures"
    floor = evaluate_real(pictures, FID, of=run, say=said.append)
    of, generated = floor.provenance, evaluate(run, pictures, FID, say=quiet).provenance
    assert (of.samples, of.real, of.split) == (20, 12, "held out")
    assert (of.data_digest, of.is_of_real) == (generated.data_digest, True)
    compared = (
        "compared: 20 pictures that the run was trained on, in place of generated ones, with the 12 that it held out"
    )
    assert said.count(compared) == 1
    real = open_real(load_recipe(str(run)), pictures, quiet, None, checkpoint_data(Weights.open(run).checkpoint)).of_run
    assert real is not None
    assert real.held_out is not None
    trained, unseen = (colours(torch.from_numpy(part[:]))[0] for part in (real, real.held_out))
    expected = frechet_distance(Moments.of(trained), Moments.of(unseen))
    assert floor.scores["fid"] == pytest.approx(expected, rel=1e-6)
    few = evaluate_real(pictures, replace(FID, samples=11), of=run, say=quiet).provenance
    assert (few.samples, few.real) == (11, 12)
    shown = CliRunner().invoke(
        application(),
        [
            "evaluate",
            str(run),
            "--real",
            str(pictures),
            "--metrics",
            "fid",
            "--network",
            FID.network,
            "--device",
            "cpu",
        ],
    )
    assert f"20 pictures of the training against 12 that it held out, of {pictures}; " in shown.stdout.replace(
        "\n", " "
    )


def test_the_floor_of_other_pictures_is_one_half_against_the_other(with_test_pictures: Path, tmp_path: Path) -> None:
    of = evaluate_real(write_pictures(tmp_path / "others", each=15), FID, of=with_test_pictures / "run", say=quiet)
    assert (of.provenance.samples, of.provenance.real, of.provenance.split) == (15, 15, "all")


def test_a_judge_sees_what_was_trained_on_beside_what_was_held_out(tmp_path: Path) -> None:
    """Pictures of another kind were trained on than held out, as a judge of them must see."""
    pictures, test = write_pictures(tmp_path / "pictures", each=40), write_pictures(tmp_path / "test", each=40)
    for path in test.rglob("*.png"):
        with Image.open(path) as picture:
            picture.filter(ImageFilter.GaussianBlur(3)).save(path)
    recipe = write_recipe(tmp_path, RECIPE.replace("4 steps", "1 steps"))
    train(recipe, pictures, tmp_path / "run", overrides=[f"data.holdout={test}"], options=CPU, say=quiet)
    judged = evaluate_real(pictures, replace(FID, metrics=("two-sample",)), of=tmp_path / "run", say=quiet)
    assert judged.scores["two_sample"] > 0.9
    assert judged.provenance.judge.startswith("40 pictures on either side")
    alone = evaluate_real(test, replace(FID, metrics=("two-sample",)), of=tmp_path / "run", say=quiet)
    assert alone.scores["two_sample"] == judged.scores["two_sample_real"] < 0.8


def test_too_few_were_held_out_for_a_floor(tmp_path: Path) -> None:
    recipe, pictures = (
        write_recipe(tmp_path, RECIPE.replace("4 steps", "1 steps")),
        write_pictures(tmp_path / "pictures"),
    )
    train(recipe, pictures, tmp_path / "run", overrides=["data.holdout=2"], options=CPU, say=quiet)
    with pytest.raises(BadInput, match="10 pictures trained on and 2 held out; expected at least 10 of either"):
        evaluate_real(pictures, FID, of=tmp_path / "run", say=quiet)


def test_copies_are_judged_by_pictures_that_were_never_seen(
    with_test_pictures: Path, tmp_path: Path, said: list[str]
) -> None:
    run, pictures = with_test_pictures / "run", with_test_pictures / "pictures"
    check_memorisation(run, pictures, tmp_path, samples=2, nearest=30, device="cpu", say=said.append)
    assert any("there are 20 training pictures" in line for line in said)
    assert any("as pictures are that were held out" in line for line in said)


def test_a_folder_of_test_pictures(with_test_pictures: Path, tmp_path: Path, said: list[str]) -> None:
    recipe = write_recipe(tmp_path, RECIPE.replace("4 steps", "1 steps"))
    test = write_pictures(tmp_path / "test", each=8)
    pictures, run = with_test_pictures / "pictures", tmp_path / "run"
    train(recipe, pictures, run, overrides=[f"data.holdout={test}"], options=CPU, say=quiet)
    of = evaluate(run, pictures, FID, say=quiet).provenance
    assert (of.real, of.split) == (16, "held out")
    of = evaluate(run, test, FID, say=quiet).provenance
    assert (of.real, of.split) == (16, "held out")
    of = evaluate(run, options=FID, say=said.append).provenance
    assert (of.real, of.split, of.data) == (16, "held out", str(test))
    assert f"data: {test}, the test pictures that the recipe names (data.holdout)" in said

    moved = test.rename(tmp_path / "moved")
    with pytest.raises(BadInput, match=r"data.holdout=.*test: .* are not there; say where with --data FOLDER"):
        evaluate(run, options=FID, say=quiet)
    with pytest.raises(BadInput, match=r"data.holdout=.*test: does not exist .* \(--holdout FOLDER\)"):
        train(str(run), pictures, overrides=["training.duration=2 steps"], options=CPU, say=quiet)
    longer = [f"data.holdout={moved}", "training.duration=2 steps"]
    assert train(str(run), pictures, overrides=longer, options=CPU, say=said.append).step == 2
    changed = "the test pictures of 'images' have changed: scores before and after do not compare"
    assert changed not in said
    (moved / "hell" / "0.png").unlink()
    train(str(run), pictures, overrides=["training.duration=3 steps"], options=CPU, say=said.append)
    assert changed in said
    with pytest.raises(BadInput, match=r"data.holdout: .*moved in the run, 0.1 now"):
        train(str(run), pictures, overrides=["data.holdout=0.1"], options=CPU, say=quiet)
