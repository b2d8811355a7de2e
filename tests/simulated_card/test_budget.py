"""A budget holds for all that a training takes on a simulated card, its context among it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contract.made_up import MadeUpFamily
from contract.rig import Rig
from engine import runs
from frugan.contract.phase import MicroBatch, Phase
from frugan.engine.state.state import TrainingState
from frugan.engine.step.update import Probe
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from frugan.wording import MIB
from training.pictures import write_pictures, write_recipe

Cards = Callable[..., Any]
CARD = torch.device("privateuseone", 0)  # torch's name of it until it is registered
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


class Wide(Probe):
    """Takes much at a micro-batch of a whole batch, and in the third step finds no room for it."""

    def micro_batch_begins(self, state: TrainingState, phase: Phase, micro: MicroBatch) -> MicroBatch:
        """See `Probe`."""
        if micro.size == 8:
            if state.step == 2:
                raise torch.OutOfMemoryError("on purpose")
            torch.empty(64 * MIB, dtype=torch.uint8, device=CARD)
        return micro


def test_the_peak_that_is_reported_is_that_of_the_plan_in_force(cards: Cards, tmp_path: Path) -> None:
    cards()
    rig = Rig.create(MadeUpFamily(), device=CARD)
    rig.step = replace(rig.step, probe=Wide())
    smaller = replace(rig.plan, micro_batch=4)
    _, events, _ = runs.train(tmp_path, 4, rig=rig, next_plan=lambda *_: smaller)
    first, *_, last = (event["memory_bytes"] for event in events if event["event"] == "step")
    assert first > 64 * MIB > last
