"""Curves keep their shape when they are thinned, and the page holds what it is given and nothing that runs."""

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frugan.reporting.gradient_maps import GradientMap
from frugan.reporting.run_report import MOST_POINTS, Charts, Curve, Picture, RunView, axis_of, render


@given(st.integers(1, 5000), st.integers(1, 50))
@settings(max_examples=40)
def test_a_curve_is_thinned_and_keeps_its_mean_and_its_end(count: int, stride: int) -> None:
    growing = Curve()
    for i in range(count):
        growing.add(i * stride, float(i))
    curve = growing.finish()
    assert curve == growing.finish()  # it can go on growing
    assert 1 <= len(curve.values) <= MOST_POINTS
    assert curve.steps == sorted(set(curve.steps))
    assert curve.steps[-1] == (count - 1) * stride
    assert curve.values == sorted(curve.values)
    assert curve.values[-1] >= count - 1 - 4 * max(1, count / MOST_POINTS)


def test_what_is_not_finite_is_no_point() -> None:
    curve = Curve()
    for value in (1.0, float("nan"), float("inf"), 2.0):
        curve.add(1, value)
    assert curve.finish().values == [1.0, 2.0]


LOSS = "Loss of the discriminator"


@pytest.mark.parametrize(
    ("title", "axis"),
    [("Memory (GiB)", "GiB"), ("Score: FID (digits), lower is better", "score"), (LOSS, "loss"), ("Else", "value")],
)
def test_an_axis_says_what_it_is(title: str, axis: str) -> None:
    assert axis_of(title) == axis


def test_scores_of_other_counts_by_an_older_version_are_a_curve_of_their_own() -> None:
    """A run goes on with a version that compares as many pictures as the control does."""
    charts = Charts()
    scores = {"recall": 0.6, "recall_real": 0.8, "fid": 3.0}
    counts = [{}, {"neighbours": 161}]
    events = [
        {"event": "metrics", "step": number, "scores": scores, "provenance": {"network": "pixels", **of}}
        for number, of in enumerate(counts)
    ]
    list(charts.read(events))
    of_neighbours = charts.by_title["Score: precision and recall (pixels), higher is better"]
    assert {name: curve.steps for name, curve in of_neighbours.items()} == {
        "recall, all samples and pictures": [0],
        "recall": [1],
        "recall, real against real": [0, 1],
    }
    assert {name: curve.steps for name, curve in charts.by_title["Score: FID (pixels), lower is better"].items()} == {
        "FID": [0, 1]
    }


def step(number: int, **changed: Any) -> dict[str, Any]:
    phases = {"D": {"terms": {"real": 1.0, "fake": "nan"}, "gradient_norm": 2.0, "loss_scale": 1.0, "skipped": 0}}
    return {
        "event": "step",
        "step": number,
        "images_per_second": 10.0,
        "memory_bytes": 2**30,
        "phases": phases,
    } | changed


def test_events_become_charts() -> None:
    charts = Charts()
    values = {f"layer{i}": float(i) for i in range(20)}
    state = {"augmentation probability": 0.25}
    events = [
        step(1, singular_values=values, carried=state),
        step(2),
        {"event": "metrics", "step": 2, "scores": {"fid": 3.0, "two_sample": 0.9}},
    ]
    others = list(charts.read([*events, {"event": "step", "step": "x"}, {"event": "choice", "line": "a"}]))
    assert [event["event"] for event in others] == ["metrics", "choice"]
    shown = charts.finish()
    scores = ["Score: two-sample, lower is better, 0.5 at best", "Score: FID, lower is better"]
    assert (list(shown)[:2], list(shown)[-1]) == (scores, LOSS)
    assert shown[LOSS]["real pictures"].values == [1.0, 1.0]
    assert shown[LOSS]["generated pictures"].values == []
    assert sorted(shown["Largest singular values"]) == sorted(f"layer{i}" for i in range(12, 20))
    assert shown["Augmentation probability"]["augmentation probability"].values == [0.25]
    assert not {"Loss scale", "Skipped updates in all"} & shown.keys()  # nothing happened there


def test_a_score_of_pictures_has_a_chart_of_its_own_without_a_network_in_its_name() -> None:
    charts = Charts()
    scores = {"two_sample": 0.7, "two_sample_half_width": 0.04, "two_sample_real": 0.5}
    list(charts.read([{"event": "metrics", "step": 2, "scores": scores, "provenance": {"network": "digits"}}]))
    ((title, curves),) = charts.finish().items()
    assert title == "Score: two-sample, lower is better, 0.5 at best"
    assert {name: curve.values for name, curve in curves.items()} == {
        "generated against real": [0.7],
        "real against real": [0.5],
    }


def test_the_time_that_was_waited_for_data_stands_beside_the_steps() -> None:
    charts = Charts()
    list(
        charts.read([step(1), step(2, took_seconds=2.0, data_seconds=0.5), step(3, took_seconds=1.0, data_seconds=0.0)])
    )
    assert (charts.took_seconds, charts.data_seconds) == (3.0, 0.5)
    curves = charts.finish()["Seconds of a step"]
    assert {name: (curve.steps, curve.values) for name, curve in curves.items()} == {
        "step": ([2, 3], [2.0, 1.0]),
        "of it, waiting for data": ([2, 3], [0.5, 0.0]),
    }


def test_reported_gradients_become_maps() -> None:
    charts = Charts()
    given = {"terms": {}, "gradient_norm": 1.0, "loss_scale": 1.0, "skipped": 0}
    shown = given | {"gradients": {"D.a.w": 1.0, "D.a.b": 1.0}, "zero_share": {"D.a.w": 0.0, "D.a.b": 1.0}}
    start = {"event": "start", "parameters": {"D.a.w": 3, "D.a.b": 1}}
    list(charts.read([start, step(1, phases={"D": shown}), step(2, phases={"D": given}), step(3, phases={"D": shown})]))
    (gradient_map,) = charts.gradients.finish()
    assert (gradient_map.steps, gradient_map.zeros) == ((1, 3), ((0.25, 0.25),))


def test_a_training_that_went_back_is_drawn_once() -> None:
    charts = Charts()
    skipped = {"D": {"terms": {"real": 9.0}, "gradient_norm": 2.0, "loss_scale": 1.0, "skipped": 1}}
    again = {"D": {"terms": {"real": 1.0}, "gradient_norm": 2.0, "loss_scale": 1.0, "skipped": 0}}
    first = [step(i, phases=skipped if i > 50 else again) for i in range(1, 101)]
    second = [step(i, phases=again) for i in range(51, 81)]
    list(charts.read([*first, {"event": "resume", "step": 50}, *second]))
    shown = charts.finish()
    assert shown[LOSS]["real pictures"].steps == list(range(1, 81))
    assert set(shown[LOSS]["real pictures"].values) == {1.0}
    assert "Skipped updates in all" not in shown


HOSTILE = '</script><script>alert("x")</script><!--'


def view(name: str, picture: bool = True) -> RunView:
    return RunView(
        name=name,
        charts={HOSTILE: {"a": Curve([1, 2], [0.5, 1.0])}},
        facts={"Recipe": {"summary": HOSTILE}},
        pictures=(Picture(1, "samples", "data:image/webp;base64,AAAA"),) if picture else (),
        notes=(("warning", HOSTILE), ("choice", "device: cpu")),
        tiles={"step": "2", HOSTILE: HOSTILE},
        damaged=3,
        gradients=(GradientMap(HOSTILE, "D", ("a",), (1, 2), ((0.301, -math.inf),), ((0.12345, None),)),),
        never={"D": (HOSTILE,)},
    )


def test_the_page_holds_its_data_and_runs_nothing_that_it_was_given() -> None:
    page = render([view(HOSTILE), view("second", picture=False)])
    assert page.count("<script") == 2
    (inside,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    data = json.loads(inside)
    assert data["runs"] == [HOSTILE, "second"]
    assert [curve["run"] for curve in data["charts"][0]["curves"]] == [0, 1]
    assert len(data["pictures"][0]) == 1
    (drawn,) = data["gradients"][1]
    assert (drawn["network"], drawn["norms"], drawn["zeros"]) == (HOSTILE, [[0.3, "zero"]], [[0.123, None]])
    assert "second: no phase gave these parameters of D a gradient: &lt;/script&gt;" in page
    assert "3 lines of the event file could not be read" in page
    assert not re.search(r"""(src|href)=["']?https?:""", page)
    with pytest.raises(ValueError, match="no runs"):
        render([])
