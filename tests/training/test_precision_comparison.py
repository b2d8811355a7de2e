"""Twins of the same precision do not part; another precision does, and what drifts is named."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from faults.small_runs import OUTSIDE, minigan_and_pictures, recipe_and_pictures
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.families.biggan.networks import DiscriminatorBlock
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe
from frugan.setup.run_data_sources import open_sources
from frugan.training.block_errors import block_errors, relative_error
from frugan.training.precision_comparison import WINDOWS, Drift, _advice, _drift, compare_precision
from frugan.training.run import TrainingOptions
from limits import Limit
from training.pictures import write_pictures, write_recipe

CPU = TrainingOptions(device="cpu")
GENERATOR, DISCRIMINATOR = [("G", i) for i in (1, 2)], [("D", i) for i in range(4)]
"""Blocks of the small recipe; the generator's first is in fp32 already."""


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
    assert comparison.try_first == 'training.fp32_blocks=["G.block"]'
    with pytest.raises(BadInput, match="a comparison is there already"):
        compare_precision(recipe, pictures, tmp_path / "compared", "bf16", steps=6, options=CPU, say=quiet)


def test_the_block_that_half_precision_changes_most_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Limit
) -> None:
    """Each by itself: what a block before it has spoiled does not count."""
    limit("windows of a comparison", 1)
    forward = DiscriminatorBlock.forward

    def spoiled(self: DiscriminatorBlock, x: Tensor) -> Tensor:
        made = forward(self, x)
        return 1.25 * made if self.first and x.dtype == torch.bfloat16 else made

    monkeypatch.setattr(DiscriminatorBlock, "forward", spoiled)
    recipe, pictures = recipe_and_pictures(tmp_path)
    words = ['training.fp32_blocks=["G.blocks.0"]']
    comparison = compare_precision(
        recipe, pictures, tmp_path / "compared", "bf16", steps=2, overrides=words, options=CPU, say=quiet
    )
    assert comparison.block is not None
    assert comparison.block.block == "D.blocks.0.0"
    assert comparison.block.relative == pytest.approx(0.25, abs=0.02)
    assert comparison.try_first == 'training.fp32_blocks=["G.blocks.0", "D.blocks.0.0"]'
    loaded = load_recipe(recipe, words)
    errors = block_errors(
        loaded, open_sources(loaded, pictures, quiet, None), RunFolder(comparison.runs[0]), "bf16", torch.device("cpu")
    )
    assert errors[0] == comparison.block
    assert all(0 < each.relative < 0.05 for each in errors[1:])
    assert {each.block for each in errors} == {f"{n}.blocks.{i}.0" for n, i in (*GENERATOR, *DISCRIMINATOR)}


def test_a_block_that_gives_what_is_not_finite_is_the_worst() -> None:
    assert relative_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])) == pytest.approx(0.5 / 7.25**0.5)
    assert relative_error(torch.tensor([1.0, float("inf")]), torch.ones(2)) == float("inf")
    assert relative_error(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0


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
    parting = np.where(steps < 60, steady, 1.5 * steady)
    broken = np.where(steps == 3, np.nan, steady)

    def drift(one: NDArray[np.float64], other: NDArray[np.float64], every: int = 1) -> Drift:
        curves = ({1 + every * i: float(curve[i]) for i in range(len(steps))} for curve in (one, other))
        return _drift(("D", "real"), *curves)

    assert drift(steady, shifted).notable_from is None
    parted = drift(parting, steady)
    assert parted.notable_from == 61
    assert parted.first == 0
    assert parted.last == pytest.approx(0.5)
    assert drift(parting, steady, every=4).notable_from == 241  # of a phase that runs now and then, the step
    assert drift(broken, broken).last == 0
