"""Runs whose length is decided again as they go: resumed, repeated, and given another length by hand."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from frugan.engine.durations import Duration
from frugan.engine.run.events import Event, read_events
from frugan.engine.run.kept_time import KeptTime, NewLength
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.training.kept_time import with_length_by_hand, with_time
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import RECIPE, write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")
FIELDS = [
    "training.duration=8 steps",
    "optimizers.G.final_learning_rate=0.00001",
    "ema.run_share=0.5",
    "saving.checkpoint_every=2 steps",
]


@pytest.fixture
def slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is found slower after three steps, whatever its clock says: six steps in place of eight."""

    def decide(kept: KeptTime, step: int, *_: object) -> NewLength | None:
        is_new = step == 3 and not kept.length.earlier
        return NewLength(6, 8, 2.0, 60.0, 0.1, told=8, told_slowdown=2.0) if is_new else None

    monkeypatch.setattr(KeptTime, "decide", decide)


def weights(run: Path) -> dict[str, torch.Tensor]:
    newest = sorted((run / "checkpoints").iterdir())[-1]
    return {f"{f.name}/{k}": v for f in sorted(newest.glob("*.safetensors")) for k, v in load_file(f).items()}


def same(a: Path, b: Path) -> bool:
    mine, other = weights(a), weights(b)
    return mine.keys() == other.keys() and all(torch.equal(mine[k], other[k]) for k in mine)


def events(run: Path, kind: str) -> list[Event]:
    return [event for event in read_events(run / "events.jsonl") if event["event"] == kind]


def test_a_score_that_took_the_time_is_the_reason_for_fewer_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """Steps have become faster; that the end stays is not said, as it is past."""

    def decide(kept: KeptTime, step: int, *_: object) -> NewLength | None:
        is_new = step == 3 and not kept.length.earlier
        return NewLength(4, 8, 0.5, -9.0, 0.1, told=8, told_slowdown=0.5) if is_new else None

    monkeypatch.setattr(KeptTime, "decide", decide)
    words = [*FIELDS, "training.time=1h"]
    pictures = write_pictures(tmp_path / "pictures")
    assert (
        train(write_recipe(tmp_path), pictures, tmp_path / "run", overrides=words, options=CPU, say=said.append).step
        == 4
    )
    told = "grids and scores take more time than was kept for them: 4 steps in place of 8; the time is over"
    assert told in said


@pytest.mark.usefixtures("slower")
def test_a_new_length_is_told_and_a_resumed_or_repeated_run_does_the_same(tmp_path: Path) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    told: list[str] = []
    whole = train(
        recipe, pictures, tmp_path / "a", overrides=[*FIELDS, "training.time=1h"], options=CPU, say=told.append
    )
    assert whole.step == 6
    assert any(line.startswith("slower than thought: 6 steps in place of 8; the end stays ") for line in told)
    assert [
        line for line in told if line.startswith("ends at about ") and "steps are added" in line and "after" not in line
    ]
    (length,) = events(whole.run, "length")
    assert (length["step"], length["steps"], length["before"]) == (3, 6, 8)
    training = load_recipe(str(whole.run)).training
    assert (str(training.duration), training.earlier_lengths) == ("6 steps", ((3, 8),))

    # killed after the decision, and resumed from the checkpoint before it
    words = [*FIELDS, "training.time=1h"]
    resumed = tmp_path / "b"
    told.clear()

    def kill(event: Event) -> None:
        if event["event"] == "step" and event["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, pictures, resumed, overrides=words, options=CPU, show=kill)
    assert load_recipe(str(resumed)).training.earlier_lengths == ((3, 8),)
    assert train(str(resumed), pictures, options=CPU, say=told.append).step == 6
    (ends,) = [line for line in told if line.startswith("ends at about ")]
    assert "steps are added" in ends
    assert "after" not in ends  # the estimate says how many, and would say another number
    assert same(whole.run, resumed)

    # a new run by its recipe: as many steps, by the same schedules, whatever the clock says
    told.clear()
    again = train(str(whole.run), pictures, tmp_path / "c", options=CPU, say=told.append)
    assert again.step == 6
    assert "length: 6 steps, as that run came to; training.time=1h keeps the time instead" in told
    assert same(whole.run, again.run)
    other = train(recipe, pictures, tmp_path / "d", overrides=[FIELDS[0].replace("8", "6"), *FIELDS[1:]], options=CPU)
    assert not same(whole.run, other.run)  # schedules over six steps from the start


@pytest.mark.usefixtures("slower")
def test_a_number_of_steps_given_by_hand_holds_from_there(tmp_path: Path) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    run = train(recipe, pictures, tmp_path / "run", overrides=[*FIELDS, "training.time=1h"], options=CPU).run
    told: list[str] = []
    longer = train(str(run), pictures, overrides=["training.duration=9 steps"], options=CPU, say=told.append)
    assert longer.step == 9
    assert "length: 9 steps, whatever time they take; training.time keeps a time" in told
    training = load_recipe(str(run)).training
    assert (training.time, training.earlier_lengths) == (None, ((3, 8), (6, 6)))
    assert not any("ends at about" in line for line in told)
    assert not any("earlier_lengths" in line for line in told)


def test_the_originals_number_of_steps_is_one_given_by_hand(tmp_path: Path, said: list[str]) -> None:
    assert with_time("saehd-demo-64", ["target_iter=125"], "1h", said.append)[1] == ["target_iter=125"]
    run = RunFolder(tmp_path)
    run.write_recipe(load_recipe("saehd-demo-64", ["training.time=6min"]).model_dump(mode="json"))
    longer = with_length_by_hand(load_recipe(str(run.path), ["target_iter=125"]), run, ["target_iter=125"], said.append)
    assert (longer.training.time, str(longer.training.duration)) == (None, "125 steps")
    assert said == ["length: 125 steps, whatever time they take; training.time keeps a time"]


def test_a_run_that_is_finished_gets_more_steps_when_it_is_given_more_time(
    tmp_path: Path,
) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    run = train(recipe, pictures, tmp_path / "run", overrides=["training.duration=2 steps"], options=CPU).run
    seconds = events(run, "stop")[-1]["seconds"]
    told: list[str] = []
    longer = train(None, pictures, run, for_time=f"{3 * seconds:.3f}s", options=CPU, say=told.append)
    assert longer.finished
    assert longer.step > 2
    assert not any("is finished" in line for line in told)


@pytest.mark.parametrize("change", [[], ["saving.keep_checkpoints=3"]], ids=["as it was", "a field of no weight"])
def test_a_run_that_ended_in_its_time_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: list[str]
) -> None:
    """However much of it was left: another step would have come too late, or none was added."""
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    monkeypatch.setattr(KeptTime, "decide", lambda *_: None)
    steps = ["training.time=1h", "training.duration=2 steps"]
    run = train(recipe, pictures, tmp_path / "run", overrides=steps, options=CPU).run
    told: list[str] = []
    again = train(None, pictures, run, for_time="1h", overrides=change, options=CPU, say=told.append)
    assert again.step == 2
    assert any("its 1h are over. To train longer: frugan train" in line and " --for 120min" in line for line in told)


def test_a_time_that_the_run_has_trained_for_already_is_refused(tmp_path: Path) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    run = train(recipe, pictures, tmp_path / "run", overrides=["training.duration=2 steps"], options=CPU).run
    before = (run / "recipe.json").read_bytes()
    with pytest.raises(BadInput, match=r"--for 0\.001s: .*run has trained for 0:\d\d already; give a longer time"):
        train(None, pictures, run, for_time="0.001s", overrides=["optimizers.G.learning_rate=0.0002"], options=CPU)
    assert (run / "recipe.json").read_bytes() == before


def test_a_time_goes_with_steps_alone(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    for words, message in (
        (["training.time=3 steps"], "training.time: expected a time such as 15min or 2h"),
        (["training.time=1h", "training.duration=1h"], "training.time goes with a duration in steps"),
        (["saving.checkpoint_every=0.1", "training.duration=1h"], "saving.checkpoint_every: a share of the duration"),
        (["training.earlier_lengths=[[5, 3]]"], "with growing steps, each within its length"),
    ):
        with pytest.raises(BadInput, match=message):
            load_recipe(recipe, words)


def test_what_a_named_recipe_does_by_steps_follows_the_time(tmp_path: Path, said: list[str]) -> None:
    recipe = write_recipe(tmp_path)
    words = ["evaluation.every=5k steps", "data.flip=true"]

    def timed(for_time: str, *more: str) -> Recipe:
        said.clear()
        named, overrides = with_time(recipe, [*words, *more], for_time, said.append)
        assert isinstance(named, str)
        return load_recipe(named, overrides)

    # what is typed stays, and the recipe's own follows
    short = timed("5min")
    assert str(short.training.time) == "5min"
    assert (short.saving.checkpoint_every, short.saving.snapshot_every) == (0.125, 0.125)
    assert str(short.evaluation.every) == "5k steps"
    assert said == [
        "with --for 5min, what comes between steps goes by it too: saving.checkpoint_every=0.125, "
        "saving.snapshot_every=0.125; override with one"
    ]
    recipe = write_recipe(tmp_path, f"{RECIPE}\n[evaluation]\nevery = '5k steps'\n")
    words = []
    assert timed("5min").evaluation.every == 0.25
    assert str(timed("5min", "evaluation.every=2 steps").evaluation.every) == "2 steps"
    long = timed("9h")
    assert (str(long.saving.checkpoint_every), str(long.evaluation.every)) == ("30min", "1h")
    # by the clock already, and within the time
    words = ["saving.checkpoint_every=1min", "saving.snapshot_every=1min", "evaluation.every=1min"]
    loaded = load_recipe(recipe, words)
    again, _ = with_time(loaded, (), "5min", said.append)
    assert isinstance(again, Recipe)
    assert (again.saving, again.evaluation) == (loaded.saving, loaded.evaluation)
    shorter, _ = with_time(loaded, (), "30s", said.append)
    assert isinstance(shorter, Recipe)
    assert shorter.evaluation.every == 0.25
    assert load_recipe(recipe).evaluation.every == Duration.parse("5k steps")


def test_an_endless_run_that_is_given_a_time_tells_no_number_that_nobody_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """It is found after three steps that six are what there is time for."""

    def decide(kept: KeptTime, step: int, *_: object) -> NewLength | None:
        before = kept.length.steps
        is_new = step == 3 and not kept.length.earlier
        return NewLength(6, before, 9e5, 60.0, 0.1, told=before, told_slowdown=9e5) if is_new else None

    monkeypatch.setattr(KeptTime, "decide", decide)
    recipe, pictures, out = write_recipe(tmp_path), write_pictures(tmp_path / "pictures"), tmp_path / "run"
    endless = ["training.duration=endless", "saving.checkpoint_every=2 steps"]
    train(recipe, pictures, out, overrides=endless, options=TrainingOptions(device="cpu", stop_after="0.001s"))

    def kill(event: Event) -> None:
        if event["event"] == "step" and event["step"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(None, pictures, out, for_time="1h", options=CPU, say=said.append, show=kill)
    assert "changed from step 1 on: training.time: None -> 1h" in said
    assert any(line.startswith("steps take about 0.1 s: 6 steps; the end stays ") for line in said)
    (length,) = events(out, "length")
    assert (length["steps"], "before" in length) == (6, False)

    # the same command with a longer time goes on from the length that it had
    longer = train(recipe, pictures, out, overrides=endless, for_time="2h", options=CPU, say=said.append)
    assert longer.step == 6
    assert not [line for line in said if "000,000" in line or "1000000000" in line or "training.duration: " in line]
    training = load_recipe(str(out)).training
    assert (str(training.duration), str(training.time)) == ("6 steps", "2h")


def test_small_changes_of_a_length_are_events_and_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = {
        2: NewLength(9, 8, 0.9, 60.0, 0.1),
        3: NewLength(10, 9, 0.9, 60.0, 0.1, told=8, told_slowdown=0.02),
        5: NewLength(9, 10, 1.1, 60.0, 0.1),
    }
    monkeypatch.setattr(KeptTime, "decide", lambda kept, step, *_: lengths.pop(step, None))
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    told: list[str] = []
    words = [FIELDS[0], "training.time=1h"]
    run = train(recipe, pictures, tmp_path / "run", overrides=words, options=CPU, say=told.append).run
    assert [event["steps"] for event in events(run, "length")] == [9, 10, 9]
    assert [line.partition(";")[0] for line in told if "in place of" in line] == [
        "steps take about 0.1 s: 10 steps in place of 8"
    ]
