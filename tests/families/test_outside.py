"""A family of another package, found by its entry point, goes through the commands like one that ships."""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frugan.cli.main import run
from frugan.errors import BadInput
from frugan.families import family
from frugan.memory import prediction_store
from memory.formula import predicted_by_formula

OUTSIDE = Path(__file__).parents[1] / "outside"
RECIPE = str(OUTSIDE / "minigan.toml")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.setenv("FRUGAN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    random = np.random.default_rng(0)
    for i in range(12):
        Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8)).save(folder / f"{i}.png")
    return folder


@pytest.fixture
def frugan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["frugan", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        with suppress(SystemExit):
            run()
        out, err = capsys.readouterr()
        assert "bad input" not in err, err
        return str(out)

    return call


def test_it_is_planned_trained_resumed_sampled_and_reported(
    frugan: Callable[..., str], pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction_store, "predict", predicted_by_formula)  # what is planned with is a run of the step
    monkeypatch.setattr(prediction_store, "HELPFUL_SECONDS", 1e9)
    plan = json.loads(frugan("plan", RECIPE, "--memory", "1GiB", "--json"))
    assert plan["fits"]
    assert plan["micro_batch"] == 8
    folder = tmp_path / "run"
    frugan("train", RECIPE, "--data", pictures, "--out", folder, "--device", "cpu")
    longer = frugan(
        "train", RECIPE, "training.duration=6 steps", "--data", pictures, "--out", folder, "--device", "cpu"
    )
    assert "step 6, finished" in longer
    assert sorted(p.name for p in (folder / "checkpoints").iterdir())[-1] == "step-000000006"
    frugan("sample", folder, "--out", tmp_path / "sheets", "--device", "cpu")
    sheets = list((tmp_path / "sheets").glob("*.png"))
    assert sheets
    assert "minigan" in frugan("info", folder, "--device", "cpu")
    frugan("report", folder)
    assert "minigan" in (folder / "report.html").read_text("utf-8")


def test_one_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(BadInput, match=r"family 'broken' of another package \(minigan.not_there:Family\) cannot be"):
        family("broken")


def test_others_are_among_what_is_expected() -> None:
    with pytest.raises(BadInput, match="expected one of: biggan, broken, minigan, saehd"):
        family("ministan")
