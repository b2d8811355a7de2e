"""A second try of a run whose recipe frugan chose: when it comes, and what it goes back to; nothing of it is lost."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from frugan.engine.run.events import EventLog, read_events
from frugan.engine.run.loop import Loop
from frugan.recipe.loading import load_recipe
from frugan.reporting.signs import CollapseSigns
from frugan.training.beginning import begin
from frugan.training.choice import RecipeChoice
from frugan.training.recovery import Recovery, second_try
from frugan.training.run import TrainingOptions, TrainRun
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe

SECOND = ("optimizers.G.learning_rate=5e-5",)


def chosen_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signs: type[CollapseSigns], second: tuple[str, ...] = SECOND
) -> Path:
    """Pictures for which a tiny recipe is chosen, with a checkpoint after each step; `signs` watch its runs."""
    chosen = RecipeChoice(write_recipe(tmp_path, RECIPE), ("saving.checkpoint_every=1 steps",), (), second)
    monkeypatch.setattr("frugan.training.open_run.choose_for", lambda *_, **__: chosen)
    monkeypatch.setattr("frugan.training.observers.CollapseSigns", signs)
    return write_pictures(tmp_path / "pictures", each=12)


class GivesUp(CollapseSigns):
    """Finds, three times at the most, that the discriminator has given up in the third step, and not in the first."""

    left: ClassVar[list[int]] = []

    def look(self, event: Mapping[str, Any]) -> Iterator[str]:
        if event["event"] == "step" and event["step"] == 3 and self.left:
            self.left.pop()
            self.given_up.add("D")
            self.at_work["D"] = 1
            yield "D has given up"


@pytest.mark.parametrize("second", [SECOND, ()])
def test_a_run_whose_discriminator_gives_up_tries_once_more(
    second: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = chosen_for(tmp_path, monkeypatch, GivesUp, second)
    monkeypatch.setattr(GivesUp, "left", [1, 2, 3])
    run = tmp_path / "run"
    assert train(None, pictures, run, options=TrainingOptions(device="cpu")).step == 4
    events = list(read_events(run / "events.jsonl"))
    tries = [event for event in events if event["event"] == "second try"]
    assert [(each["step"], each["to"], tuple(each["overrides"])) for each in tries] == (
        [(3, 1, second)] if second else []
    )
    rate = json.loads((run / "recipe.json").read_text("utf-8"))["optimizers"]["G"]["learning_rate"]
    assert rate == (5e-5 if second else 1e-4)
    changed = [event["field"] for event in events if event["event"] == "changed"]
    assert changed == (["optimizers.G.learning_rate"] if second else [])
    said = [event["line"] for event in events if event["event"] == "warning" and "second try" in event["line"]]
    assert len(said) == len(tries)


def test_the_time_after_which_to_stop_does_not_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = chosen_for(tmp_path, monkeypatch, GivesUp)
    stops: list[float | None] = []

    def noted(run: TrainRun, recovery: Recovery) -> Loop:
        loop = begin(run, recovery)
        stops.append(loop.stop_at)
        return loop

    monkeypatch.setattr(GivesUp, "left", [1])
    monkeypatch.setattr("frugan.training.training.begin", noted)
    before = time.perf_counter()
    train(None, pictures, tmp_path / "run", options=TrainingOptions(device="cpu", stop_after="1h"))
    first, again = stops
    assert first == again is not None
    assert before + 3600 <= again <= time.perf_counter() + 3600


class WorksTwoSteps(CollapseSigns):
    """Finds that the discriminator is at work for two steps, and has then given up."""

    def look(self, event: Mapping[str, Any]) -> Iterator[str]:
        if event["event"] == "step" and event["step"] <= 2:
            self.at_work["D"] = event["step"]
        elif event["event"] == "step" and not self.given_up:
            self.given_up.add("D")
            yield "D has given up"


class GuessesTwice(CollapseSigns):
    """Finds that the discriminator guessed at step 2 and, where that is known, that it has then given up."""

    def look(self, event: Mapping[str, Any]) -> Iterator[str]:
        if event["event"] == "step":
            self.at_work["D"] = min(event["step"], 2)
            if event["step"] == 2:
                self.guessed["D"] = (2, 1.0)
            elif self.guessed and not self.given_up:
                self.given_up.add("D")
                yield "D has given up"


@pytest.mark.parametrize("signs", [WorksTwoSteps, GuessesTwice])
def test_a_run_that_goes_on_knows_how_far_back_a_second_try_has_to_go(
    signs: type[CollapseSigns], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = chosen_for(tmp_path, monkeypatch, signs)
    run = tmp_path / "run"
    for steps in (2, 4):
        words = [f"training.duration={steps} steps"]
        assert train(None, pictures, run, overrides=words, options=TrainingOptions(device="cpu")).step == steps
    (again,) = (event for event in read_events(run / "events.jsonl") if event["event"] == "second try")
    assert (again["step"], again["to"]) == (3, 2)


class WorksOneStep(CollapseSigns):
    """Finds that the discriminator was at work in the first step, and at step 6 that it has given up."""

    def look(self, event: Mapping[str, Any]) -> Iterator[str]:
        if event["event"] == "step":
            self.at_work["D"] = 1
            if event["step"] == 6 and not self.given_up:
                self.given_up.add("D")
                yield "D has given up"


def run_that_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signs: type[CollapseSigns]
) -> Callable[..., Any]:
    """Trains so many steps of a run with a checkpoint after each; more keywords go to `train`."""
    pictures = chosen_for(tmp_path, monkeypatch, signs)

    def trained(steps: int, *words: str) -> list[dict[str, Any]]:
        words = (f"training.duration={steps} steps", *words)
        train(None, pictures, tmp_path / "run", overrides=words, options=TrainingOptions(device="cpu"))
        return list(read_events(tmp_path / "run" / "events.jsonl"))

    return trained


def test_the_checkpoint_that_a_second_try_goes_back_to_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = run_that_gives_up(tmp_path, monkeypatch, WorksOneStep)
    monkeypatch.setattr("frugan.engine.run.step_log.LONG", 1)  # or the first would be kept for another reason
    trained(5)
    steps = [int(path.name.removeprefix("step-")) for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert 1 in steps
    assert 3 not in steps  # beside that the newest are kept
    (again,) = (event for event in trained(7) if event["event"] == "second try")
    assert (again["step"], again["to"]) == (6, 1)


def test_rates_that_somebody_changed_have_no_second_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = run_that_gives_up(tmp_path, monkeypatch, WorksOneStep)
    trained(5)
    trained(7, "optimizers.G.learning_rate=1e-5")
    events = trained(9, "optimizers.G.learning_rate=1e-4")  # nor when they are put back: it was told of, and went on
    assert [event for event in events if event["event"] == "second try"] == []
    assert any(event.get("line") == "D has given up" for event in events)


def test_a_second_try_that_could_not_be_or_is_not_wanted_is_not_tried_again(tmp_path: Path) -> None:
    recipe, events = load_recipe("biggan-small-32"), tmp_path / "events.jsonl"
    with EventLog(events) as log:
        log.write("recipe chosen", second=["optimizers.G.learning_rate=5e-4"])
        log.write("start", step=0, recipe=recipe.model_dump(mode="json"))
        assert second_try(events, recipe) == ("optimizers.G.learning_rate=5e-4",)
        log.write("second try", step=3, to=3, overrides=())
    assert second_try(events, recipe) == ()
    events.unlink()
    other = load_recipe("biggan-small-32", ["objective.r1_gamma=2"])
    with EventLog(events) as log:
        log.write("recipe chosen", second=["optimizers.G.learning_rate=5e-4"])
        log.write("start", step=0, recipe=recipe.model_dump(mode="json"))
        assert second_try(events, other) == ()
        for each in (other, recipe):  # changed, and put back
            log.write("start", step=5, recipe=each.model_dump(mode="json"))
    assert second_try(events, recipe) == ()


def test_a_second_try_outlives_the_process_that_began_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = run_that_gives_up(tmp_path, monkeypatch, WorksOneStep)
    trained(5)
    begun: list[None] = []

    def once(run: TrainRun, recovery: Recovery) -> Loop:
        begun.append(None)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return begin(run, recovery)

    monkeypatch.setattr("frugan.training.training.begin", once)
    with pytest.raises(KeyboardInterrupt):
        trained(7)
    run = tmp_path / "run"
    events = list(read_events(run / "events.jsonl"))
    assert [event["event"] for event in events if event["event"] == "second try"] == ["second try"]
    train(str(run), tmp_path / "pictures", options=TrainingOptions(device="cpu"))
    (changed,) = (e for e in read_events(run / "events.jsonl") if e["event"] == "changed" and "rate" in e["field"])
    assert (changed["step"], changed["now"]) == (1, "5e-05")
