"""What the page tells of runs: where they stand, what is new of their curves, their sheets."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from frugan.engine.run.events import EventLog
from frugan.engine.run.run_folder import RunFolder
from frugan.metrics.provenance import ALIKE, AS_REAL
from frugan.page.latents import Latents
from frugan.page.pictures import Thumbnails, columns_of, rows_of
from frugan.page.runs import TAIL_BYTES, NoRun, Runs
from frugan.page.server import Page, served
from frugan.recipe.loading import load_recipe
from frugan.reporting.grids import write_grid
from frugan.reporting.report import page_of
from page.asking import Asking
from reporting.test_report import made_run, taken

ABOUT = {"frugan": "0.1", "torch": "2", "machine": "here", "device": "cpu", "data": {}, "recipe": {}}


def write_steps(log: EventLog, steps: range) -> None:
    for step in steps:
        phases = {"D": {"terms": {"real": float(step)}, "gradient_norm": 1.0, "loss_scale": 1.0, "skipped": 0}}
        numbers = {"images": 8 * step, "seconds": float(step), "images_per_second": 8.0, "eta_seconds": 60.0}
        log.write("step", step=step, phases=phases, **numbers)


def begun_run(path: Path, steps: int) -> Path:
    with EventLog(path / "events.jsonl") as log:
        log.write("start", step=0, **ABOUT)
        write_steps(log, range(1, steps + 1))
    return path


def owned(run: Path) -> None:
    about = {"host": os.uname().nodename, "process": os.getpid(), "since": "now"}
    (run / "owner.json").write_text(json.dumps(about))


def state(runs: Runs, name: str) -> str:
    return str(runs.glance(name)["state"])


def test_where_a_run_stands(tmp_path: Path) -> None:
    runs, run = Runs(tmp_path), begun_run(tmp_path / "run", 30)
    assert state(runs, "run") == "died"  # it has no owner, and has not said that it stopped
    owned(run)
    about = runs.glance("run")
    assert (about["state"], about["step"], about["left"], about["done"]) == ("running", 30, "1:00", 1 / 3)
    with EventLog(run / "events.jsonl") as log:
        log.write("stop", over=False, signal="request", step=30, seconds=30.0)
        log.write("snapshot", step=30, paths=[])
    assert state(runs, "run") == "running"  # it still writes its checkpoint
    (run / "owner.json").unlink()
    assert state(runs, "run") == "stopped"
    with EventLog(run / "events.jsonl") as log:
        log.write("start", step=30, **ABOUT)
    assert state(runs, "run") == "died"
    with EventLog(run / "events.jsonl") as log:
        log.write("stop", over=True, signal=None, step=31, seconds=31.0)
    about = runs.glance("run")
    assert (about["state"], about["done"], about["step"]) == ("finished", 1.0, 30)


def test_a_run_that_was_made_longer_has_not_come_as_far(tmp_path: Path) -> None:
    runs, run = Runs(tmp_path), begun_run(tmp_path / "run", 30)
    with EventLog(run / "events.jsonl") as log:
        log.write("stop", over=True, signal=None, step=30, seconds=30.0)
        log.write("start", step=30, **ABOUT)
        log.write("resume", step=30)
    assert not {"done", "left"} & runs.glance("run").keys()  # it was stopped before it knew
    with EventLog(run / "events.jsonl") as log:
        log.write("length", step=30, steps=120)
        log.write("stop", over=False, signal="SIGINT", step=30, seconds=30.0)
    about = runs.glance("run")
    assert (about["state"], about["done"], "left" in about) == ("stopped", 0.25, False)
    with EventLog(run / "events.jsonl") as log:
        write_steps(log, range(31, 32))
    assert runs.glance("run")["left"] == "1:00"


@pytest.mark.parametrize("steps_after", [0, 3])
def test_a_card_has_the_last_score(tmp_path: Path, steps_after: int) -> None:
    runs, run = Runs(tmp_path), begun_run(tmp_path / "run", 3)
    assert "score" not in runs.glance("run")
    with EventLog(run / "events.jsonl") as log:
        for share in (0.9, 0.75):
            log.write("metrics", step=3, scores={"two_sample": share}, provenance={})
        write_steps(log, range(4, 4 + steps_after))
    about = runs.glance("run")
    assert about["score"] == "told from real pictures 75 times in 100"
    assert about["step"] == 3 + steps_after
    with EventLog(run / "events.jsonl") as log:
        log.write("metrics", step=3, scores={"two_sample": 0.5}, provenance={"blind": "two-sample"})
    assert "score" not in runs.glance("run")


def test_what_has_no_weights_or_makes_pictures_of_given_ones_is_not_explored(tmp_path: Path) -> None:
    for name, recipe in (("faces", "saehd-df-ud-256"), ("digits", "biggan-digits-32")):
        run = RunFolder(begun_run(tmp_path / name, 3))
        run.write_recipe(load_recipe(recipe).model_dump(mode="json"))
        (run.checkpoints / "step-000000003").mkdir(parents=True)
    begun_run(tmp_path / "begun", 3)
    runs = Runs(tmp_path)
    assert [name for name in runs.names() if runs.view(name)["explorable"]] == ["digits"]
    assert Latents(runs).sources() == ["digits"]
    assert Latents(runs).show_given()
    (runs.folder("faces").checkpoints / "step-000000003").rmdir()
    assert not Latents(runs).show_given()


def test_an_imported_model_has_not_ended_by_itself(tmp_path: Path) -> None:
    """Until it is trained here: then it may."""
    with EventLog(tmp_path / "faces" / "events.jsonl") as log:
        log.write("imported", step=12345, source="model", format="leras")
    runs = Runs(tmp_path)
    assert state(runs, "faces") == "imported"
    goes_on = f"frugan train {tmp_path / 'faces'} --data PICTURES goes on from it."
    assert runs.view("faces")["sentence"] == f"Imported at step 12,345, not trained here yet: {goes_on}"
    assert "Imported at step 12,345" in page_of([tmp_path / "faces"])
    with EventLog(tmp_path / "faces" / "events.jsonl") as log:
        log.write("resume", step=12345, **ABOUT)
    assert state(runs, "faces") == "died"
    assert "Ended" in page_of([tmp_path / "faces"])


@pytest.mark.parametrize("classes", [ALIKE, AS_REAL])
def test_scores_of_evaluate_count_as_those_of_the_training(tmp_path: Path, classes: str) -> None:
    """Of the newest weights that have any; what was made of few classes or with a truncation is not the run's."""
    runs, run = Runs(tmp_path), begun_run(tmp_path / "run", 30)
    with EventLog(run / "events.jsonl") as log:
        log.write("metrics", step=20, scores={"two_sample": 0.9, "fid": 90.0}, provenance={})
        log.write("stop", over=True, signal=None, step=30, seconds=30.0)
    of_first = taken(10, 5.0, {"two_sample": 0.6})
    RunFolder(run).scores.write_text(of_first, "utf-8")
    assert runs.glance("run")["score"] == "told from real pictures 90 times in 100"
    alone = json.loads(taken(30, 5.0, control="two-sample sees a blur of 2 pixels", blind="pr"))
    alone["scores"] = {"two_sample": 0.75}
    alone["provenance"]["classes"] = classes
    of_few = [taken(30, 1.0, truncation=0.5), taken(30, 1.0, classes="0,3")]
    lines = [of_first, json.dumps(alone) + "\n", taken(30, 7.25, classes=classes), *of_few]
    RunFolder(run).scores.write_text("".join(lines), "utf-8")
    view = runs.view("run")
    assert view["score"] == "told from real pictures 75 times in 100"
    shown = [(headline["name"], headline["value"]) for headline in view["headlines"]]
    assert shown == [("told from real pictures", "75 times in 100"), ("FID", "7.25")]
    assert "sees a blur of 2 pixels" in view["headlines"][0]["about"]
    assert view["sentence"].startswith(
        "Finished: a small network still tells its pictures from real ones 75 times in 100"
    )
    assert "<b>75 times in 100</b>" in page_of([run])


def test_runs_that_are_trained_do_not_change_places(tmp_path: Path) -> None:
    for number, name in enumerate(("c", "a", "b", "d")):
        run = begun_run(tmp_path / name, 3)
        os.utime(run / "events.jsonl", (number, number))
        if name in "ab":
            owned(run)
    runs = Runs(tmp_path)
    assert [about["name"] for about in runs.glances()] == ["a", "b", "d", "c"]
    os.utime(tmp_path / "a" / "events.jsonl", (9, 9))
    os.utime(tmp_path / "c" / "events.jsonl", (8, 8))
    assert [about["name"] for about in runs.glances()] == ["a", "b", "c", "d"]


def test_long_lines_at_the_end_hide_no_step(tmp_path: Path) -> None:
    runs, run = Runs(tmp_path), begun_run(tmp_path / "run", 3)
    with EventLog(run / "events.jsonl") as log:
        log.write("choice", line="x" * (TAIL_BYTES[0] + 100))
    assert runs.glance("run")["step"] == 3
    (run / "events.jsonl").write_bytes(b"\xff\n{}\n[1]\nnothing\n" + b'{"event": "step", "step": "x"}\n')
    about = runs.glance("run")
    assert about["state"] == "died"
    assert "step" not in about


def test_of_curves_only_what_is_new_is_told(tmp_path: Path) -> None:
    """Put together as the page does it, they are what they are when all is told at once."""
    runs, run = Runs(tmp_path), begun_run(tmp_path / "run", 0)
    kept: dict[tuple[str, str], dict[int, float]] = {}
    after, beginnings, told = -1, -1, 0
    for first in (1, 400, 700, 1100, 1101, 2300):
        with EventLog(run / "events.jsonl") as log:
            write_steps(log, range(first, {1: 400, 400: 700, 700: 1100, 1100: 1101, 1101: 2300, 2300: 2310}[first]))
        view = runs.view("run", after, beginnings)
        assert view["whole"] == (after == -1)
        for chart in view["charts"]:
            for curve in chart["curves"]:
                before = kept.setdefault((chart["title"], curve["name"]), {})
                for step in [step for step in before if step >= curve["steps"][0]]:
                    del before[step]
                before |= dict(zip(curve["steps"], curve["values"], strict=True))
                told = len(curve["steps"])
        whole = Runs(tmp_path).view("run")["charts"]
        for chart in whole if after >= 0 else ():  # from the last point before what is new on
            for curve in chart["curves"]:
                since = max(step for step in curve["steps"] if step <= after)
                shown = [step for step in kept[chart["title"], curve["name"]] if step >= since]
                assert shown == [step for step in curve["steps"] if step >= since]
        after, beginnings = view["after"], view["beginnings"]
    assert told < 20
    for points in kept.values():
        assert list(points) == sorted(points)
    real = kept["Loss of the discriminator", "real pictures"]
    assert abs(real[max(real)] - max(real)) <= 4  # means over a few neighbours
    assert max(real) == after == 2309
    assert runs.view("run", after, beginnings + 1)["whole"]
    assert runs.view("run", after + 1, beginnings)["whole"]


def test_when_a_run_goes_back_all_is_told(tmp_path: Path) -> None:
    runs, run = Runs(tmp_path), begun_run(tmp_path / "run", 30)
    view = runs.view("run")
    with EventLog(run / "events.jsonl") as log:
        log.write("resume", step=10)
        write_steps(log, range(11, 41))
    again = runs.view("run", view["after"], view["beginnings"])
    assert again["whole"]
    (losses,) = [chart for chart in again["charts"] if chart["title"] == "Loss of the discriminator"]
    assert losses["curves"][0]["steps"] == list(range(1, 41))


def test_runs_within_folders_of_runs(tmp_path: Path) -> None:
    """As `frugan demo faces` leaves one beside its pictures."""
    begun_run(tmp_path / "faces" / "run", 3)
    begun_run(tmp_path / "one", 3)
    begun_run(tmp_path / "one" / "inside", 3)
    (tmp_path / "faces" / "workspace").mkdir()
    with served(tmp_path, 0) as (address, _):
        page = Asking(address)
        assert sorted(run["name"] for run in page.get("/api/runs").json["runs"]) == ["faces/run", "one"]
        for path in ("/api/runs/faces/run", "/api/runs/faces%2Frun", "/report/faces%2Frun"):
            assert page.get(path).status == 200


def test_sheets(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", steps=2, grids=3)
    runs = Runs(tmp_path)
    (run / "samples" / "step-000000005-interpolation.png").write_bytes(b"no picture")
    (run / "samples" / "notes.txt").write_text("mine")
    assert {kind: list(files) for kind, files in runs.sheets("run").items()} == {
        "samples": [0, 10, 20],
        "interpolation": [5],
    }
    assert runs.glance("run")["sheet"] == {"kind": "samples", "step": 20}
    path = runs.sheet("run", "samples", 10)
    for missing in (("run", "samples", 11), ("run", "none", 10), ("none", "samples", 10)):
        with pytest.raises(NoRun):
            runs.sheet(*missing)
    thumbnails = Thumbnails()
    kind, small = thumbnails.of(path, 100)
    assert (kind, thumbnails.of(path, None)) == ("webp", ("png", path.read_bytes()))
    assert len(small) < path.stat().st_size
    assert columns_of(path) is None
    assert columns_of(run / "samples" / "step-000000005-interpolation.png") is None


def test_rows_of_a_sheet_have_names(tmp_path: Path) -> None:
    path = tmp_path / "grid.png"
    write_grid(torch.zeros(2, 3, 3, 32, 32), path, labels=("bowls", "tea pots"))
    assert rows_of(path) == ["bowls", "tea pots"]
    write_grid(torch.zeros(2, 3, 3, 32, 32), path)
    assert rows_of(path) == []
    path.write_bytes(b"no picture")
    assert rows_of(path) == []


def test_columns_of_a_sheet_can_be_cut_out(tmp_path: Path) -> None:
    """By what its file says of them."""
    grid = torch.stack([torch.full((2, 3, 64, 64), value) for value in (-1.0, 0.0, 1.0)], 1)  # [2, 3, 3, 64, 64]
    (path,) = write_grid(grid, tmp_path / "sheet.png", titles=("S", "D", "SD"))
    place = columns_of(path)
    assert place is not None
    assert place["titles"] == ["S", "D", "SD"]
    with Image.open(path) as picture:
        for column, level in enumerate((0, 128, 255)):
            left, top = place["left"] + column * place["width"], place["top"]
            cut = picture.crop((left, top, left + place["width"], picture.height))
            assert cut.getpixel((0, 20)) == cut.getpixel((63, 60)) == (level,) * 3


def test_what_has_not_changed_is_not_sent_again(tmp_path: Path) -> None:
    run = begun_run(tmp_path / "run", 3)
    made_run(tmp_path / "other", steps=2, grids=1)
    with served(tmp_path, 0) as (address, _):
        page = Asking(address)
        for path in ("/api/runs", "/api/runs/run", "/sheets/other/samples/0", "/sheets/other/samples/0?width=99"):
            first = page.get(path)
            assert page.get(path, If_None_Match=first.headers["etag"]).status == 304, path
        tag = page.get("/api/runs").headers["etag"]
        with EventLog(run / "events.jsonl") as log:
            write_steps(log, range(4, 5))
        assert page.get("/api/runs", If_None_Match=tag).status == 200


@pytest.mark.parametrize(("queued", "shown"), [("waiting", "waiting"), ("running", "starting"), ("ended", "died")])
def test_a_run_without_a_folder_is_what_its_queue_says(tmp_path: Path, queued: str, shown: str) -> None:
    page = Page.of(tmp_path)
    entry: dict[str, Any] = {"run": "new", "words": ["x"], "state": queued}
    page.queue.path.write_text(json.dumps({"entries": [entry]}))
    assert page.state()["runs"] == [{"name": "new", "state": shown}]
    page.queue.path.write_text(json.dumps({"entries": [{**entry, "state": "ended", "code": 0}]}))
    assert page.state()["runs"] == []  # it was deleted since
    page.queue.path.write_text(json.dumps({"entries": [entry]}))
    made_run(tmp_path / "new", steps=2, grids=0)
    assert page.state()["runs"][0]["state"] == shown


def test_a_part_of_a_sheet_has_no_words(tmp_path: Path) -> None:
    run = begun_run(tmp_path / "run", 3)
    path = run / "samples" / "step-000000003-samples.png"
    grid = torch.linspace(-1, 1, 5 * 6).reshape(5, 6, 1, 1, 1).expand(5, 6, 3, 64, 64)
    write_grid(grid, path, titles=[f"seed {i}" for i in range(6)], labels=[f"class {i}" for i in range(5)])
    view = Runs(tmp_path).view("run")
    assert (view["grids"]["samples"]["rows"], view["grids"]["samples"]["columns"]) == (5, 6)
    with served(tmp_path, 0) as (address, _):
        answer = Asking(address).get("/sheets/run/samples/3?rows=4&columns=4")
        wrapped = Asking(address).get("/sheets/run/samples/3?rows=10&columns=3")
    with Image.open(io.BytesIO(wrapped.body)) as part:  # each row in two
        assert part.size == (3 * 66 - 2, 10 * 66 - 2)
        assert part.convert("L").getpixel((0, 66)) == pytest.approx(round(255 * 3 / 29), abs=3)
    with Image.open(io.BytesIO(answer.body)) as part:
        assert part.size == (4 * 66 - 2, 4 * 66 - 2)
        corners = [part.convert("L").getpixel(place) for place in ((0, 0), (261, 261))]
    # columns with titles show the way to the last, as a swap's do
    assert corners == pytest.approx([round(255 * 2 / 29), round(255 * (3 * 6 + 5) / 29)], abs=3)
    assert view["sentence"].startswith("Ended at step 3 without saying why")
