"""Compiled phases on two ranks: each compiles its own share, and both end with what one alone has."""

from pathlib import Path

import pytest
import torch

from contract.made_up import MadeUpFamily
from contract.rig import assert_same, largest_difference
from distributed.processes import together
from distributed.rank_work import STEPS, rig_of
from frugan.engine.ranks.ranks import OneRank

ROUNDING = 1e-5
"""In float64, where losses alone are fp32; as between micro-batches."""


@pytest.mark.long
def test_two_ranks_that_compile_train_as_one_that_does_not(tmp_path: Path) -> None:
    for rank, done in enumerate(together(2, "compiled", tmp_path)):
        assert done.returncode == 0, f"rank {rank}:\n{done.stdout}"
    results = [torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]
    assert_same(results[0]["state"], results[1]["state"])
    alone = rig_of(MadeUpFamily(), OneRank())
    alone.run(STEPS)
    difference, where = largest_difference(alone.tensors(), results[0]["state"])
    assert difference < ROUNDING, where
    for rank in results:
        assert rank["said"]
        assert all(line.startswith(("compiling phase", "compiled phase")) for line in rank["said"])
