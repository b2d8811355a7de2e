"""A budget holds for all that a training takes on a simulated card, its context among it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api.pictures import write_pictures, write_recipe
from frugan.api.train.run import TrainingOptions
from frugan.api.train.training import train
from frugan.wording import MIB

Cards = Callable[..., Any]
BUDGET_BYTES = 1200 * MIB


def test_a_budget_holds_for_the_whole_process_whatever_its_kernels_take(
    cards: Cards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setenv("FRUGAN_BASE", str(tmp_path / "base"))
    memory = cards(SIMCARD_KERNEL_BYTES=4 * MIB).memory[0]
    options = TrainingOptions(device="simcard:0", memory=f"{BUDGET_BYTES // MIB}MiB")
    pictures = write_pictures(tmp_path / "pictures")
    assert train(write_recipe(tmp_path), pictures, tmp_path / "run", options=options, say=said.append).finished
    assert memory.context_bytes > 450 * MIB  # that are planned with
    assert memory.limit_bytes == BUDGET_BYTES - memory.context_bytes
    assert len([line for line in said if line.startswith("cap: ")]) == 2
