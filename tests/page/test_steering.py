"""What is asked of runs: as a person asks by keys and commands, once however often it is clicked."""

import json
import os
import re
import threading
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from cli.calling import Frugan, frugan
from faults.processes import CPU, assert_same
from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.engine.run.events import read_events
from frugan.engine.run.run_folder import RunFolder
from frugan.page.queue import Queue
from frugan.page.server import served
from frugan.reporting.report import RunReader
from frugan.training.training import train
from page.asking import Answer, Asking
from reporting.test_report import made_run

__all__ = ["frugan"]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def page(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    """Its queue waits: nothing is begun."""
    monkeypatch.setattr(Queue, "ensure_runner", lambda queue: None)
    with served(runs, 0) as (address, _):
        yield Asking(address)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    return minigan_and_pictures(tmp_path)


def error(answer: Answer) -> str:
    assert answer.status == 422, answer
    return str(answer.json["error"])


def words(runs: Path) -> dict[str, list[str]]:
    return {entry.run: list(entry.words) for entry in Queue(runs).entries() if entry.state == "waiting"}


def test_wishes_go_to_a_training_that_goes_on(page: Asking, runs: Path) -> None:
    run = made_run(runs / "run", steps=2, grids=0)
    assert "nobody to ask" in error(page.post("/api/runs/run/ask", {"wish": "stop"}))
    assert not (run / "requests").exists()
    about = {"host": os.uname().nodename, "process": os.getpid(), "since": "now"}
    (run / "owner.json").write_text(json.dumps(about))
    for wish in ("save", "preview", *["stop"] * 50):
        assert page.post("/api/runs/run/ask", {"wish": wish}).status == 200
    assert sorted(path.name for path in (run / "requests").iterdir()) == ["preview", "save", "stop"]
    (about,) = page.get("/api/runs").json["runs"]
    assert sorted(about["asked"]) == ["preview", "save", "stop"]
    for wish in ("dance", "", "../events.jsonl", "/tmp/x"):
        assert "expected one of save, preview, stop" in error(page.post("/api/runs/run/ask", {"wish": wish}))
    assert "is being trained already" in error(page.post("/api/runs/run/go-on", {}))


def test_a_training_that_is_only_starting_is_stopped_too(page: Asking, runs: Path, recipe: tuple[str, Path]) -> None:
    """The queue has begun it; it has no owner until its pictures are open."""
    path, pictures = recipe
    train(path, pictures, runs / "run", overrides=("training.duration=2 steps",), options=CPU)
    begun = {"run": "run", "words": ["there"], "state": "running", "process": str(os.getpid()), "code": None}
    (runs / "queue.json").write_text(json.dumps({"entries": [begun]}), "utf-8")
    assert "is being trained already" in error(page.post("/api/runs/run/go-on", {}))
    fields = {"training.duration": "9 steps"}
    assert page.post("/api/runs/run/go-on", {"fields": fields, "data": str(pictures)}).status == 200
    assert (runs / "run" / "requests" / "stop").exists()


def test_a_run_that_waits_says_for_what(page: Asking, runs: Path) -> None:
    for run in ("one", "other"):
        made_run(runs / run, steps=2, grids=0)
    about = {"host": os.uname().nodename, "process": os.getpid(), "since": "now"}
    (runs / "other" / "owner.json").write_text(json.dumps(about))
    Queue(runs).add("new", ["there"])
    Queue(runs).add("one", ["there"])
    assert page.get("/api/runs/new").json["sentence"] == "Waits until other has ended."
    assert page.get("/api/runs/one").json["sentence"] == "Waits until new, other have ended."
    (runs / "other" / "owner.json").unlink()
    assert page.get("/api/runs/new").json["sentence"] == ""


def test_a_new_run_waits_in_the_queue(page: Asking, runs: Path, recipe: tuple[str, Path]) -> None:
    path, pictures = recipe
    asked = {"name": "new", "recipe": path, "data": str(pictures), "fields": "'training.duration=3 steps'", "for": ""}
    for _ in range(3):
        assert page.post("/api/start", {**asked, "device": "cpu", "memory": "6GiB"}).status == 200
    expected = [path, "training.duration=3 steps", "--data", str(pictures), "--device", "cpu", "--memory", "6GiB"]
    assert words(runs) == {"new": [*expected, "--out", str(runs / "new")]}
    assert page.post("/api/start", {"name": "own", "data": f"a={pictures}\n\nb={pictures}", "for": "2h"}).status == 200
    chosen = ["--data", f"a={pictures}", "--data", f"b={pictures}", "--for", "2h", "--out", str(runs / "own")]
    assert words(runs)["own"] == chosen
    timed = {"name": "timed", "recipe": path, "data": str(pictures), "for": "2h"}
    assert page.post("/api/start", timed).status == 200
    assert words(runs)["timed"] == [path, "--data", str(pictures), "--for", "2h", "--out", str(runs / "timed")]
    other = {**asked, "fields": "'training.duration=4 steps'"}
    assert "new: waits in the queue already" in error(page.post("/api/start", {**other, "device": "cpu"}))
    for run in ("new", "own", "timed"):
        assert page.post("/api/queue", {"run": run, "do": "remove"}).status == 200
    assert words(runs) == {}


def test_the_page_says_which_names_it_takes() -> None:
    """The browser refuses others before they are sent, and shows the title."""
    page = (resources.files("frugan") / "page" / "page.html").read_text("utf-8")
    (field,) = re.findall(r'<input name="name"[^>]*>\n<small>[^<]*', page)
    said = "etters from a to z, digits, dots, dashes and underscores; no spaces"
    assert f'title="l{said}"' in field
    assert field.endswith(f"<small>L{said}.")


FIELDS = {
    "a run's name": "name",
    "is there already": "name",
    "biggan-nothing": "recipe",
    "did you mean": "fields",
    "networks.channels": "fields",
    "where are the pictures": "data",
    "there is nothing": "data",
    "expected a device such as": "device",
    "is not a size": "memory",
    "expected a time such as": "for",
    "No closing quotation": "fields",
}
"""What is said of a value -> field of the form beside which it stands."""


def test_what_cannot_be_trained_is_refused_at_once(page: Asking, runs: Path, recipe: tuple[str, Path]) -> None:
    path, pictures = recipe
    made_run(runs / "there", steps=2, grids=0)
    right = {"name": "new", "recipe": path, "data": str(pictures)}
    wrong: list[tuple[dict[str, Any], str]] = [
        *(({"name": name}, "a run's name") for name in ("", "..", "a/b", "../a", ".queue", "a b", "-a", "a" * 200)),
        ({"name": "there"}, "is there already"),
        ({"recipe": "biggan-nothing"}, "biggan-nothing"),
        ({"recipe": "--out=/tmp/x"}, "an option does not belong there"),
        ({"fields": "--out /tmp/x"}, "an option does not belong there"),
        ({"fields": "training.durration=3"}, "did you mean"),
        ({"fields": "networks.channels=-1"}, "networks.channels"),
        ({"data": ""}, "where are the pictures"),
        ({"data": "/none/such"}, "there is nothing"),
        ({"device": "--out"}, "an option does not belong there"),
        ({"device": "gpu9"}, "expected a device such as"),
        ({"memory": "6"}, "is not a size"),
        ({"recipe": "", "for": "soon"}, "expected a time such as"),
        ({"recipe": "", "fields": "data.holdout=0.2 data.fit=padd"}, "data.fit"),
        ({"recipe": "", "fields": "data.holdout=1.2"}, "data.holdout"),
        ({"recipe": "", "fields": "training.durration=3"}, "did you mean"),
        ({"fields": "'training.duration=3 steps"}, "No closing quotation"),
        ({"memory": 6}, "expected a text"),
    ]
    for change, line in wrong:
        assert line in error(page.post("/api/start", {**right, **change})), change
        if field := FIELDS.get(line):
            assert list(page.post("/api/start", {**right, **change}).json["fields"]) == [field], change
    assert "--for" not in error(page.post("/api/start", {**right, "for": "soon"}))
    assert "expected remove or first" in error(page.post("/api/queue", {"run": "new", "do": "explode"}))
    assert words(runs) == {}
    fields = "data.holdout=0.2 data.fit=pad networks.mapping_layers=4"  # of some of the recipes that may be chosen
    assert page.post("/api/start", {**right, "recipe": "", "fields": fields}).status == 200
    assert list(words(runs)) == ["new"]


def test_a_run_from_elsewhere_brings_no_options_of_its_own(page: Asking, runs: Path, recipe: tuple[str, Path]) -> None:
    train(*recipe, runs / "run", overrides=("training.duration=2 steps",), options=CPU)
    events = runs / "run" / "events.jsonl"
    (start,) = [event for event in read_events(events) if event["event"] == "start"]
    here = runs.parent / "here"
    here.mkdir()
    for command, expected in (
        ("frugan train x --data here --out /elsewhere --wandb spy --device cpu", ["--data", "here", "--device", "cpu"]),
        ("torchrun --nproc-per-node=2 -m frugan train x --data here", None),
        (None, None),
    ):
        with events.open("a") as file:
            file.write(json.dumps({**start, "command": command, "directory": str(here.parent)}) + "\n")
        answer = page.post("/api/runs/run/go-on", {"fields": {"training.duration": "4 steps"}})
        if expected is None:
            assert answer.status == 422
            continue
        assert answer.status == 200
        run = str(runs / "run")
        assert words(runs)["run"] == [run, "training.duration=4 steps", "--data", str(here), "--device", "cpu"]
    here.rmdir()
    with events.open("a") as file:
        file.write(json.dumps({**start, "command": "frugan train x --data here", "directory": str(here.parent)}) + "\n")
    before = words(runs)
    gone = error(page.post("/api/runs/run/go-on", {"fields": {"training.duration": "5 steps"}}))
    assert f"{here}: its pictures are no longer there" in gone
    assert words(runs) == before
    for data in (str(recipe[1]), f"x={recipe[1]}"):  # whoever says where they are, may go on all the same
        assert page.post("/api/runs/run/go-on", {"data": data}).status == 200
        assert words(runs)["run"] == [run, "--data", data]


def test_what_may_change_and_what_may_not(page: Asking, runs: Path, recipe: tuple[str, Path]) -> None:
    train(*recipe, runs / "run", overrides=("training.duration=2 steps",), options=CPU)
    fields = {field["key"]: field for field in page.get("/api/runs/run/fields").json}
    rate = fields["optimizers.G.learning_rate"]
    assert (rate["value"], rate["values"], rate["limits"]) == ("0.001", "number", "above 0")
    assert "networks.channels" not in fields
    assert "training.earlier_lengths" not in fields  # noted by runs, typed by nobody
    for change, line in (
        ({"networks.channels": "8"}, "cannot change"),
        ({"optimizers.G.learning_rate": "-1"}, "optimizers.G.learning_rate"),
        ({"optimizers.G.learning_rate": "fast"}, "optimizers.G.learning_rate"),
        ({"optimizers.G.rate": "1"}, "unknown key"),
        ({"--out": "x"}, "an option does not belong there"),
    ):
        assert line in error(page.post("/api/runs/run/go-on", {"fields": change})), change
    assert error(page.post("/api/runs/run/go-on", {"fields": ["x"]}))
    assert words(runs) == {}


def test_wrong_values_are_told_by_field_in_plain_words(page: Asking, runs: Path, recipe: tuple[str, Path]) -> None:
    train(*recipe, runs / "run", overrides=("training.duration=2 steps",), options=CPU)
    a_time, a_duration = "expected a time such as 15min or 2h", "expected a number with a unit, such as '150k steps'"
    for key, value, reason in (
        ("training.time", "fifteen", a_time),
        ("training.time", "9 steps", a_time),
        ("training.time", "15", "in which unit? Write 15min, 15s or 15h"),
        ("training.duration", "fifteen", a_duration),
        ("optimizers.G.learning_rate", "-1", "must be greater than 0"),
    ):
        answer = page.post("/api/runs/run/go-on", {"fields": {key: value}})
        told = answer.json["fields"]
        assert list(told) == [key]
        assert told[key].startswith(reason)
        assert error(answer) == f"{key}: {told[key]}"
        assert str(runs) not in error(answer)
    two = page.post("/api/runs/run/go-on", {"fields": {"training.time": "x", "training.duration": "y"}})
    assert two.json["fields"].keys() == {"training.time", "training.duration"}
    assert words(runs) == {}


def test_a_length_that_a_run_is_beyond_is_refused_before_it_is_stopped(
    page: Asking, runs: Path, recipe: tuple[str, Path]
) -> None:
    train(*recipe, runs / "run", overrides=("training.duration=3 steps",), options=CPU)
    Queue(runs).path.write_text(json.dumps({"entries": [{"run": "run", "words": [], "state": "running"}]}))
    stop = runs / "run" / "requests" / "stop"
    for key, value, reason in (
        ("training.duration", "2 steps", "the run is at step 3 already; expected more"),
        ("training.time", "0.001s", r"the run has trained for 0:\d\d already; give a longer time"),
    ):
        answer = page.post("/api/runs/run/go-on", {"fields": {key: value}})
        assert re.match(reason, answer.json["fields"][key])
        assert error(answer).startswith(key)
    assert (words(runs), stop.exists()) == ({}, False)
    assert page.post("/api/runs/run/go-on", {"fields": {"training.duration": "4 steps"}}).status == 200
    assert stop.exists()


def test_a_length_in_place_of_a_time_is_told(page: Asking, runs: Path, recipe: tuple[str, Path]) -> None:
    train(*recipe, runs / "run", for_time="3s", options=CPU)
    for fields, told in (
        ({"training.time": "5s"}, ""),
        ({"training.duration": "endless"}, ""),
        (
            {"training.duration": "9M steps"},
            "run no longer keeps its time of 3s: it trains 9M steps, however long that takes.",
        ),
    ):
        answer = page.post("/api/runs/run/go-on", {"fields": fields})
        assert (answer.status, answer.json["told"]) == (200, told)


def test_a_change_saves_stops_and_goes_on(page: Asking, runs: Path, recipe: tuple[str, Path], frugan: Frugan) -> None:
    """By a training that goes on; what the queue would begin is begun here. The report shows the change."""
    path, pictures = recipe
    changes = {"optimizers.G.learning_rate": "0.0005", "training.duration": "9000 steps"}
    answers: list[Answer] = []

    def meanwhile() -> None:
        while not any("step" in run for run in page.get("/api/runs").json["runs"]):
            pass
        answers.extend(page.post("/api/runs/run/go-on", {"fields": changes}) for _ in range(3))

    thread = threading.Thread(target=meanwhile)
    thread.start()
    result = train(path, pictures, runs / "run", overrides=("training.duration=100k steps",), options=CPU)
    thread.join()
    assert not result.finished
    assert answers[0].status == 200
    (entry,) = Queue(runs).entries()
    assert entry.at_once  # however often it was clicked, also after it had stopped
    (go_on,) = words(runs).values()
    assert go_on[0] == str(runs / "run")
    (runs / "run" / "requests" / "stop").unlink(missing_ok=True)  # as what works the queue off does
    last = [*go_on, f"training.duration={result.step + 2} steps", "--no-tensorboard"]
    assert frugan("train", *last).returncode == 0
    changed = [event for event in read_events(runs / "run" / "events.jsonl") if event["event"] == "changed"]
    assert {event["field"] for event in changed} == set(changes)
    reader = RunReader(RunFolder(runs / "run"), "run")
    reader.read()
    said = [line for kind, line in reader.view(None).notes if kind == "choice"]
    assert f"changed from step {result.step} on: optimizers.G.learning_rate: 0.001 -> 0.0005" in [
        line.replace(",", "") for line in said
    ]


def test_training_is_the_same_to_the_bit_with_the_page_open(
    page: Asking, runs: Path, recipe: tuple[str, Path], tmp_path: Path
) -> None:
    """Somebody looks at everything all the time, saves and draws previews."""
    end = ("training.duration=30 steps", "saving.checkpoint_every=20 steps")
    train(*recipe, tmp_path / "alone", overrides=end, options=CPU)
    over = threading.Event()
    looks: list[dict[str, Any]] = []

    def look() -> None:
        while not over.is_set():
            for about in page.get("/api/runs").json["runs"]:
                page.get(f"/api/runs/{about['name']}")
                if len(looks) % 8 == 4:
                    page.post(f"/api/runs/{about['name']}/ask", {"wish": "save" if len(looks) % 16 == 4 else "preview"})
                looks.append(about)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        train(*recipe, runs / "watched", overrides=end, options=CPU)
    finally:
        over.set()
        thread.join()
    assert any(about["state"] == "running" for about in looks)
    assert_same(tmp_path / "alone", runs / "watched")
