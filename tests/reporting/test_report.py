"""The report of a run: what is in it, how large it is, and what its server gives away."""

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from frugan.engine.run.events import EventLog
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.metrics.provenance import Provenance
from frugan.reporting.report import (
    PICTURE_BYTES,
    page,
    page_of,
    readers_of,
    taken_scores,
    view,
    write_report,
)
from frugan.reporting.report_server import report_server
from frugan.reporting.run_report import MOST_POINTS, Charts


def made_run(path: Path, steps: int = 30, grids: int = 6, samples: int = 100, neighbours: int | None = None) -> Path:
    """A run folder by hand."""
    with EventLog(path / "events.jsonl") as log:
        log.write("start", step=0, frugan="0.1", torch="2.13", machine="here", device="cpu", data={}, recipe={})
        log.write("choice", line="device: cpu (no card)")
        for step in range(1, steps + 1):
            norms = {f"D.conv{i}.weight": float(i * step) for i in range(3)}  # the first gets zeros only
            by_layer = {"gradients": norms, "zero_share": {name: float(not norm) for name, norm in norms.items()}}
            numbers = {"gradient_norm": 1.0, "loss_scale": 1.0, "skipped": 0}
            phases = {"D": {"terms": {"real": 1 / step}, **numbers, **(by_layer if step % 5 == 1 else {})}}
            numbers = {"images": 8 * step, "seconds": 0.1 * step, "images_per_second": 80.0, "eta_seconds": 1.0}
            log.write("step", step=step, memory_bytes=2**30, phases=phases, **numbers)
        provenance = {"network": "inception-2015-12-05", "samples": samples, "step": steps}
        provenance |= {} if neighbours is None else {"neighbours": neighbours}  # an older version kept none
        log.write("metrics", step=steps, scores={"fid": 12.5}, provenance=provenance)
        log.write("warning", step=steps, line="D tells all pictures apart")
    (path / "recipe.json").write_text('{"family": "biggan", "training": {"batch": 8}}', "utf-8")
    plan = {"micro_batch": 8, "savers": ["recompute"], "peak_bytes": 2 * 2**30, "categories": {"gradients": 5}}
    (path / "plan.json").write_text(json.dumps(plan), "utf-8")
    (path / "samples").mkdir()
    random = np.random.default_rng(0)
    for number in range(grids):
        noise = random.integers(0, 255, (300, 300, 3)).astype(np.uint8)
        Image.fromarray(noise).save(path / "samples" / f"step-{number * 10:09d}-samples.png")
    return path


def test_skipped_updates_are_counted_exactly_after_going_back() -> None:
    """However many points a curve keeps."""

    def step(number: int) -> dict[str, Any]:
        phase = {"terms": {}, "gradient_norm": 1.0, "loss_scale": 1.0, "skipped": 1}
        return {"event": "step", "step": number, "phases": {"D": phase}, "images_per_second": 1.0}

    charts = Charts()
    many = 5 * MOST_POINTS + 1
    list(charts.read([*map(step, range(1, many + 1)), {"event": "resume", "step": many - 1}, step(many)]))
    assert charts.skipped["D"][-1] == (many, many)


def test_a_run_becomes_a_page(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    path = write_report([run])
    assert path == run / "report.html"
    shown = view(RunFolder(run), "run")
    assert shown.tiles["step"] == "30"
    assert shown.tiles["FID"] == "12.5"
    assert shown.charts["Memory (GiB)"]["planned"].values == [2.0, 2.0]
    assert shown.facts["Recipe"]["training.batch"] == "8"
    assert shown.facts["Plan"]["savers"] == "recompute"
    assert ("warning", "step 30: D tells all pictures apart") in shown.notes
    with EventLog(run / "events.jsonl") as log:
        log.write("warning_over", step=38, line="D tells all pictures apart")
    (note,) = [note for note in view(RunFolder(run), "run").notes if "tells all" in note[1]]
    assert note == ("over", "step 30 until step 38: D tells all pictures apart")
    assert [picture.step for picture in shown.pictures][-1] == 50


def owned(run: Path) -> Path:
    """Write down that this process trains a run."""
    owner = run / "owner.json"
    owner.write_text(json.dumps({"host": os.uname().nodename, "process": os.getpid()}))
    return owner


def test_a_run_that_nobody_trains_is_not_said_to_train(tmp_path: Path) -> None:
    folder = RunFolder(made_run(tmp_path / "run"))
    owner = owned(folder.path)
    shown = view(folder, "run")
    assert shown.sentence.startswith("Training, 0:01 left: ")
    assert shown.tiles["left"] == "0:01"
    owner.unlink()
    shown = view(folder, "run")
    assert shown.sentence.startswith("Ended at step 30 without saying why")
    assert "left" not in shown.tiles
    with EventLog(folder.events) as log:
        log.write("stop", over=False, at_once=True, step=30, seconds=3.0)
    assert view(folder, "run").sentence.startswith("Stopped at step 30: ")


def test_a_report_bears_a_title_and_says_what_the_run_is(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    with EventLog(run / "events.jsonl") as log:
        log.write("start", step=30, data={"images": {"pictures": 252}}, recipe={"family": "biggan"})
    assert "<h1>run</h1>" in page_of([run])
    text = page_of([run], title="My fish")
    assert "<h1>My fish</h1>" in text
    assert "Made with frugan: BigGAN generator, trained on 252 pictures." in text
    assert "read the warning" in text


def test_a_run_that_goes_on_is_not_finished(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        log.write("stop", over=True, signal=None, step=100, seconds=1.0)
        assert view(RunFolder(tmp_path), "run").tiles["state"] == "finished"
        log.write("resume", step=100)
        assert "state" not in view(RunFolder(tmp_path), "run").tiles


def test_what_is_left_is_told_where_there_is_an_end(tmp_path: Path) -> None:
    for eta_seconds, told in ((90.0, "1:30"), (None, None)):
        run = tmp_path / f"{eta_seconds}"
        with EventLog(run / "events.jsonl") as log:
            log.write("step", step=1, images=8, seconds=0.5, eta_seconds=eta_seconds, phases={})
        owned(run)
        assert view(RunFolder(run), "run").tiles.get("left") == told


def test_time_that_was_waited_for_data_is_a_tile_where_it_matters(tmp_path: Path) -> None:
    for seconds, told in ((0.25, "25 %"), (0.01, None)):
        run = tmp_path / f"{seconds}"
        times = {"seconds": 1.0, "took_seconds": 1.0, "data_seconds": seconds, "images_per_second": 8.0}
        with EventLog(run / "events.jsonl") as log:
            log.write("step", step=1, images=8, eta_seconds=None, phases={}, **times)
        assert view(RunFolder(run), "run").tiles.get("of the time, waiting for data") == told


def test_recall_far_below_precision_is_said_in_the_report(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    scores = {"precision": 0.87, "recall": 0.12}
    provenance = dict.fromkeys((each.name for each in fields(Provenance)), "x") | {"samples": 2000, "rows": 899}
    with EventLog(run / "events.jsonl") as log:
        log.write("metrics", step=25, scores=scores, provenance=provenance | {"classes": "all", "truncation": 1.0})
    (line,) = [line for kind, line in view(RunFolder(run), "run").notes if "recall" in line and kind == "warning"]
    assert line.startswith("step 25: recall 0.12 is far below precision 0.87")


@pytest.mark.long
def test_pictures_are_thinned_to_their_room(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", grids=40)
    shown = view(RunFolder(run), "run", 200_000)
    assert 1 < len(shown.pictures) < 20
    assert sum(len(picture.uri) for picture in shown.pictures) < 300_000
    assert (shown.pictures[0].step, shown.pictures[-1].step) == (0, 390)
    assert len(page_of([run])) < PICTURE_BYTES + 1_000_000


def test_a_corrupted_line_is_counted(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    with (run / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "step", "st\n\xff\xfe\n[1]\n')
    assert view(RunFolder(run), "run").damaged == 3
    assert "3 lines of the event file could not be read" in page_of([run])


def test_several_runs_are_told_apart(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / where / "run", grids=1) for where in ("a", "b")]
    page = page_of(runs)
    assert "<title>a/run · b/run" in page
    write_report(runs, tmp_path / "both.html")
    assert (tmp_path / "both.html").is_file()


def test_a_report_of_several_runs_leaves_that_of_the_first_alone(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / name, grids=1) for name in ("a", "b")]
    alone = write_report(runs[:1])
    before = alone.read_bytes()
    assert write_report(runs) == runs[0] / "comparison.html"
    assert alone.read_bytes() == before


def test_scores_that_do_not_compare_are_told(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / f"run{n}", grids=1, samples=n) for n in (100, 500)]
    assert "scores of run100 and run500 do not compare: samples 100 and 500" in page_of(runs)
    assert "do not compare" not in page_of([runs[0], made_run(tmp_path / "other", grids=1)])
    counted = made_run(tmp_path / "counted", grids=1, neighbours=161)
    assert "scores of run100 and counted do not compare: neighbours 0 and 161" in page_of([runs[0], counted])


@pytest.mark.parametrize("out", [".", "/", "..", ""])
def test_a_folder_is_no_page(out: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a folder; name a file to write"):
        write_report([made_run(tmp_path / "run", grids=1)], Path(out))


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a run folder"):
        write_report([tmp_path])
    with pytest.raises(BadInput, match="no runs"):
        write_report([])


@contextmanager
def served(run: Path) -> Iterator[int]:
    with report_server([run], 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert server.server_address[0] == "127.0.0.1"
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def test_the_server_gives_the_page_and_nothing_else(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", grids=1)
    with served(run) as port:
        address = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{address}/") as answer:
            assert b'"live":5' in answer.read()
        with urllib.request.urlopen(f"{address}/state") as answer:
            before = answer.read()
        with EventLog(run / "events.jsonl") as log:
            log.write("choice", line="more")
        with urllib.request.urlopen(f"{address}/state") as answer:
            assert answer.read() != before
        for path in ("/events.jsonl", "/../recipe.json", "/samples", "/etc/passwd"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{address}{path}")
        strange = HTTPConnection("127.0.0.1", port)
        strange.request("GET", "/", headers={"Host": "evil.example"})
        assert strange.getresponse().status == 403
        strange.close()
        with pytest.raises(BadInput, match=f"--port {port}"):
            report_server([run], port)


def test_the_server_answers_get_and_head_alone(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", grids=1)
    with served(run) as port:
        for method, status in (("GET", 200), ("HEAD", 200), ("POST", 501), ("PUT", 501), ("DELETE", 501), ("X", 501)):
            connection = HTTPConnection("127.0.0.1", port)
            connection.request(method, "/")
            answer = connection.getresponse()
            content = answer.read()
            assert (answer.status, bool(content)) == (status, method != "HEAD"), method
            if method == "GET":
                assert "default-src 'none'" in (answer.headers["Content-Security-Policy"] or "")
            connection.close()
        for host in (f"localhost:{port}", f"127.0.0.1:{port}"):
            assert _status(port, host) == 200
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "0.0.0.0"):
            assert _status(port, host) == 403, host


def _status(port: int, host: str) -> int:
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/state", headers={"Host": host})
    status = connection.getresponse().status
    connection.close()
    return status


def test_only_what_was_added_is_read(tmp_path: Path) -> None:
    """What was read stays known when the bytes of it are gone, and half a line waits for its other half."""
    run = made_run(tmp_path / "run", grids=1)
    events = run / "events.jsonl"
    (reader,) = readers_of([run])
    before = page([reader], live=True)
    read = events.read_bytes()
    events.write_bytes(b" " * len(read) + b'{"event": "choice", "line": "first ha')
    assert page([reader], live=True) == before
    with events.open("ab") as file:
        file.write(b'lf"}\n')
    assert "first half" in page([reader], live=True)
    assert "could not be read" not in page([reader], live=True)
    events.write_bytes(read)  # shorter: another run in the same place, read from its beginning
    assert page([reader], live=True) == before


def test_grids_elsewhere_are_not_shown(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", grids=1)
    secret = tmp_path / "secret.png"
    Image.new("RGB", (64, 64), (255, 0, 0)).save(secret)
    before = page_of([run])
    (run / "samples" / "step-000009999-samples.png").symlink_to(secret)
    assert page_of([run]) == before


def taken(step: int, fid: float, others: Mapping[str, float] | None = None, **provenance: object) -> str:
    """A line as `frugan evaluate` leaves it in a run."""
    of = {"step": step, "samples": 100, "truncation": 1.0, "psi": 1.0, "classes": "all", "real": 90, "data": "pictures"}
    of |= {"split": "all", "ema": True, "network": "inception-2015-12-05", "network_digest": "d", "resizer": "pil"}
    of |= {"data_digest": "d", "rows": 90, "seed": 0, "statistics": "running", "precision": "fp32", "weights": "run"}
    warnings = ["recall is far below precision"] if fid > 90 else []
    scores = {"fid": fid, **(others or {})}
    return json.dumps({"scores": scores, "by_class": {}, "provenance": of | provenance, "warnings": warnings}) + "\n"


def test_a_score_that_was_left_out_is_no_warning_once_it_is_taken(tmp_path: Path) -> None:
    """At the same step: of other weights it says nothing."""
    file, few = tmp_path / "scores.jsonl", json.loads(taken(10, 9.0, blind="dc"))
    few["warnings"] = ["density and coverage by pixels: blind, so they are left out", "recall is far below precision"]
    at_first, measured = json.dumps(few) + "\n", {"density": 0.2, "coverage": 0.2}
    warned = [f"evaluate, step 10: {line}" for line in few["warnings"]]
    for later, over in ((taken(20, 9.0, measured), 0), (taken(10, 9.0), 0), (taken(10, 9.0, measured), 1)):
        file.write_text(at_first + later, "utf-8")
        assert list(taken_scores(file)[1]) == warned[over:]
    file.write_text(taken(10, 9.0, measured) + at_first, "utf-8")
    assert list(taken_scores(file)[1]) == warned


def test_each_score_stands_in_a_row_with_what_it_was_measured_with(tmp_path: Path) -> None:
    file = tmp_path / "scores.jsonl"
    others = {"precision": 0.5, "f_score": 0.5, "ppl": 40.0, "two_sample": 0.75}
    judge = "45 pictures on either side; fixed features, leaving out each picture that is judged"
    file.write_text(taken(10, 9.0, others, network="pixels", samples=4000, judge=judge), "utf-8")
    rows, _ = taken_scores(file)
    about = ("samples", "compared with", "judged by")
    assert [tuple(row[name] for name in about) for row in rows] == [
        ("4,000", "90 real pictures of pictures", "grey copies of 16 by 16 pixels"),
        ("1,000", "no pictures", "features of random convolutions"),
        ("45", "45 of 90 real pictures of pictures", judge.partition("; ")[2]),
    ]
    assert (
        ["fid (pixels)" in row for row in rows] == ["f_score (pixels)" in row for row in rows] == [True, False, False]
    )
    assert ["ppl" in row for row in rows] == [False, True, False]
    assert ["two_sample" in row for row in rows] == [False, False, True]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("two-sample: blind at 64 pictures on either side: the judge sees nothing; so it is left out", False),
        ("recall 0.1 is far below precision 0.9", True),
    ],
)
def test_a_score_that_is_left_out_is_no_fault_of_the_run(tmp_path: Path, line: str, named: bool) -> None:
    run = made_run(tmp_path / "run")
    values = json.loads(taken(10, 9.0)) | {"warnings": [line]}
    RunFolder(run).scores.write_text(json.dumps(values) + "\n", "utf-8")
    run_view = view(RunFolder(run), "run")
    assert ("warning", f"evaluate, step 10: {line}") in run_view.notes
    assert (line[:20] in run_view.sentence) is named


def test_scores_of_evaluate_are_in_the_report(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    lines = [taken(10, 99.0), "{damaged\n", '{"scores": {}}\n', taken(30, 7.25, truncation=0.5), taken(10, 98.5)]
    RunFolder(run).scores.write_text("".join(lines), "utf-8")
    run_view = view(RunFolder(run), "run")
    assert [(row["step"], row["truncation"], row["fid"]) for row in run_view.scores] == [
        ("30", "0.5", "7.25"),
        ("10", "1", "98.5"),
    ]
    assert ("warning", "evaluate, step 10: recall is far below precision") in run_view.notes
    shown = page_of([run])
    assert "<td>98.5</td>" in shown
    assert "99.0" not in shown
    assert "Scores by frugan evaluate" not in page_of([made_run(tmp_path / "other")])
