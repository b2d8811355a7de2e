"""Twins of the same precision do not part; another precision does, and what drifts is named."""

from pathlib import Path

import numpy as np
import pytest

from api.pictures import write_pictures, write_recipe
from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.api.progress import quiet
from frugan.api.train.precision_comparison import WINDOWS, Drift, _advice, _drift, compare_precision
from frugan.api.train.run import TrainingOptions
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe
from limits import Limit

CPU = TrainingOptions(device="cpu")


def test_two_precisions_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Limit) -> None:
    limit("windows of a comparison", 3)
    monkeypatch.syspath_prepend(str(OUTSIDE))
    recipe, pictures = minigan_and_pictures(tmp_path)
    comparison = compare_precision(recipe, pictures, tmp_path / "compared", "bf16", steps=6, options=CPU, say=quiet)
    assert comparison.precisions == ("fp32", "bf16")
    assert {drift.phase for drift in comparison.drifts} == {"D", "G"}
    assert {drift.what for drift in comparison.drifts} >= {"real", "fake", "gradient norm"}
    assert max(drift.last for drift in comparison.drifts) > 0
    assert max(drift.first for drift in comparison.drifts) < 0.1
    assert all((run / "events.jsonl").is_file() for run in comparison.runs)
    with pytest.raises(BadInput, match="a comparison is there already"):
        compare_precision(recipe, pictures, tmp_path / "compared", "bf16", steps=6, options=CPU, say=quiet)


@pytest.mark.parametrize(
    ("precision", "steps", "message"),
    [
        ("fp8", 20, "--compare-precision fp8: expected fp32, fp16 or bf16"),
        ("bf16", 5, "--compare-steps 5: expected at least 20"),
        ("fp32", 20, "the recipe's own precision here already"),
    ],
)
def test_comparisons_that_say_nothing(tmp_path: Path, precision: str, steps: int, message: str) -> None:
    recipe, pictures = write_recipe(tmp_path), write_pictures(tmp_path / "pictures")
    with pytest.raises(BadInput, match=message):
        compare_precision(recipe, pictures, tmp_path / "compared", precision, steps=steps, options=CPU, say=quiet)


@pytest.mark.parametrize(
    ("recipe", "overrides", "decay"),
    [("biggan-digits-32", [], "beta2"), ("saehd-demo-64", ["optimizers.default.kind=rmsprop"], "decay")],
)
def test_advice_names_fields_that_the_optimizer_has(recipe: str, overrides: list[str], decay: str) -> None:
    loaded = load_recipe(recipe, overrides)
    phase = loaded.kind.phases(loaded.networks, loaded.objective)[0]
    settings = loaded.optimizer_settings()[phase.optimizer]
    said = str(_advice(loaded, [Drift(phase.name, "loss", 0.0, 0.5, 3)], "fp16"))
    assert f"(learning_rate = {settings.learning_rate}, {decay} = {getattr(settings, decay)}" in said
    assert f"or raise {decay} so that fp16's rounding" in said


def test_drift_is_of_means_and_of_what_stays() -> None:
    steps = np.arange(100)
    steady = 2 + np.sin(steps * 2 * np.pi / WINDOWS)  # whole waves in each window
    shifted = 2 + np.cos(steps * 2 * np.pi / WINDOWS)
    assert _drift(("D", "real"), steady, shifted).notable_from is None
    parting = np.where(steps < 60, steady, 1.5 * steady)
    drift = _drift(("D", "real"), parting, steady)
    assert drift.notable_from == 61
    assert drift.first == 0
    assert drift.last == pytest.approx(0.5)
    broken = np.where(steps == 3, np.nan, steady)
    assert _drift(("D", "real"), broken, broken).last == 0
