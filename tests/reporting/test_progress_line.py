"""The line on the console."""

import io
import json
from collections.abc import Callable

import pytest
from rich.console import Console

from frugan.reporting.progress_line import LiveLine, describe


def event(step: int = 1200) -> dict[str, object]:
    return {
        "event": "step",
        "step": step,
        "images": 153600,
        "seconds": 31.2,
        "images_per_second": 492.04,
        "eta_seconds": 8888.0,
        "memory_bytes": 3 * 2**29,
        "phases": {
            "D": {"terms": {"real": 0.61, "fake": 0.55}, "gradient_norm": 12.34, "loss_scale": 1.0, "skipped": 0},
            "G": {"terms": {"adversarial": -1.2}, "gradient_norm": 1e-5, "loss_scale": 65536.0, "skipped": 1},
        },
    }


def test_a_step_is_one_compact_line() -> None:
    assert describe(event()) == (
        "step 1,200 | discriminator real 0.610 fake 0.550 | generator -1.200 scale 65536 SKIPPED"
        " | 0:31 | 2h 28min left | 492 images/s | 1.5 GiB | 153,600 images"
    )


def test_what_is_missing_or_not_finite_is_no_trouble() -> None:
    assert describe({"event": "step", "step": 1}) == "step 1"
    bad = {"terms": {"real": "nan"}, "gradient_norm": float("inf"), "skipped": 3}
    line = describe({"event": "step", "step": 1, "eta_seconds": None, "images_per_second": "inf", "phases": {"D": bad}})
    assert line == "step 1 | discriminator nan SKIPPED x3 | inf images/s"
    assert describe({"event": "checkpoint", "step": 3}) is None
    assert describe({}) is None


@pytest.mark.parametrize(("waited", "told"), [(0.9, " | waited for data 45 %"), (0.3, ""), (0.0, "")])
def test_a_step_that_waited_long_for_data_says_so(waited: float, told: str) -> None:
    assert describe({"event": "step", "step": 1, "took_seconds": 2.0, "data_seconds": waited}) == f"step 1{told}"


def test_carried_state_has_its_name() -> None:
    line = describe({"event": "step", "step": 1, "carried": {"augmentation probability": 0.125}})
    assert line == "step 1 | augmentation probability 0.125"


def test_sides_are_added_up() -> None:
    terms = {"src/dssim": 1.0, "src/mse": 0.25, "dst/dssim": 2.0, "dst/mse": "nan"}
    line = describe({"event": "step", "step": 1, "phases": {"autoencoder": {"terms": terms}}})
    assert line == "step 1 | autoencoder src 1.250 dst nan"
    line = describe({"event": "step", "step": 1, "phases": {"autoencoder": {"terms": {"gan": 0.5} | terms}}})
    assert line == "step 1 | autoencoder src 1.250 dst nan gan 0.500"


def test_what_is_saved_is_told() -> None:
    out = io.StringIO()
    with LiveLine(console=Console(file=out, width=80)) as line:
        line.show({"event": "checkpoint", "step": 1000, "path": "checkpoints/step-000001000"})
        line.show({"event": "snapshot", "step": 1000, "paths": ["samples/a.png", "samples/b.png"]})
    assert out.getvalue().splitlines() == [
        "step 1,000: saved checkpoints/step-000001000",
        "step 1,000: drew samples/a.png, samples/b.png",
    ]


def test_what_could_not_be_written_is_told_with_its_reason() -> None:
    out = io.StringIO()
    full = "No space left on device; training goes on"
    with LiveLine(console=Console(file=out, width=80)) as line:
        line.show({"event": "checkpoint_failed", "step": 1000, "reason": full})
        line.show({"event": "snapshot_failed", "step": 1000, "reason": full})
    assert out.getvalue().splitlines() == [
        f"step 1,000: no checkpoint: {full}",
        f"step 1,000: no sample grid: {full}",
    ]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3600, "1h 00min"), (90_000, "1d 01h")],
)
def test_durations(seconds: float, shown: str) -> None:
    assert describe({"event": "step", "step": 1, "seconds": seconds}) == f"step 1 | {shown}"


def clock_at(times: list[float]) -> Callable[[], float]:
    return lambda: times[0]


def test_a_file_gets_a_line_now_and_then_and_the_last() -> None:
    out = io.StringIO()
    now = [0.0]
    with LiveLine(10, Console(file=out, width=40), clock_at(now)) as line:
        for step in range(1, 26):
            now[0] = step
            line.show(event(step))
            line.show({"event": "resume", "step": step})
        line.note("a thing that [happened] " + "long " * 20)
    lines = out.getvalue().splitlines()
    assert [text.split(" |")[0] for text in lines[:3]] == ["step 1", "step 11", "step 21"]
    assert lines[3].startswith("a thing that [happened] long long")
    assert lines[4].startswith("step 25 |")
    assert len(lines) == 5
    assert all("\x1b" not in text for text in lines)


def test_a_terminal_gets_one_line_that_changes() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, _environ={"TERM": "xterm"})
    with LiveLine(console=console) as line:
        for step in (1, 2, 3):
            line.show(event(step))
        line.note("a note stays above")
    text = out.getvalue()
    assert "step 3 |" in text
    assert "a note stays above" in text
    assert "\x1b[" in text
    assert "…" in text  # cut to the width, so that it stays one line
    assert text.count("\n") <= 3


def test_losses_have_names_that_people_know() -> None:
    terms = {"D_r1": {"r1": 0.076}, "G_path": {"path_length": 2.0}, "G": {"adversarial": 1.0}}
    line = describe({"event": "step", "step": 1, "phases": {name: {"terms": of} for name, of in terms.items()}})
    assert line == "step 1 | R1 0.076 | path length 2.000 | generator 1.000"


def test_the_line_of_a_run_that_has_ended_is_not_drawn_again() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, _environ={"TERM": "xterm"})
    with LiveLine(console=console) as line:
        line.show({"event": "start", "step": 0})
        line.show(event(3))
        line.show({"event": "stop", "step": 3})
        ended = len(out.getvalue())
        line.note("told afterwards")
    assert "step 3 |" in out.getvalue()[:ended]
    assert "step 3 |" not in out.getvalue()[ended:]


def test_something_moves_while_a_step_takes_long() -> None:
    out = io.StringIO()
    now = [0.0]
    console = Console(file=out, force_terminal=True, width=60, _environ={"TERM": "xterm"})
    with LiveLine(console=console, clock=clock_at(now)) as line:
        line.show({"event": "start", "step": 0})
        shown = []
        for seconds in (1, 2, 75):
            now[0] = seconds
            shown.append("".join(part.text for part in console.render(line)))
        line.show(event(1))
        now[0] = 80.0
        shown.append("".join(part.text for part in console.render(line)))
        now[0] = 100.0
        shown.append("".join(part.text for part in console.render(line)))
        line.show({"event": "stop", "step": 1})
        now[0] = 900.0
        shown.append("".join(part.text for part in console.render(line)))
    assert [text.strip()[2:] for text in shown[:3]] == [
        f"{waited} since the start, no step is done yet" for waited in ("0:01", "0:02", "1:15")
    ]
    assert shown[3].startswith("step 1 |")
    assert shown[4][2:].startswith("0:25 since step 1 |")
    assert shown[5].startswith("step 1 |")  # nothing is waited for any more


def test_a_file_is_told_of_no_waiting() -> None:
    out = io.StringIO()
    with LiveLine(console=Console(file=out, width=80)) as line:
        line.show({"event": "start", "step": 0})
    assert out.getvalue() == ""


def test_one_of_the_best_is_told_once() -> None:
    out = io.StringIO()
    with LiveLine(console=Console(file=out, width=80)) as line:
        line.show({"event": "checkpoint", "step": 1000, "path": "best/step-000001000"})
        line.show({"event": "best", "step": 1000, "score": "fid", "value": 3.0})
    assert out.getvalue() == "step 1,000: saved in best/, among the best by fid\n"


def test_nothing_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveLine() as line:
        line.show(event())
        print(json.dumps({"a": 1}))
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"a": 1}
    assert captured.err.startswith("step 1,200 |")


def test_scores_of_pictures_are_told_in_words_beside_those_of_a_network() -> None:
    out = io.StringIO()
    scores = {"fid": 3.0, "two_sample": 0.712, "two_sample_half_width": 0.02, "two_sample_real": 0.49}
    with LiveLine(console=Console(file=out, width=200)) as line:
        line.show({"event": "metrics", "step": 5, "scores": scores, "provenance": {"network": "digits"}})
        by_one = {"two_sample": 0.7, "two_sample_real": 0.5}
        pixels = {"precision": 0.986, "recall": 0.795, "precision_real": 0.92, "recall_real": 0.9}
        pixels |= {"density": 0.8, "density_half_width": 0.1, "density_real": 1.0}
        line.show({"event": "metrics", "step": 6, "scores": by_one, "provenance": {"network": "none"}})
        by_pixels = {"network": "pixels", "neighbours": 161}
        line.show({"event": "metrics", "step": 7, "scores": pixels, "provenance": by_pixels})
    words = "two-sample 0.71 ± 0.02 (real against real 0.49): a small network tells generated from real 71 times in 100"
    assert out.getvalue().splitlines() == [
        f"step 5: fid 3.000 (digits); {words}; 50 is guessing",
        "step 6: two-sample 0.70 (real against real 0.50): a small network tells generated from real 70 times in 100; "
        "50 is guessing",
        "step 7: precision 0.986 (real pictures 0.92), recall 0.795 (real pictures 0.9), "
        "density 0.800 (real pictures 1) (pixels); 161 generated beside 161 real",
    ]
