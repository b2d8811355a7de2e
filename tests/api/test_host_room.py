"""What this computer cannot hold is refused before anything is read."""

import shutil
from pathlib import Path

import pytest

from api.pictures import write_pictures, write_recipe
from frugan.api import devices
from frugan.api.train import training
from frugan.api.train.training import refuse_full_disk, refuse_too_large, train
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe


def test_what_memory_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(write_recipe(tmp_path))
    for has, message in (
        (25_000, r"networks of \d+,\d+ parameters take 0\.\d MiB"),
        (20_000, "training.batch = 8: the"),
    ):
        monkeypatch.setattr(training, "host_bytes", lambda has=has: has)
        with pytest.raises(BadInput, match=message):
            refuse_too_large(recipe)
    for room in (1 << 30, None):
        monkeypatch.setattr(training, "host_bytes", lambda room=room: room)
        refuse_too_large(recipe)


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "physical_bytes", lambda: 64 << 30)
    limit = tmp_path / "memory.max"
    for text, expected in (("max\n", None), (f"{4 << 30}\n", 4 << 30)):
        limit.write_text(text)
        assert devices.container_limit(limit) == expected
        monkeypatch.setattr(devices, "container_limit", lambda expected=expected: expected)
        assert devices.host_bytes() == (expected or 64 << 30)
        monkeypatch.undo()
        monkeypatch.setattr(devices, "physical_bytes", lambda: 64 << 30)
    monkeypatch.setattr(devices, "physical_bytes", lambda: None)
    monkeypatch.setattr(devices, "container_limit", lambda: None)
    assert devices.host_bytes() is None


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    recipe, pictures, run = write_recipe(tmp_path), write_pictures(tmp_path / "pictures"), tmp_path / "a" / "run"
    refuse_full_disk(load_recipe(recipe), run)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    with pytest.raises(BadInput, match=r"its disk has 0\.1 MiB free, and the first"):
        train(recipe, pictures, run)
    assert not run.parent.exists()
