"""Optimizers' state shared out over ranks: bit for bit the training with whole states, and one whole checkpoint."""

from pathlib import Path

import pytest
import torch

from contract.rig import Rig, assert_same, largest_difference
from distributed.processes import together
from distributed.rank_work import every_family, rig_of, trained
from frugan.engine.ranks.ranks import OneRank
from frugan.engine.run.checkpoint import newest_whole, restore

ROUNDING = 1e-5
"""In float64, where losses alone are fp32; as between micro-batches."""


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (2, ("made-up",)),
        *(pytest.param(size, tuple(every_family()), marks=pytest.mark.long) for size in (2, 3)),
    ],
)
def test_shards_change_nothing(size: int, names: tuple[str, ...], tmp_path: Path) -> None:
    families = {name: every_family()[name] for name in names}
    for rank, done in enumerate(together(size, "shard", tmp_path, *families)):
        assert done.returncode == 0, f"rank {rank}:\n{done.stdout}"
    results = [torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True) for rank in range(size)]
    for name, family in families.items():
        for each in results:
            shards = each[name]["shards"]
            assert_same({key: value for key, value in each[name]["whole"].items() if key in shards}, shards)
        assert results[0][name]["whole"].keys() == results[0][name]["shards"].keys()
        alone = {key: value for key, value in trained(family, OneRank()).items() if not key.startswith("term.")}
        difference, where = largest_difference(alone, results[0][name]["shards"])
        assert difference < ROUNDING, (name, where)
        for each in results:
            before, now = each[name]["bytes"]
            assert now < before * 0.8, (name, now / before)  # what is small stays whole: here that is much
    assert_same(results[0]["fp16 whole"], results[0]["fp16"])

    resumed = results[0]["resumed"]
    assert_same(resumed["on"], resumed["again"])
    assert_same(resumed["whole"], resumed["again"])
    assert all(each["apart"] == [True] for each in results)
    difference, where = largest_difference(_resumed_alone(tmp_path / "checkpoints").tensors(), resumed["again"])
    assert difference < ROUNDING, where


def _resumed_alone(checkpoints: Path) -> Rig:
    """By one process, from what several have written."""
    rig = rig_of(every_family()["made-up"], OneRank())
    newest = newest_whole(checkpoints)
    assert newest is not None
    restore(newest[0], newest[1], rig.state)
    rig.run(1)
    return rig
