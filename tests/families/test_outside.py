"""A family of another package, found by its entry point, goes through the commands like one that ships."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

from frugan.cli.main import run
from frugan.engine.run.events import read_events
from frugan.errors import BadInput
from frugan.families import family
from frugan.planning.prediction import predict
from frugan.registry import FAMILIES, SHIPPED
from limits import Limit
from planning.formula import PredictionsBy, predicted_by_formula

OUTSIDE = Path(__file__).parents[1] / "outside"
RECIPE = str(OUTSIDE / "minigan.toml")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, predictions_by: PredictionsBy, tmp_path: Path) -> None:
    """Predictions are runs of the family's step, which others' tests see to: here formulas do."""
    predictions_by(predicted_by_formula)
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


def _measure_little(limit: Limit) -> None:
    """Of this processor, which takes a second."""
    limit("side of a measured product", 128)
    limit("bytes of a measured copy", 2**20)


def test_it_is_planned_trained_resumed_sampled_and_reported(
    frugan: Callable[..., str], pictures: Path, tmp_path: Path, limit: Limit
) -> None:
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
    grids = list((tmp_path / "sheets").glob("*.png"))
    assert grids
    _measure_little(limit)
    printed = json.loads(frugan("info", folder, "--device", "cpu", "--json"))
    assert (printed["family"], printed["networks"]["G"]["latency_seconds"] > 0) == ("minigan", True)
    assert "do not give latency" in printed["note"]
    frugan("report", folder)
    assert "minigan" in (folder / "report.html").read_text("utf-8")


def test_every_command_works_on_a_family_of_one_short_file(
    frugan: Callable[..., str],
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: Limit,
    predictions_by: PredictionsBy,
) -> None:
    """Networks, phases and a grid of samples; the rest are defaults."""
    assert len((OUTSIDE / "minigan" / "__init__.py").read_text("utf-8").splitlines()) <= 120
    (tmp_path / "seen.py").write_text("def means(x):\n    return x.float().mean((2, 3))\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    _measure_little(limit)
    fields = {field["key"] for field in json.loads(frugan("recipes", RECIPE, "--json"))}
    assert {"networks.channels", "optimizers.D.learning_rate"} <= fields
    info = json.loads(frugan("info", RECIPE, "--device", "cpu", "--json"))["networks"]
    assert info["D"]["macs"] == 8 * 8 * 8 * 3 * 9 + 4 * 4 * 8 * 8 * 9 + 8  # of pictures as its phases give them
    predictions_by(predict)
    assert json.loads(frugan("plan", RECIPE, "--memory", "1GiB", "--json"))["fits"]
    predictions_by(predicted_by_formula)
    run, cpu = tmp_path / "run", ("--device", "cpu")
    frugan("train", RECIPE, "--data", pictures, "--out", run, *cpu)
    again = tmp_path / "again"
    frugan("train", RECIPE, "--data", pictures, "--out", again, *cpu)
    first, second = ((of / "checkpoints" / "step-000000004" / "networks.safetensors") for of in (run, again))
    assert first.read_bytes() == second.read_bytes()
    started = frugan("train", RECIPE, "--init", run, "--data", pictures, "--out", tmp_path / "started", *cpu)
    assert "step 4, finished" in started
    frugan("evaluate", run, "--data", pictures, "--samples", "12", "--network", "seen:means", "--metrics", "fid", *cpu)
    frugan("sample", run, "--pngs", "6", "--out", tmp_path / "single", *cpu)
    assert len(list((tmp_path / "single").rglob("*.png"))) == 6
    frugan("report", run)
    assert "Scores by frugan evaluate" in (run / "report.html").read_text("utf-8")
    frugan("card", run, "--licence", "cc0-1.0", "--out", tmp_path / "card")
    (weights,) = (tmp_path / "card").glob("*.safetensors")
    frugan("sample", weights, "--out", tmp_path / "grids", *cpu)
    assert list((tmp_path / "grids").glob("*.png"))


def test_one_with_data_an_optimizer_and_a_file_format_of_its_own(frugan: Callable[..., str], tmp_path: Path) -> None:
    maps, folder = tmp_path / "maps.npy", tmp_path / "run"
    np.save(maps, np.random.default_rng(0).uniform(-1, 1, (30, 8, 8)).astype(np.float32))
    recipe = str(OUTSIDE / "terrain.toml")
    plan = json.loads(frugan("plan", recipe, "--memory", "1GiB", "--json"))
    assert plan["fits"]
    words = ("--data", maps, "--out", folder, "--device", "cpu")
    frugan("train", recipe, *words)
    longer = frugan("train", recipe, "training.duration=6 steps", *words)
    assert "step 6, finished" in longer
    whole = tmp_path / "whole"
    frugan("train", recipe, "training.duration=6 steps", "--data", maps, "--out", whole, "--device", "cpu")
    networks, optimizers = (
        [(run / "checkpoints" / "step-000000006" / f"{name}.safetensors").read_bytes() for run in (folder, whole)]
        for name in ("networks", "optimizers")
    )
    assert networks[0] == networks[1]
    assert optimizers[0] == optimizers[1]

    grids = []
    for psi in ("1", "-1"):
        out = tmp_path / f"sheets{psi}"
        frugan("sample", folder, "--out", out, "--psi", psi, "--rows", "2", "--columns", "3", "--device", "cpu")
        (grid,) = out.glob("*.png")
        grids.append(np.asarray(Image.open(grid)))
    assert not np.array_equal(grids[0], grids[1])

    frugan("convert", folder, tmp_path / "generator.npz", "--to", "terrain-npz")
    frugan("convert", tmp_path / "generator.npz", tmp_path / "again.safetensors", "--from", "terrain-npz")
    again = tmp_path / "sheets-again"
    frugan("sample", tmp_path / "again.safetensors", "--out", again, "--rows", "2", "--columns", "3", "--device", "cpu")
    assert np.array_equal(np.asarray(Image.open(next(again.glob("*.png")))), grids[0])
    frugan("report", folder)
    assert "terrain" in (folder / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "optimizers.G.momentum=2"), "optimizers.G.momentum: must be less than 1"),
        (
            ("train", "optimizers.G.kind=sigmund"),
            "'sigmund' is unknown; expected one of: adam, sgd, rmsprop, adabelief, s",
        ),
        (("train", "data.flip=true"), "data.flip: height maps are not mirrored"),
        (("train",), "no .npy file with heights"),
    ],
)
def test_what_is_wrong_with_it_is_said_in_its_own_words(
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command, *overrides = words
    out = ["--data", str(tmp_path / "none.npy"), "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["frugan", command, str(OUTSIDE / "terrain.toml"), *overrides, *out])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_layer_that_no_loss_reaches_is_told_of_once(
    frugan: Callable[..., str],
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    minigan = importlib.import_module("minigan")

    class Forgetful(minigan.Generator):  # type: ignore[name-defined]
        def __init__(self, config: object) -> None:
            super().__init__(config)
            self.forgotten = nn.Linear(4, 4)

    monkeypatch.setattr(minigan, "Generator", Forgetful)
    folder = tmp_path / "run"
    frugan("train", RECIPE, "saving.report_every=1 steps", "--data", pictures, "--out", folder, "--device", "cpu")
    (line,) = [e["line"] for e in read_events(folder / "events.jsonl") if e["event"] == "warning"]
    assert line.startswith("2 parameters of G got no gradient in any phase: G.forgotten.weight, G.forgotten.bias. ")
    frugan("report", folder)
    page = (folder / "report.html").read_text("utf-8")
    assert "no phase gave these parameters of G a gradient: forgotten.weight, forgotten.bias" in page
    assert page.count("got no gradient in any phase: G.forgotten.weight, G.forgotten.bias") == 1  # the sentence cuts it


def test_what_was_predicted_holds_for_one_text_of_a_family(
    frugan: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    predictions_by: PredictionsBy,
) -> None:
    """A family that was mended is planned anew; one that is broken is told by its own line."""
    package = tmp_path / "edited" / "edited"
    shutil.copytree(OUTSIDE / "minigan", package)
    information = tmp_path / "edited" / "edited-0.1.dist-info"
    shutil.copytree(OUTSIDE / "minigan-0.1.dist-info", information)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: edited\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text("[frugan.families]\nedited = edited:MiniGANFamily\n")
    code = (package / "__init__.py").read_text("utf-8").replace('name = "minigan"', 'name = "edited"')
    monkeypatch.syspath_prepend(str(package.parent))
    recipe = tmp_path / "edited.toml"
    recipe.write_text((OUTSIDE / "minigan.toml").read_text("utf-8").replace('"minigan"', '"edited"'), "utf-8")

    line = '    return {"fake": hinge_fake(networks["D"](pictures))}'
    assert code.count(line) == 1
    (package / "__init__.py").write_text(code.replace(line, f"    pictures.sum().item()\n{line}"), "utf-8")
    predictions_by(predict)
    monkeypatch.setattr(sys, "argv", ["frugan", "plan", str(recipe), "--memory", "1GiB"])
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit):
        run()
    told = capsys.readouterr().err
    assert "family edited: its step cannot be planned: a forward or a part looks at a tensor's value" in told
    assert f"{package / '__init__.py'}:" in told

    (package / "__init__.py").write_text(code + "\n# mended\n", "utf-8")
    for name in [name for name in sys.modules if name.partition(".")[0] == "edited"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    predictions_by(predicted_by_formula)
    assert json.loads(frugan("plan", recipe, "--memory", "1GiB", "--json"))["fits"]


def test_one_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(BadInput, match=r"family 'broken' of another package \(minigan.not_there:Family\) cannot be"):
        family("broken")


def test_one_that_is_no_family_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("minigan"), "MiniGANFamily", dict)
    with pytest.raises(BadInput, match=r"family 'minigan' of another package .* does not derive from frugan.contract"):
        family("minigan")


def test_others_are_among_what_is_expected() -> None:
    shipped = ", ".join(sorted({"broken", "minigan", "terrain", *SHIPPED[FAMILIES]}))
    with pytest.raises(BadInput, match=f"expected one of: {shipped}"):
        family("ministan")
