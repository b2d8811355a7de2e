"""A discriminator that gives up: what a run says then is a command that works, and it goes on as it was."""

import html
import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from frugan.cli.application import application
from frugan.engine.run.checkpoint import list_checkpoints, set_aside
from frugan.engine.run.events import EventLog, read_events
from frugan.engine.run.run_folder import RunFolder
from frugan.page.runs import Runs
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe
from frugan.reporting.report import page_of
from frugan.reporting.signs import CollapseSigns
from frugan.setup.networks import Weights
from frugan.training.choice import RecipeChoice
from frugan.training.observers import slower_command
from frugan.training.run import TrainingOptions, TrainRun
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")


class GivesUp(CollapseSigns):
    """Finds that the discriminator guessed at step 2 and, where that is known, at step 3 that it has given up."""

    def look(self, event: Mapping[str, Any]) -> Iterator[str]:
        if event["event"] == "step" and event["step"] in (2, 3):
            yield from self._discriminator_gave_up("D", 0.693, event["step"], 1.0)

    def _away(self, phase: str) -> float:
        return 0.0


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Train so many steps of a run with a tiny recipe that is chosen; returns what it has warned of so far."""
    choice = RecipeChoice(write_recipe(tmp_path, RECIPE), ("saving.checkpoint_every=1 steps",), ())
    monkeypatch.setattr("frugan.training.open_run.choose_for", lambda *_, **__: choice)
    monkeypatch.setattr("frugan.training.observers.CollapseSigns", GivesUp)

    def trained(pictures: Path, steps: int = 4, **more: Any) -> list[str]:
        run = tmp_path / "my run"
        train(None, pictures, run, overrides=[f"training.duration={steps} steps"], options=CPU, **more)
        return [event["line"] for event in read_events(run / "events.jsonl") if event["event"] == "warning"]

    return trained


def rates(run: Path) -> list[float]:
    optimizers = json.loads((run / "recipe.json").read_text("utf-8"))["optimizers"]
    return [optimizers[name]["learning_rate"] for name in ("D", "G")]


@pytest.mark.parametrize("from_weights", [False, True])
def test_the_command_that_is_told_begins_anew_with_half_the_rate(
    from_weights: bool, tmp_path: Path, chosen: Callable[..., list[str]]
) -> None:
    pictures, run = write_pictures(tmp_path / "my pictures", each=12), tmp_path / "my run"
    more: dict[str, Any] = {}
    if from_weights:
        chosen(pictures, 1)
        more = {"init": shutil.move(run, tmp_path / "my weights"), "init_classes": "mean"}
    said: list[str] = []
    (line,) = chosen(pictures, say=said.append, **more)
    assert f"warning: {line}" in said
    assert line.startswith("D has given up: ")
    assert line in html.unescape(page_of([run]))
    before = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert rates(run) == [4e-4, 1e-4]  # it went on as it was
    _, command = line.split("With half the generator's rate, in a new run: ")
    program, *words = shlex.split(command)
    assert program == "frugan"
    shown = CliRunner().invoke(application(), words)
    assert shown.exit_code == 0, shown.output
    assert rates(tmp_path / "my run-2") == [4e-4, 5e-5]
    assert list_checkpoints(tmp_path / "my run-2" / "checkpoints")[-1].step == 4
    begun = [line for line in shown.output.splitlines() if "init: all" in line]
    assert bool(begun) is from_weights
    assert rates(run) == [4e-4, 1e-4]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == before


def test_a_run_that_goes_on_knows_its_discriminators_past_and_tells_nothing_twice(
    tmp_path: Path, chosen: Callable[..., list[str]]
) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=12)
    assert chosen(pictures, 2) == []
    assert len(chosen(pictures, 3)) == 1
    assert len(chosen(pictures, 4)) == 1


def run_of(recipe: str, folder: Path, command: str | None = "frugan train run --data pictures") -> TrainRun:
    return TrainRun(load_recipe(recipe), recipe, {}, {}, RunFolder(folder), CPU, quiet, command=command)


def test_half_the_rate_is_the_generators_alone(tmp_path: Path) -> None:
    def told(recipe: str) -> list[str]:
        words = shlex.split(slower_command(run_of(recipe, tmp_path / "run")) or "")
        return [word for word in words if word.startswith("optimizers.")]

    assert told("biggan-small-32") == [
        "optimizers.G.learning_rate=0.0005",
        "optimizers.G.final_learning_rate=0.00014",
    ]
    r3gan = told("r3gan-small-32")  # whose one rate is for both networks
    assert r3gan == ["optimizers.G.learning_rate=0.001", "optimizers.G.final_learning_rate=0.00015"]
    kept, slowed = (load_recipe("r3gan-small-32", words).optimizer_settings() for words in ((), r3gan))
    assert slowed["D"] == kept["D"]
    assert slowed["G"] == kept["G"].model_copy(update={"learning_rate": 1e-3, "final_learning_rate": 1.5e-4})
    assert told("saehd-df-ud-256") == []  # which has no generator


def test_there_is_no_command_without_files_and_the_new_folder_is_no_runs_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert slower_command(run_of("biggan-small-32", tmp_path / "run", None)) is None
    for name in ("run", "run-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.json").touch()
    monkeypatch.chdir(tmp_path / "run")
    assert (slower_command(run_of("biggan-small-32", Path())) or "").endswith(f"--out {tmp_path / 'run-3'}")


def test_a_run_that_tried_again_by_itself_in_an_older_version_goes_on(
    tmp_path: Path, chosen: Callable[..., list[str]]
) -> None:
    """It lost its process just when it had gone back to step 1, with half the rate."""
    pictures, run = write_pictures(tmp_path / "pictures", each=12), tmp_path / "my run"
    chosen(pictures, 2)
    aside = set_aside(list_checkpoints(run / "checkpoints")[-1], "gave-up-")
    lines = (run / "events.jsonl").read_text("utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    for event in events:
        if event["event"] == "recipe chosen":
            event["second"] = ["optimizers.G.learning_rate=5e-05"]
    (run / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events), "utf-8")
    slower = load_recipe(str(run), ["optimizers.G.learning_rate=5e-05"]).model_dump(mode="json")
    (run / "recipe.json").write_text(json.dumps(slower), "utf-8")
    with EventLog(run / "events.jsonl") as log:
        log.write("second try", step=2, to=1, overrides=["optimizers.G.learning_rate=5e-05"])
        log.write("warning", step=2, line="a second try, as frugan chose the recipe: back to step 1")
    assert Weights.open(aside, quiet).step == 2
    assert Runs(tmp_path).glance("my run")["step"] == 2
    train(str(run), pictures, options=CPU, overrides=["training.duration=4 steps"])
    changed = [event for event in read_events(run / "events.jsonl") if event["event"] == "changed"]
    assert [(e["step"], e["field"], e["now"]) for e in changed if "rate" in e["field"]] == [
        (1, "optimizers.G.learning_rate", "5e-05")
    ]
    assert "a second try, as frugan chose the recipe: back to step 1" in page_of([run])
    assert aside.is_dir()
