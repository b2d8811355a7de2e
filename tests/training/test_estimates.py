"""Before the first step: threads by measurement, an estimate, and what would be shorter."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.accelerator.precision import resolve_precision
from frugan.contract.family import GridRequest
from frugan.engine.plan import Plan
from frugan.engine.run.events import read_events
from frugan.engine.run.kept_time import KeptTime
from frugan.errors import BadInput
from frugan.planning.predictions import least_work
from frugan.planning.recipe_predictions import shipped_predictions, subject
from frugan.recipe.loading import load_recipe
from frugan.recipes import built_in
from frugan.sampling.sampling import sample
from frugan.training.estimates import no_score, short_course, slow_average, smaller_recipe
from frugan.training.run import TrainingOptions
from frugan.training.shorter_training import advice
from frugan.training.training import train
from frugan.wording import duration
from limits import Limit
from training.pictures import write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, limit: Limit) -> list[int]:
    """A machine of 2 cores on which 1 thread is the fastest, and any step is worth timing; takes the timings.

    Only the number is set: two threads that wait for each other would make the tests slow, as they do trainings.
    """
    number = [2]
    monkeypatch.setattr(torch, "set_num_threads", lambda count: number.__setitem__(0, count))
    monkeypatch.setattr(torch, "get_num_threads", lambda: number[0])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("frugan.accelerator.device.available_cores", lambda: 2)
    monkeypatch.setattr("frugan.engine.run.threads.machine_name", lambda: "this machine")
    limit("steps worth timing", 0)
    limit("steps worth an estimate", 1)
    ran: list[int] = []

    def time_counts(time_step: Callable[[], float], counts: Sequence[int], _: Callable[[], bool]) -> dict[int, float]:
        assert time_step() > 0
        ran.append(len(counts))
        return {1: 0.15, 2: 3.7}

    monkeypatch.setattr("frugan.engine.run.threads.time_counts", time_counts)
    return ran


def _threads(run: Path) -> object:
    return json.loads((sorted((run / "checkpoints").iterdir())[-1] / "state.json").read_text())["threads"]


def test_threads_are_timed_once_kept_and_looked_at_again_elsewhere(
    tmp_path: Path, timed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    recipe, pictures = minigan_and_pictures(tmp_path)
    lines: list[str] = []

    def train_to(steps: int) -> None:
        lines.clear()
        words = [f"training.duration={steps} steps"]
        train(recipe, pictures, tmp_path / "run", options=CPU, overrides=words, say=lines.append)

    train_to(1)
    words = "threads: 1, the fastest here (0.15 s a step with 1, 3.7 s with 2); override with OMP_NUM_THREADS"
    assert words in lines
    assert "estimate: about 0.15 s a step, 0.15 s for 1 steps" in lines
    assert _threads(tmp_path / "run") == {"number": 1, "machine": "this machine"}
    assert torch.get_num_threads() == 2  # the caller's own
    train_to(2)
    assert "threads: 1, as the run had here; override with OMP_NUM_THREADS" in lines
    assert len(timed) == 1
    monkeypatch.setattr("frugan.engine.run.threads.machine_name", lambda: "another one")
    train_to(3)
    assert any("the run was on another machine, with 1;" in line for line in lines)
    assert len(timed) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    train_to(4)
    assert (
        "threads: 2, as OMP_NUM_THREADS=2 says; the run had 1: from here on results may differ by rounding"
    ) in lines
    assert len(timed) == 2
    said = [e["line"] for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "choice"]
    assert words in said


def test_an_estimate_goes_by_the_time_that_is_kept(
    tmp_path: Path, timed: list[int], monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """Steps that were planned for another time, or another machine, do not count when a run goes on for a time."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    recipe, pictures = minigan_and_pictures(tmp_path)
    words = ["training.duration=20000 steps"]
    train(recipe, pictures, tmp_path / "run", options=replace(CPU, stop_after="0.1s"), overrides=words)
    monkeypatch.setattr("frugan.engine.run.threads.machine_name", lambda: "another one")  # steps are timed again
    monkeypatch.setattr(KeptTime, "left", lambda *_: 240.0)
    options = replace(CPU, stop_after="0.1s")
    train(None, pictures, tmp_path / "run", for_time="4min", options=options, say=said.append)
    assert timed
    (estimate,) = (line for line in said if line.startswith("estimate: "))
    assert estimate == (
        "estimate: about 0.15 s a step: 1,600 in the 4.0 min that are left, less what grids and scores take"
    )


@pytest.mark.parametrize(("seconds", "warned"), [(2.0, True), (240.0, False)])
def test_a_time_for_too_few_steps_to_see_anything_is_warned_of(
    seconds: float,
    warned: bool,
    tmp_path: Path,
    timed: list[int],
    monkeypatch: pytest.MonkeyPatch,
    said: list[str],
) -> None:
    """But not a run that begins with weights."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    recipe, pictures = minigan_and_pictures(tmp_path)
    monkeypatch.setattr(KeptTime, "left", lambda *_: seconds)
    options = replace(CPU, stop_after="0.1s")
    train(recipe, pictures, tmp_path / "run", for_time="4min", options=options, say=said.append)
    line = "warning: 13 steps from random weights make nothing to look at yet: give a longer time (--for)"
    assert sum(each.startswith(line) for each in said) == warned
    assert timed
    said.clear()
    init = tmp_path / "run"
    train(recipe, pictures, tmp_path / "tuned", for_time="4min", options=options, init=init, say=said.append)
    assert not [each for each in said if each.startswith(line)]


def test_a_time_that_no_step_fits_in_is_refused(
    tmp_path: Path, timed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    recipe, pictures = minigan_and_pictures(tmp_path)
    monkeypatch.setattr(KeptTime, "left", lambda *_: 0.1)
    with pytest.raises(BadInput, match=r"one step alone takes about 0\.15 s, and of the 4\.0 min of --for"):
        train(recipe, pictures, tmp_path / "run", for_time="4min", options=CPU)
    assert timed
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(KeptTime, "left", lambda *_: 240.0)
    options = replace(CPU, stop_after="0.1s")
    assert train(recipe, pictures, tmp_path / "run", for_time="4min", options=options).step > 0  # nothing is in the way


@pytest.mark.parametrize(
    ("recipe", "advice"),
    [
        ("quick96", ", or a smaller recipe: saehd-demo-64"),
        ("saehd-df-ud-256", ", or a smaller recipe: saehd-demo-64"),
        ("amp-256", ", or a smaller recipe: amp-small-64"),
        ("xseg", ", or a smaller recipe: xseg-small"),
        ("saehd-demo-64", ""),
        ("biggan-cifar10-32", ", or a smaller recipe: `frugan train --data ... --for ...` without one chooses"),
    ],
)
def test_a_smaller_recipe_is_one_for_the_same_kind_of_data(recipe: str, advice: str) -> None:
    assert smaller_recipe(load_recipe(recipe)) == advice


@pytest.mark.long
def test_timing_changes_no_bit(tmp_path: Path, timed: list[int], monkeypatch: pytest.MonkeyPatch, limit: Limit) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    words = ["training.duration=2 steps"]
    train(recipe, pictures, tmp_path / "timed", options=CPU, overrides=words)
    assert timed
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    limit("steps worth an estimate", 100)
    train(recipe, pictures, tmp_path / "plain", options=CPU, overrides=words)
    mine, other = (tmp_path / run / "checkpoints" / "step-000000002" for run in ("timed", "plain"))
    for file in ("networks", "ema", "optimizers"):
        one, two = (load_file(where / f"{file}.safetensors") for where in (mine, other))
        assert one.keys() == two.keys()
        assert [key for key in one if not torch.equal(one[key], two[key])] == []


@pytest.mark.long
def test_steps_that_become_slow_are_timed_again(
    tmp_path: Path, timed: list[int], monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    monkeypatch.setattr("frugan.engine.run.step_log.StepTimer.slowed", lambda timer: 12.0 if len(timed) == 1 else None)
    monkeypatch.setattr("frugan.engine.run.threads.fastest", lambda seconds_of: 2 if len(timed) == 1 else 1)
    train(recipe, pictures, tmp_path / "run", options=CPU, overrides=["training.duration=3 steps"], say=said.append)
    assert (
        "threads at step 1: steps take 12.0 times as long as they did "
        "(timed again: 0.15 s a step with 1, 3.7 s with 2): 1 from here on"
    ) in said
    assert _threads(tmp_path / "run") == {"number": 1, "machine": "this machine"}


def test_a_short_run_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("frugan.engine.run.threads.rehearse", lambda *_: 1 / 0)
    train(recipe, pictures, tmp_path / "run", options=CPU, overrides=["training.duration=1 step"], say=said.append)
    assert not [line for line in said if line.startswith(("threads", "estimate"))]


def test_a_long_training_is_told_what_would_be_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("biggan-cifar10-32")
    file = shipped_predictions("biggan-cifar10-32")
    assert file is not None
    counted = SimpleNamespace(work=least_work(file))  # counting takes seconds, and has tests of its own
    monkeypatch.setattr("frugan.training.shorter_training.predict", lambda *_, rough: counted)
    plan = Plan(recipe.training.normalisation_batch or 1, resolve_precision("fp32", torch.device("cpu")))
    day = 24 * 3600.0
    line = advice(recipe, "biggan-cifar10-32", plan, 6.0, 125_000, 2 * day)
    smaller, card = line.removeprefix("; ").split("; ")
    name = smaller.split(",")[0]
    assert name in built_in()
    assert name != "biggan-cifar10-32"
    assert " takes about " in smaller
    assert card.startswith("this one wants a card such as ")
    assert re.search(r": about \S+ \w+ by its maker's figures \(\S+( \w+)? to \S+ \w+\)$", card)
    slow = advice(recipe, "biggan-cifar10-32", plan, 6e6, 125_000, 2 * day)
    assert "smaller" not in slow  # nothing that ships ends in time
    assert "wants a card" in slow


def test_times_are_said_as_one_says_them() -> None:
    said = [duration(seconds) for seconds in (0.0123, 0.3, 9.94, 61, 500, 4000, 20_000, 200_000, 3e6)]
    assert said == ["0.012 s", "0.3 s", "9.9 s", "61 s", "8.3 min", "67 min", "5.6 h", "2.3 days", "35 days"]


def test_rows_of_grids_are_named(tmp_path: Path) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    train(recipe, pictures, tmp_path / "run", options=CPU, overrides=["training.duration=1 step"])
    samples = tmp_path / "run" / "samples"
    with (
        Image.open(samples / "step-000000001-samples.png") as grid,
        Image.open(samples / "step-000000001-interpolation.png") as interpolation,
    ):
        assert grid.info["Rows"] == "dunkel ü\nhell"
        assert "Rows" not in interpolation.info
    paths = [
        sample(tmp_path / "run", tmp_path / name, request, device="cpu", say=lambda _: None)[0]
        for name, request in {"all": GridRequest(columns=3), "one": GridRequest(columns=3, classes=(1,))}.items()
    ]
    for path, expected in zip(paths, ("dunkel ü\nhell", "hell"), strict=True):
        with Image.open(path) as grid:
            assert grid.info["Rows"] == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["training.duration=40k steps"],
            "last 10,000 steps, and the run has 40,000:.*ema.run_share=0.1 ",
        ),
        (
            ["training.duration=4M images"],
            "last 10,000 steps, and the run has 40,000:.*ema.run_share=0.1 ",
        ),
        (["training.duration=50k steps"], None),  # a fifth
        (["training.duration=6h"], None),
        (["training.duration=10k steps", "ema.start=10001 steps"], None),  # a copy throughout
        (["training.duration=1k steps", "ema.decay=0"], None),
        (
            ["training.duration=1k steps", "ema.schedule=half-life", "ema.half_life_images=50000"],
            "over about the last 722 steps.*ema.run_share=0.1 would",
        ),
    ],
)
def test_an_average_too_slow_for_the_run_is_warned_of(words: list[str], said: str | None) -> None:
    recipe = load_recipe("biggan-cifar10-32", ["training.batch=100", *words])
    line = slow_average(recipe)
    assert (line is None) if said is None else (line is not None and re.search(said, line))


def test_no_recipe_that_ships_is_warned_of() -> None:
    assert short_course(load_recipe("r3gan-small-64", ["training.duration=300 steps"])) is None
    assert [name for name in built_in() if slow_average(load_recipe(name))] == []


BY_CLOCK = ("training.burn_in=100 steps",)
"""A recipe whose values fall needs it where the run has no number of steps."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["training.duration=300 steps"], "every 400 steps is longer than the run, 300 steps: .*every=1.0 takes one"),
        (["training.duration=400 steps"], None),
        (["training.duration=300 steps", "evaluation.every=1.0"], None),
        (["training.duration=300 steps", "evaluation.every=none"], None),
        (["training.duration=10 steps"], None),  # nobody scores that
        ([*BY_CLOCK, "training.duration=6h"], None),
        (
            [*BY_CLOCK, "training.duration=1h", "evaluation.every=2h"],
            "2h is longer than the run, 1h: .*every=1h takes one",
        ),
        (["training.time=1h", "evaluation.every=2h"], "2h is longer than the run, 1h: .*every=1.0 takes one"),
        (["training.time=3h", "evaluation.every=2h"], None),
    ],
)
def test_a_run_that_ends_before_its_first_score_is_warned_of(words: list[str], said: str | None) -> None:
    line = no_score(load_recipe("biggan-small-32", words))
    assert (line is None) if said is None else (line is not None and re.search(said, line))


def test_what_is_warned_of_a_kept_time_goes_by_the_steps_that_it_comes_to(
    tmp_path: Path, limit: Limit, said: list[str]
) -> None:
    """Of the 100k steps that the recipe has, the average would be over a tenth, and a score would come."""
    limit("steps worth an estimate", 1)
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    words = ["training.duration=100k steps", "training.time=2s", "ema.decay=0.9999", "evaluation.every=50k steps"]
    words += ["evaluation.metrics=['two-sample']", "evaluation.best_by=two_sample", "data.allow_upscale=true"]
    words += ["evaluation.samples=30"]
    train(recipe, pictures, tmp_path / "run", options=CPU, overrides=words, say=said.append)
    estimate = next(at for at, line in enumerate(said) if line.startswith("estimate: "))
    steps = re.search(r"a step: ([\d,]+) in the", said[estimate])
    assert steps is not None
    assert f"and the run has {steps[1]}: so samples" in said[estimate + 1]
    assert f"50k steps is longer than the run, {steps[1]} steps: no score is taken" in said[estimate + 2]


@pytest.mark.long
def test_the_warning_opens_the_training_once(tmp_path: Path, limit: Limit, said: list[str]) -> None:
    limit("steps worth an estimate", 3)
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    train(recipe, pictures, tmp_path / "run", options=CPU, overrides=["training.duration=3 steps"], say=said.append)
    assert sum(line.startswith("warning: the average, from which samples are drawn") for line in said) == 1


def test_predictions_made_before_the_ramp_was_a_field_still_hold() -> None:
    assert "ramp" not in subject(load_recipe("biggan-digits-32"))["ema"]
    ramped = ["ema.schedule=ramp", "ema.ramp=80 images"]
    assert subject(load_recipe("biggan-digits-32", ramped))["ema"]["ramp"] == "80 images"


def test_a_burn_in_that_the_end_cuts_off_is_told() -> None:
    line = short_course(load_recipe("r3gan-ffhq-64", ["training.duration=300 steps"]))
    assert line is not None
    assert line.startswith("training.burn_in 20M images is longer than the run, 300 steps: ")
    assert "gets 0.0% of its way; training.burn_in=0.5 is half" in line
    assert short_course(load_recipe("r3gan-small-64", ["training.duration=300 steps"])) is None
    assert [name for name in built_in() if short_course(load_recipe(name))] == []
