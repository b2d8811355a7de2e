"""The demo of StyleGAN2, for one step: everything after training is there."""

from pathlib import Path

import pytest
from PIL import Image

from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.training import demo
from frugan.training.demo import DemoResult, demo_stylegan2


def test_one_step_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(name: str) -> Recipe:
        return load_recipe(name, ["training.duration=1 steps", "networks.channel_base=64", "networks.channel_max=8"])

    monkeypatch.setattr(demo, "load_recipe", short)
    monkeypatch.setattr(demo, "PER_CLASS", 3)
    result = demo_stylegan2(tmp_path / "run", say=lambda line: None, show=lambda event: None)
    assert isinstance(result, DemoResult)
    assert result.style_mixing is not None
    assert result.classifier_accuracy > 0.97
    assert 0 <= result.class_accuracy < 0.6
    assert {path.exists() for path in (result.samples, result.interpolation)} == {True}
    with Image.open(result.style_mixing) as grid:
        assert min(grid.size) >= 5 * 64  # a row and a column more than are mixed
