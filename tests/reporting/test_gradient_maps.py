"""Heat maps of gradients: layers from parameters, reports put together, and what never got a gradient."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frugan.reporting.gradient_maps import MOST_COLUMNS, GradientMaps


def phase(norms: dict[str, Any], zeros: dict[str, float], missing: list[str] | None = None) -> dict[str, Any]:
    return {"gradients": norms, "zero_share": zeros} | ({"without_gradient": missing} if missing else {})


def test_a_layer_is_its_parameters_together() -> None:
    maps = GradientMaps({"G.a.conv.weight": 9, "G.a.conv.bias": 1, "G.const": 4})
    norms = {"G.a.conv.weight": 3.0, "G.a.conv.bias": 4.0, "G.const": 0.0, "D.linear.weight": 0.1}
    zeros = {"G.a.conv.weight": 0.5, "G.a.conv.bias": 1.0, "G.const": 1.0, "D.linear.weight": 0.0}
    maps.add(1, "both", phase(norms, zeros))
    maps.add(2, "both", {"terms": {}})  # no report
    g, d = maps.finish()
    assert (g.network, g.phase, g.layers, g.steps) == ("G", "both", ("a.conv", "const"), (1,))
    assert [row[0] for row in g.norms] == pytest.approx([math.log10(5), -math.inf])
    assert [row[0] for row in g.zeros] == pytest.approx([0.55, 1.0])  # by numbers: 4.5 + 1 of 10
    assert (d.network, d.layers) == ("D", ("linear",))
    assert d.norms[0] == pytest.approx((-1,))


def test_what_got_none_or_is_not_finite_is_left_blank() -> None:
    maps = GradientMaps()
    maps.add(1, "G", phase({"G.a.w": 1.0, "G.b.w": 10.0}, {"G.a.w": 0.0, "G.b.w": 0.0}))
    maps.add(2, "G", phase({"G.a.w": "nan", "G.b.w": 10.0}, {"G.a.w": 0.0, "G.b.w": 0.0}))
    (gradient_map,) = maps.finish()
    assert gradient_map.norms == ((0.0, None), (1.0, 1.0))
    assert gradient_map.zeros == ((0.0, None), (0.0, 0.0))


def test_never_is_in_no_phase_and_no_report() -> None:
    maps = GradientMaps()
    maps.add(1, "D", phase({"D.a.w": 1.0, "D.a.b": 1.0}, {"D.a.w": 0.0, "D.a.b": 0.0}, ["D.c.w", "D.late.w"]))
    maps.add(1, "D_r1", phase({"D.a.w": 1.0}, {"D.a.w": 0.0}, ["D.a.b", "D.c.w", "D.late.w"]))
    assert maps.never() == {"D": ("c.w", "late.w")}
    maps.add(2, "D", phase({"D.late.w": 1.0}, {"D.late.w": 0.0}, ["D.c.w"]))
    assert maps.never() == {"D": ("c.w",)}


@given(st.integers(1, 900))
@settings(max_examples=30)
def test_a_long_run_is_thinned_and_keeps_its_means_and_its_end(reports: int) -> None:
    maps = GradientMaps()
    for i in range(reports):
        maps.add(10 * i, "G", phase({"G.a.w": 10.0 ** (i % 2)}, {"G.a.w": (i % 2) / 2}))
    (gradient_map,) = maps.finish()
    assert 1 <= len(gradient_map.steps) <= MOST_COLUMNS
    assert gradient_map.steps[-1] == 10 * (reports - 1)
    assert list(gradient_map.steps) == sorted(set(gradient_map.steps))
    if reports > 2 * MOST_COLUMNS and reports % 2 == 0:
        assert set(gradient_map.norms[0]) == {0.5}  # 1 and 10, averaged as logarithms
        assert set(gradient_map.zeros[0]) == {0.25}


def test_a_training_that_went_back_is_shown_once() -> None:
    maps = GradientMaps()
    one = phase({"G.a.w": 1.0}, {"G.a.w": 0.0})
    for step in (1, 100, 200, 300):
        maps.add(step, "G", one)
    maps.cut(150)
    maps.add(200, "G", phase({"G.a.w": 10.0}, {"G.a.w": 0.0}))
    (gradient_map,) = maps.finish()
    assert (gradient_map.steps, gradient_map.norms) == ((1, 100, 200), ((0.0, 0.0, 1.0),))
    maps.cut(0)
    assert maps.finish() == ()
