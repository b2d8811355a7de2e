"""Gradients that are missing or lost are told of once, in words, and healthy ones are left in peace."""

from typing import Any

from frugan.reporting.signs import GradientSigns


def reported(zeros: dict[str, float], scale: float = 1.0, missing: tuple[str, ...] = ()) -> dict[str, Any]:
    entry = {"gradients": dict.fromkeys(zeros, 1.0), "zero_share": zeros, "loss_scale": scale}
    return entry | ({"without_gradient": list(missing)} if missing else {})


def step(number: int = 1, **phases: dict[str, Any]) -> dict[str, Any]:
    return {"event": "step", "step": number, "phases": phases}


def lines(signs: GradientSigns, *events: dict[str, Any]) -> list[str]:
    return [line for event in events for line in signs.look(event)]


def test_parameters_that_no_phase_reaches_are_named_at_the_first_report() -> None:
    signs = GradientSigns()
    unused = ("D.a", "D.b", "D.c", "D.d", "D.bias")
    first = step(D=reported({"D.w": 0.0, "D.bias": 0.0}, missing=unused[:4]), R1=reported({"D.w": 0.0}, missing=unused))
    (line,) = lines(signs, first, first | {"step": 101})
    assert line.startswith("4 parameters of D got no gradient in any phase: D.a, D.b, D.c and 1 more. No loss depends")
    assert "look whether D's forward uses it" in line


def test_what_one_phase_leaves_out_and_another_reaches_is_no_trouble() -> None:
    first = step(D=reported({"D.w": 0.0, "D.bias": 1.0}), R1=reported({"D.w": 0.0}, missing=("D.bias",)))
    assert lines(GradientSigns(), first) == []


def test_a_resumed_run_is_not_judged_by_the_phases_that_happen_to_be_due() -> None:
    assert lines(GradientSigns(), step(101, D=reported({"D.w": 0.0}, missing=("D.only_r1",)))) == []


def test_fp16_that_loses_gradients_is_told_once_for_each_network() -> None:
    signs = GradientSigns()
    start = {"event": "start", "parameters": {"G.conv": 90, "G.linear": 10, "D.conv": 100}}
    zeros = {"G.conv": 0.8, "G.linear": 0.0}
    events = [start, step(D=reported({"D.conv": 0.1}, 1024.0)), step(101, G=reported(zeros, 1024.0))]
    (line,) = lines(signs, *events, step(201, G=reported(zeros, 1024.0)))
    assert line.startswith("72 % of G's gradients in phase G are exact zeros, most of them in G.conv, G.linear: ")
    assert "training.precision=fp32" in line


def test_zeros_without_a_loss_scale_are_the_networks_own() -> None:
    signs = GradientSigns()
    assert lines(signs, step(G=reported({"G.embed": 0.99}))) == []
    small = [{"event": "start", "parameters": {"G.embed": 10, "G.conv": 90}}]
    assert lines(signs, *small, step(G=reported({"G.embed": 1.0, "G.conv": 0.0}, 1024.0))) == []
    assert lines(signs, {"event": "step", "step": 2, "phases": {"G": {"terms": {}, "loss_scale": 2.0}}}) == []
    assert lines(signs, {"event": "checkpoint"}) == []
