"""Where a run whose recipe frugan chose lies, and what goes on with it."""

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frugan.engine.run.checkpoint import DIVERGED, list_checkpoints, set_aside
from frugan.engine.run.events import EventLog, read_events
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe
from frugan.setup.networks import Weights
from frugan.training.choice import RecipeChoice
from frugan.training.open_run import open_pictures
from frugan.training.recovery import began_from, choice_of
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")
TWO, THREE = (f"training.duration={steps} steps" for steps in (2, 3))


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Train without a recipe, with one chosen that is tiny; returns the run's folder."""
    tiny, runs = write_recipe(tmp_path, RECIPE), tmp_path / "runs"
    chosen = RecipeChoice(tiny, (TWO, "saving.checkpoint_every=2 steps"), ())
    monkeypatch.setenv("FRUGAN_RUNS", str(runs))
    monkeypatch.setattr("frugan.training.open_run.choose_for", lambda *_, **__: chosen)

    def begun(pictures: Path, *words: str, out: str | Path | None = None, **more: Any) -> Path:
        return train(None, pictures, out, overrides=words, options=CPU, **more).run

    return begun


def test_the_same_command_without_a_folder_goes_on(tmp_path: Path, begin: Callable[..., Path]) -> None:
    pictures, others = (write_pictures(tmp_path / name, each=12) for name in ("pictures", "others"))
    told: list[str] = []
    first = begin(pictures, say=told.append)
    assert f"run: {first}, in the folder for runs; --out names another" in told
    told.clear()
    assert begin(pictures, THREE, say=told.append) == first
    assert f"{first} was begun for these pictures and goes on" in told[0]
    assert not any(line.startswith("run: ") for line in told)
    assert [event["step"] for event in read_events(first / "events.jsonl") if event["event"] == "resume"] == [2]
    # other pictures have a run of their own, beside it
    second = begin(others)
    assert second.name == f"{first.name}-2"
    assert begin(others, THREE) == second
    assert begin(pictures, THREE) == first


def test_a_run_was_chosen_for_what_it_was_trained_for(tmp_path: Path) -> None:
    """One that ended before it began left its choice in the folder that the next one took."""
    with EventLog(tmp_path / "events.jsonl") as log:
        for event in ({"data": "a"}, {"data": "b"}):
            log.write("recipe chosen", **event)
        log.write("step", step=1)
        log.write("recipe chosen", data="c")
    assert choice_of(tmp_path / "events.jsonl")["data"] == "b"


def test_a_folder_named_like_a_recipe_is_a_run_all_the_same(
    tmp_path: Path, begin: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=12)
    monkeypatch.chdir(tmp_path)
    begin(pictures, out="biggan-small-32")
    begin(pictures, THREE, out="biggan-small-32")
    assert [event["step"] for event in read_events(Path("biggan-small-32/events.jsonl")) if event["event"] == "resume"]
    (start, *_) = (event for event in read_events(Path("biggan-small-32/events.jsonl")) if event["event"] == "start")
    *_, path, _, data, _, _ = shlex.split(start["command"])
    assert (path, data) == (f".{os.sep}biggan-small-32", str(pictures))
    assert train(path, data, overrides=("training.duration=4 steps",), options=CPU).step == 4
    assert not (tmp_path / "runs").exists()  # it went on where it was
    # by its name it is the recipe that ships, and a new run
    with pytest.raises(BadInput, match="2 classes, but the recipe has 10"):
        train("biggan-small-32", pictures, options=CPU)


@pytest.mark.parametrize("out", ["run", "cats/run"])
def test_a_run_among_its_pictures_is_refused(out: str, tmp_path: Path, begin: Callable[..., Path]) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=12)
    with pytest.raises(BadInput, match="lies inside the pictures' folder"):
        begin(pictures, out=pictures / out)
    assert not (pictures / out).exists()
    begin(pictures, out=pictures / ".runs" / "one")  # where no picture is looked for


def test_a_run_of_a_named_recipe_among_its_pictures_is_refused(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=12)
    with pytest.raises(BadInput, match="lies inside the pictures' folder"):
        train("biggan-digits-32", pictures, pictures / "run", say=quiet)
    assert not (pictures / "run").exists()


def test_a_run_begun_meanwhile_is_not_gone_on_with(
    tmp_path: Path, begin: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, others = (write_pictures(tmp_path / name, each=12) for name in ("pictures", "others"))
    began: list[Path] = []

    def slowly(*args: Any, **more: Any) -> Any:
        if not began:
            began.append(others)
            began.append(begin(others))
        return open_pictures(*args, **more)

    monkeypatch.setattr("frugan.training.training.open_pictures", slowly)
    with pytest.raises(BadInput, match="another run was begun there while this one was made ready"):
        begin(pictures)
    _, theirs = began
    assert [event["step"] for event in read_events(theirs / "events.jsonl") if event["event"] == "resume"] == []
    assert begin(pictures) == theirs.with_name(f"{theirs.name}-2")


def forget_checkpoints(run: Path) -> None:
    """As if it had been stopped before its first one."""
    shutil.rmtree(run / "checkpoints")
    events = (run / "events.jsonl").read_text("utf-8").splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(line for line in events if '"checkpoint"' not in line), "utf-8")


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_from_the_same_weights(
    there: bool, named: bool, tmp_path: Path, begin: Callable[..., Path]
) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=12)
    weights, run = begin(pictures, out=tmp_path / "before"), tmp_path / "run"
    if named:
        train(write_recipe(tmp_path, RECIPE), pictures, run, overrides=(TWO,), init=weights, options=CPU)
    else:
        begin(pictures, out=run, init=weights)
    forget_checkpoints(run)
    if not there:
        shutil.rmtree(weights)
        with pytest.raises(BadInput, match="was begun from other weights, and has no checkpoint of its own"):
            train(str(run), pictures, options=CPU)
        return
    train(str(run), pictures, options=CPU)
    lines = [event["line"] for event in read_events(run / "events.jsonl") if event["event"] == "choice"]
    assert len([line for line in lines if line.startswith("init: all")]) == 2


def test_a_run_that_began_from_weights_that_ship_is_found_again(
    tmp_path: Path, begin: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same command and by its folder, before a first checkpoint too; and noise is another run."""
    pictures = write_pictures(tmp_path / "pictures", each=12)
    weights = next((begin(pictures, out=tmp_path / "before") / "checkpoints").glob("*/networks.safetensors"))
    moved = weights.rename(tmp_path / "shipped.safetensors")
    chosen = RecipeChoice(write_recipe(tmp_path, RECIPE), (TWO, "saving.checkpoint_every=2 steps"), (), start="tiny")
    monkeypatch.setattr("frugan.training.open_run.choose_for", lambda *_, **__: chosen)
    monkeypatch.setattr(
        "frugan.training.starting_weights.shipped_weights", lambda name: moved if name == "tiny" else None
    )
    monkeypatch.chdir(tmp_path)
    named_alike = begin(pictures, out=Path("tiny"), init="none")  # a path here is no recipe, and the reverse
    run = begin(pictures)
    assert {"init": "tiny", "init_classes": "mean"}.items() <= choice_of(run / "events.jsonl").items()
    assert begin(pictures, THREE) == run
    assert begin(pictures, init="none") != run
    from_path = begin(pictures, out=tmp_path / "from path", init="tiny")
    assert choice_of(from_path / "events.jsonl")["init"] == str(named_alike.resolve())
    forget_checkpoints(run)
    moved = moved.rename(tmp_path / "upgraded.safetensors")
    train(str(run), pictures, options=CPU)
    begun = [event for event in read_events(run / "events.jsonl") if event["event"] == "start"]
    assert [event.get("init") for event in begun] == ["tiny", None, "tiny"]
    # the choice told of them at first, in a line of its own
    lines = [event["line"] for event in read_events(run / "events.jsonl") if event["event"] == "choice"]
    assert [line for line in lines if line.startswith("init: all weights")] == [
        "init: all weights of G, D from those that ship with tiny"
    ]


def test_what_cannot_be_a_run_is_refused_before_anything_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=12)
    (tmp_path / "other").mkdir()
    for name in ("file", "other/file"):
        (tmp_path / name).write_text("mine", "utf-8")
    monkeypatch.setattr("frugan.training.open_run.choose_for", lambda *_, **__: pytest.fail("looked"))
    for out, said in {"file": "a file, and no folder", "file/run": "a file", "other": "holds something else"}.items():
        with pytest.raises(BadInput, match=said):
            train(None, pictures, tmp_path / out, options=CPU)


def test_classes_that_weights_do_not_know_are_refused_before_pictures_are_prepared(
    tmp_path: Path, begin: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=12)
    weights, three = begin(pictures, out=tmp_path / "before"), load_recipe(write_recipe(tmp_path, RECIPE))
    three = load_recipe(write_recipe(tmp_path, RECIPE), [f"networks.classes={three.classes + 1}"])
    monkeypatch.setattr("frugan.training.open_run.choose_for", lambda *_, **__: RecipeChoice(three, (), ()))
    monkeypatch.setattr("frugan.training.training.open_pictures", lambda *_, **__: pytest.fail("prepared"))
    with pytest.raises(BadInput, match="these weights know 2 classes, and this run has 3; say what"):
        train(None, pictures, tmp_path / "run", init=weights, options=CPU)


def test_a_checkpoint_that_was_set_aside_knows_its_step(tmp_path: Path, begin: Callable[..., Path]) -> None:
    run = begin(write_pictures(tmp_path / "pictures", each=12))
    aside = set_aside(list_checkpoints(run / "checkpoints")[-1], DIVERGED)
    assert Weights.open(aside, quiet).step == 2


def test_what_was_refused_before_it_began_leaves_nothing_to_the_next_run(
    tmp_path: Path, begin: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=12)
    weights, run = begin(pictures, out=tmp_path / "before"), tmp_path / "run"
    run.mkdir()

    def refused(*_: Any) -> Any:
        raise BadInput("hardly a layer agrees")

    with monkeypatch.context() as patched:
        patched.setattr("frugan.training.training.begin", refused)
        with pytest.raises(BadInput, match="hardly a layer agrees"):
            begin(pictures, out=run, init=weights)
    assert begin(pictures, out=run) == run
    assert began_from(RunFolder(run)) is None
    assert len([event for event in read_events(run / "events.jsonl") if event["event"] == "recipe chosen"]) == 1


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugan.engine.run.run_folder.os.access", lambda path, _: path != tmp_path)
    with pytest.raises(BadInput, match="cannot be written to; choose another --out"):
        RunFolder(tmp_path / "new" / "run").refuse_other_files()
