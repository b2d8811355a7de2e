"""Classes are generated as often as the real pictures have them, whatever the score."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from evaluation.scored import CPU, OPTIONS, colours, drawn
from frugan.cli.application import application
from frugan.data.formats.picture_set import PictureSet, picture_digest
from frugan.evaluation.class_shares import MOST_DRAWS, have_other_shares, with_shares
from frugan.evaluation.evaluation import evaluate
from frugan.evaluation.real_scores import evaluate_real
from frugan.metrics.provenance import ALIKE, AS_REAL
from frugan.metrics.scores import Moments, frechet_distance
from frugan.progress import quiet
from frugan.sampling.generators import Opened
from frugan.sampling.requests import DrawRequest
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe

FID = replace(OPTIONS, metrics=("fid",))


def uneven(*counts: int, labelled: bool = True) -> PictureSet:
    """Noise with so many pictures of each class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    array = np.random.default_rng(0).integers(0, 255, (len(labels), 3, 32, 32)).astype(np.uint8)
    names = ("dunkel ü", "hell") if len(counts) == 2 else tuple(map(str, range(len(counts))))
    return PictureSet(array, labels, names, labelled, picture_digest(array, labels))


def test_a_long_tail_is_drawn_as_one() -> None:
    drawn_from = with_shares(DrawRequest(), uneven(180, 70, 30, 14, 6), 5).classes
    assert drawn_from is not None
    assert np.bincount(drawn_from).tolist() == [90, 35, 15, 7, 3]


@pytest.mark.parametrize(
    ("draw", "pictures", "classes"),
    [
        (DrawRequest(), uneven(20, 20), 2),
        (DrawRequest(), uneven(40), 1),
        (DrawRequest(), uneven(30, 10), 3),
        (DrawRequest(), uneven(30, 10, labelled=False), 2),
        (DrawRequest(), None, 2),
        (DrawRequest(classes=(0, 1)), uneven(30, 10), 2),
    ],
)
def test_a_request_stays_where_there_are_no_shares(
    draw: DrawRequest, pictures: PictureSet | None, classes: int
) -> None:
    assert with_shares(draw, pictures, classes) == draw


def test_shares_of_many_pictures_make_no_long_list() -> None:
    pictures = uneven(3, 1)
    many = replace(pictures, labels=np.repeat([0, 1], [1_000_003, 333_331]))
    drawn_from = with_shares(DrawRequest(), many, 2).classes
    assert drawn_from is not None
    assert len(drawn_from) <= MOST_DRAWS + 2
    assert sum(drawn_from) / len(drawn_from) == pytest.approx(0.25, abs=1e-4)


def test_fid_is_of_classes_in_the_shares_of_the_real_pictures(scored: Path, opened: Opened) -> None:
    pictures = uneven(54, 6)
    found = evaluate(scored / "run", pictures, FID, say=quiet)
    request = DrawRequest(classes=(0,) * 9 + (1,), micro_batch=8)
    samples, labels = drawn(opened, request, count=70)
    assert 0 < labels.sum() < 20
    expected = frechet_distance(*(Moments.of(colours(part)[0]) for part in (samples, torch.from_numpy(pictures[:]))))
    assert found.scores["fid"] == pytest.approx(expected, rel=1e-5)
    assert found.provenance.classes == AS_REAL


def test_all_by_name_are_drawn_alike_as_they_were_before(scored: Path) -> None:
    pictures = uneven(54, 6)
    alike = evaluate(scored / "run", pictures, replace(FID, draw=DrawRequest(classes=(0, 1))), say=quiet)
    assert alike.provenance.classes == ALIKE
    assert alike.scores != evaluate(scored / "run", pictures, FID, say=quiet).scores
    (doubt,) = (line for line in alike.warnings if line.startswith("classes: "))
    assert doubt.startswith("classes: all are drawn alike, and the real pictures have from 6 to 54 of each")
    even = uneven(30, 30)
    named = evaluate(scored / "run", even, replace(FID, draw=DrawRequest(classes=(0, 1))), say=quiet)
    assert named == evaluate(scored / "run", even, FID, say=quiet)


def test_the_command_can_draw_them_alike(scored: Path, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=30)
    for path in sorted((pictures / "hell").glob("*.png"))[:20]:
        path.unlink()
    words = ["evaluate", str(scored / "run"), "--data", str(pictures), "--metrics", "fid", "--network", FID.network]
    words += ["--samples", "20", "--device", "cpu"]
    assert f"classes: {AS_REAL}" in CliRunner().invoke(application(), words).output
    assert f"classes: {ALIKE}," in CliRunner().invoke(application(), [*words, "--classes", "all"]).output


def test_shares_differ_only_where_chance_does_not_explain_it() -> None:
    random = np.random.default_rng(0)
    tail = np.array([0.6, 0.23, 0.1, 0.05, 0.02])
    sets = [uneven(*random.multinomial(number, tail)) for number in (300, 120, 40) for _ in range(10)]
    assert not any(have_other_shares(one, other) for one in sets for other in sets)
    assert have_other_shares(uneven(20, 20, 20, 20, 20), uneven(180, 70, 30, 14, 6))


def test_the_floor_compares_equal_shares(tmp_path: Path, said: list[str]) -> None:
    """A subset has its classes alike, and what was held out has them as they come."""
    pictures = write_pictures(tmp_path / "pictures", each=150)
    for path in sorted((pictures / "hell").glob("*.png"))[:125]:
        path.unlink()
    recipe, run = write_recipe(tmp_path, RECIPE.replace("4 steps", "1 steps")), tmp_path / "run"
    train(recipe, pictures, run, overrides=["data.holdout=60", "data.subset=30"], options=CPU, say=quiet)
    floor = evaluate_real(pictures, FID, of=run, say=said.append)
    of = floor.provenance
    assert (of.samples, of.real, of.split) == (30, 30, "halves of those held out")
    assert any(
        line.startswith("compared: a half of the 60 pictures that were held out with the other") for line in said
    )
