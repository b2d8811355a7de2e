"""Sheets of all classes: in turn while training, and in several files where they are asked for."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import frugan
from frugan.accelerator.precision import resolve_precision
from frugan.cli.application import application
from frugan.contract.family import GridRequest, spread
from frugan.engine.plan import Plan
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.state.state import TrainingState
from frugan.errors import BadInput
from frugan.progress import quiet
from frugan.reporting import grids
from frugan.reporting.grids import ROWS_KEYWORD
from frugan.sampling.generators import write_grids
from frugan.sampling.requests import DrawRequest, check_request
from frugan.setup.networks import save
from frugan.setup.recipe_setup import build_networks
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")
NAMES = tuple(f"kind {number}" for number in range(7))


def rows_of(path: Path) -> list[str]:
    with Image.open(path) as grid:
        return str(grid.info.get(ROWS_KEYWORD, "")).splitlines()


@pytest.mark.parametrize(("classes", "most"), [(1000, 10), (15, 10), (11, 10), (10, 10), (3, 10), (7, 2), (1, 1)])
def test_every_class_has_its_turn(classes: int, most: int) -> None:
    sheets = -(-classes // most)
    shown = [list(spread(range(classes), most, sheet)) for sheet in range(2 * sheets)]
    assert sorted(each for sheet in shown[:sheets] for each in sheet) == list(range(classes))
    assert shown[sheets:] == shown[:sheets]
    for sheet in shown:
        assert 1 <= len(sheet) <= most
        assert len({right - left for left, right in pairwise(sheet)}) <= 1  # evenly


def test_a_training_shows_other_classes_on_each_sheet_and_goes_on_so(tmp_path: Path) -> None:
    text = RECIPE.replace("classes = 2", "classes = 5").replace("4 steps", "1 steps")
    recipe, pictures = write_recipe(tmp_path, text), write_pictures(tmp_path / "pictures", classes=tuple("abcde"))
    run = tmp_path / "run"
    shown = []
    for steps in (2, 4):  # the second time it is resumed
        train(recipe, pictures, run, overrides=[f"training.duration={steps} steps"], options=CPU)
        shown = [rows_of(path) for _, kind, path in RunFolder(run).grids() if kind == "samples"]
    assert shown == [["a", "d"], ["b", "e"], ["c"], ["a", "d"]]  # two rows, in these tests


def test_a_sheet_that_is_drawn_again_shows_the_same_classes(tmp_path: Path) -> None:
    """A training that was stopped after a sheet and before its checkpoint draws it once more."""
    recipe = frugan.load_recipe(write_recipe(tmp_path, RECIPE.replace("classes = 2", "classes = 3")))
    networks = build_networks(recipe)
    state = SimpleNamespace(step=7, shown=networks, ema=SimpleNamespace(networks={}), device=torch.device("cpu"))
    plan, run = Plan(4, resolve_precision("fp32", torch.device("cpu"))), RunFolder(tmp_path / "run")
    run.samples.mkdir(parents=True)
    (run.samples / "step-000000001-samples.png").touch()
    for _ in range(2):
        paths = write_grids(recipe, cast(TrainingState, state), plan, run, None, {}, ("a", "b", "c"), quiet)
        assert rows_of(paths[0]) == ["b"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained weights that know seven classes."""
    folder = tmp_path_factory.mktemp("seven")
    recipe = frugan.load_recipe(write_recipe(folder, RECIPE.replace("classes = 2", "classes = 7")))
    save(build_networks(recipe), recipe, folder / "w.safetensors", NAMES)
    return folder / "w.safetensors"


def test_all_classes_in_files_of_so_many_rows(weights: Path, tmp_path: Path) -> None:
    words = ["--classes", "all", "--rows-per-sheet", "3", "--columns", "2", "--device", "cpu"]
    result = CliRunner().invoke(application(), ["sample", str(weights), "--out", str(tmp_path), *words])
    assert result.exit_code == 0, result.output
    assert "7 classes: 3 files of up to 3 rows, samples-1.png to samples-3.png" in result.stderr
    paths = [Path(line) for line in result.stdout.splitlines()]
    assert [path.name for path in paths] == ["samples-1.png", "samples-2.png", "samples-3.png"]
    assert [rows_of(path) for path in paths] == [list(NAMES[:3]), list(NAMES[3:6]), list(NAMES[6:])]
    # The first file is what its classes alone give.
    request = GridRequest(classes=(0, 1, 2), columns=2, micro_batch=16)
    (alone,) = frugan.sample(weights, tmp_path / "alone", request, device="cpu", say=quiet)
    with Image.open(paths[0]) as first, Image.open(alone) as same:
        assert first.tobytes() == same.tobytes()  # their texts say how each was made
    # Another file has latents of its own.
    twice = DrawRequest(classes=(0, 0), rows_per_sheet=1)
    one, other = frugan.sample(weights, tmp_path / "twice", twice, device="cpu", say=quiet)
    with Image.open(one) as first, Image.open(other) as second:
        assert first.tobytes() != second.tobytes()


def test_classes_that_do_not_fit_into_one_file(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(grids, "LARGEST_SIDE", 300)  # 4 rows of 66 pixels
    request = DrawRequest(classes=range(7), columns=6)
    paths = frugan.sample(weights, tmp_path, request, device="cpu", say=said.append)
    assert [path.name for path in paths] == [f"samples-{sheet}-{part}.png" for sheet in (1, 2) for part in (1, 2)]
    assert [rows_of(path) for path in paths[::2]] == [list(NAMES[:4]), list(NAMES[4:])]
    assert max(side for path in paths for side in Image.open(path).size) <= 300
    assert any("7 classes: 2 files of up to 4 rows" in line for line in said)
    assert any(line.startswith("samples-1.png: in one file this grid would have more than") for line in said)
    said.clear()
    more = DrawRequest(classes=range(7), columns=1, rows_per_sheet=6)
    assert len(frugan.sample(weights, tmp_path / "more", more, device="cpu", say=said.append)) == 2
    assert "--rows-per-sheet 6: 4 are what one file has room for" in said


def test_its_own_grid_spreads_over_all_classes(weights: Path, tmp_path: Path) -> None:
    paths = frugan.sample(weights, tmp_path, GridRequest(rows=4, columns=2), device="cpu", say=quiet)
    assert rows_of(paths[0]) == [NAMES[0], NAMES[2], NAMES[4], NAMES[6]]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (DrawRequest(rows_per_sheet=4), "--rows-per-sheet 4: goes with a grid that has a row for each of --classes"),
        (DrawRequest(classes=(0, 1), rows_per_sheet=4, interpolate="both"), "--rows-per-sheet 4: goes with a grid"),
        (DrawRequest(classes=(0, 1), rows_per_sheet=0), "--rows-per-sheet 0: expected at least 1"),
        (DrawRequest(statistics="standing", standing_batches=0), "expected at least 1"),
        (DrawRequest(statistics="standing", standing_size=3), "--standing-size 3: expected a multiple"),
    ],
)
def test_sheets_that_cannot_be(weights: Path, request_: DrawRequest, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_request(request_, frugan.load_recipe("biggan-digits-32"))


def test_a_family_that_is_shown_faces_has_no_statistics_to_choose() -> None:
    with pytest.raises(BadInput, match=r"^--statistics and --rows-per-sheet: for families that draw from random"):
        check_request(DrawRequest(statistics="standing", rows_per_sheet=3), frugan.load_recipe("saehd-demo-64"))


@pytest.mark.parametrize("words", [["--classes", "0,3"], ["--interpolate", "both"], ["--animate", "a.gif"], []])
def test_grids_and_films_by_standing_statistics(weights: Path, tmp_path: Path, words: list[str]) -> None:
    """Measured anew, so that pictures differ; and they leave no trace."""

    def drawn(*more: str) -> list[bytes]:
        out = tmp_path / "-".join(("out", *more))
        common = ["sample", str(weights), "--out", str(out), "--device", "cpu", "--columns", "2", "--rows", "2"]
        result = CliRunner().invoke(application(), [*common, "--frames", "2", *words, *more])
        assert result.exit_code == 0, result.output
        return [Path(line).read_bytes() for line in result.stdout.splitlines()]

    plain = drawn()
    standing = ["--statistics", "standing", "--standing-batches", "1", "--standing-size"]
    small, large = (drawn(*standing, size) for size in ("4", "8"))
    assert len(plain) == len(small) == len(large)
    for each in zip(plain, small, large, strict=True):
        assert len(set(each)) == 3


def test_networks_without_batch_normalisation_have_no_standing_statistics(tmp_path: Path) -> None:
    small = ["networks.resolution=8", "networks.channel_base=64", "networks.channel_max=8", "networks.latent_size=8"]
    recipe = frugan.load_recipe("stylegan2-digits-32", [*small, "networks.style_size=8"])
    save(build_networks(recipe), recipe, tmp_path / "w.safetensors")
    with pytest.raises(BadInput, match="--statistics standing: this stylegan2 network normalises no batches"):
        frugan.sample(tmp_path / "w.safetensors", tmp_path / "out", DrawRequest(statistics="standing"), say=quiet)
    assert not (tmp_path / "out").exists()
