"""What this computer cannot hold is refused before anything is read."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe
from frugan.setup.devices import CGROUP_LIMIT, container_limit, host_bytes
from frugan.setup.recipe_setup import refuse_full_disk, refuse_too_large
from frugan.training.training import train
from training.pictures import write_pictures, write_recipe


def computer_of(monkeypatch: pytest.MonkeyPatch, memory_bytes: int | None, limit: str | None = None) -> None:
    """Let the system say that this computer has so much memory, and its container such a limit.

    Args:
        memory_bytes: None: it does not say (Windows).
        limit: what its file says; None: there is none.
    """
    system, read = os.sysconf, Path.read_text

    def says(name: str) -> int:
        if name == "SC_PHYS_PAGES" and memory_bytes is None:
            raise ValueError("unrecognized configuration name")
        return {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": memory_bytes or 0}.get(name) or system(name)

    def reads(path: Path, *given: Any, **more: Any) -> str:
        if path == CGROUP_LIMIT and limit is None:
            raise FileNotFoundError(path)
        return limit if path == CGROUP_LIMIT and limit is not None else read(path, *given, **more)

    monkeypatch.setattr(os, "sysconf", says)
    monkeypatch.setattr(Path, "read_text", reads)


def test_what_memory_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(write_recipe(tmp_path))
    for has, message in (
        (25_000, r"networks of \d+,\d+ parameters take 0\.\d MiB"),
        (20_000, "training.batch = 8: the"),
    ):
        computer_of(monkeypatch, has)
        with pytest.raises(BadInput, match=message):
            refuse_too_large(recipe)
    for room in (1 << 30, None):
        computer_of(monkeypatch, room)
        refuse_too_large(recipe)


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    for text, expected in (("max\n", None), (f"{4 << 30}\n", 4 << 30)):
        limit.write_text(text)
        assert container_limit(limit) == expected
        with monkeypatch.context() as pretended:
            computer_of(pretended, 64 << 30, text)
            assert host_bytes() == (expected or 64 << 30)
    computer_of(monkeypatch, None)
    assert host_bytes() is None


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    recipe, pictures, run = write_recipe(tmp_path), write_pictures(tmp_path / "pictures"), tmp_path / "a" / "run"
    refuse_full_disk(load_recipe(recipe), run)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    with pytest.raises(BadInput, match=r"for its first checkpoint; the disk has 0\.1 MiB free"):
        train(recipe, pictures, run)
    assert not run.parent.exists()
