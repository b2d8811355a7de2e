"""Scores of generators whose coordinates move: of one as it is, and of one that looks at its coordinates too late."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from evaluation.scored import OPTIONS
from frugan.cli.main import run
from frugan.engine.state.working_weights import prepared
from frugan.errors import BadInput
from frugan.evaluation import equivariance as measured
from frugan.evaluation.equivariance import BY_MOVING, equivariance
from frugan.evaluation.evaluation import evaluate
from frugan.evaluation.real_scores import evaluate_real
from frugan.families.stylegan3.networks import Generator
from frugan.metrics.equivariance import rotation_error, translation_error
from frugan.progress import quiet
from frugan.sampling.generators import Opened, open_networks
from frugan.sampling.requests import DrawRequest
from parity.stylegan3.golden import CASES, load
from sampling.generators import write_moving

MOVED = replace(OPTIONS, metrics=BY_MOVING, samples=10)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_moving(tmp_path_factory.mktemp("weights") / "moving.safetensors")


def scores(opened: Opened, *metrics: str) -> dict[str, float]:
    return equivariance(opened.recipe, opened.networks, metrics, DrawRequest(), 6)


def test_what_follows_its_coordinates(weights: Path) -> None:
    opened = open_networks(weights, "cpu", quiet)
    found = scores(opened, *BY_MOVING)
    assert found["eqt"] > 100
    assert found["eqt_frac"] > 60
    assert found["eqr"] > 60
    assert all(0 < found[f"{name}_half_width"] < 20 for name in ("eqt", "eqt_frac", "eqr"))
    synthesis = opened.networks["G"].get_submodule("synthesis")
    assert torch.equal(synthesis.get_buffer("input.transform"), torch.eye(3))  # as it was
    pattern = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(3))
    synthesis.register_forward_hook(lambda module, inputs, pictures: pictures + pattern)
    sticking = scores(opened, *BY_MOVING)
    assert max(sticking[name] for name in ("eqt", "eqt_frac", "eqr")) < 20


def test_formula_and_translations(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean over pictures of the mean squared error, by whole pixels up to an eighth of the picture."""
    errors: list[float] = []
    offsets: list[tuple[float, float]] = []

    def noted(still: Tensor, moved: Tensor, right: float, down: float) -> float:
        x, y = int(right), int(down)
        offsets.append((right - x, down - y))
        here = moved[:, max(0, y) : 32 + min(0, y), max(0, x) : 32 + min(0, x)]
        there = still[:, max(0, -y) : 32 + min(0, -y), max(0, -x) : 32 + min(0, -x)]
        assert max(abs(x), abs(y)) <= 4
        errors.append(float((here - there + 0.01).square().mean()))
        return translation_error(still, moved + 0.01, right, down)

    monkeypatch.setattr(measured, "translation_error", noted)
    found = scores(open_networks(weights, "cpu", quiet), "eqt")
    assert found["eqt"] == pytest.approx(10 * math.log10(4 / (sum(errors) / len(errors))), rel=1e-5)
    assert {*offsets} == {(0.0, 0.0)}


@pytest.mark.parametrize("name", CASES)
def test_errors_of_recorded_pictures(name: str) -> None:
    """Recorded moved pictures have the errors of those that are drawn here."""
    case = load(name)
    generator = Generator(case.networks)
    generator.load_state_dict(case.state)
    with prepared(generator), torch.no_grad():
        still = generator(case.io("z"), case.classes)[0]
        generator.synthesis.input.transform.copy_(case.io("transform"))
        moved = generator(case.io("z"), case.classes)[0]
    back = torch.linalg.inv(case.io("transform").double())
    side, degrees = len(still[0]), math.degrees(math.atan2(back[0, 1], back[0, 0]))
    right, down = (side * back[:2, 2]).tolist()
    for ours, recorded in (
        (
            translation_error(still, moved, right, down),
            translation_error(case.io("img")[0], case.io("img_transformed")[0], right, down),
        ),
        (
            rotation_error(still, moved, degrees),
            rotation_error(case.io("img")[0], case.io("img_transformed")[0], degrees),
        ),
    ):
        assert ours == pytest.approx(recorded, rel=1e-4)


def test_nothing_real_is_needed(
    weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["evaluate", str(weights), "--metrics", "eqt,eqr", "--samples", "10", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["frugan", *words, "--json"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert {*printed["scores"]} == {"eqt", "eqt_half_width", "eqr", "eqr_half_width"}
    assert printed["half_widths"]["eqt"] == printed["scores"]["eqt_half_width"]
    assert (printed["provenance"]["samples"], printed["provenance"]["precision"]) == (10, "fp32")
    with pytest.raises(BadInput, match="no real pictures to compare with"):
        evaluate(weights, None, replace(MOVED, metrics=("eqt", "two-sample")), say=quiet)


def test_what_has_no_coordinates(scored: Path) -> None:
    with pytest.raises(BadInput, match="--metrics eqt,eqr: biggan has no coordinates to move"):
        evaluate(scored / "run", None, replace(MOVED, metrics=("eqr", "eqt")), say=quiet)
    with pytest.raises(BadInput, match=r"--metrics eqt,eqt-frac,eqr: .* real pictures have none"):
        evaluate_real(scored / "pictures", MOVED, say=quiet)
