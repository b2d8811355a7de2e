"""Normalisation groups larger than what a rank holds: shared by ranks, and the result is one process's."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.made_up import MadeUpFamily
from contract.rig import assert_same, largest_difference
from distributed.processes import together
from distributed.rank_work import SHARED, every_family, trained
from frugan.engine.ranks.ranks import OneRank
from frugan.engine.ranks.shared_groups import LonePart, TeamGroup
from frugan.nn.batch_norm import BatchNorm
from frugan.nn.minibatch_std import MinibatchStd

Found = list[dict[str, Any]]
Run = Callable[[int], Found]
ROUNDING = 1e-5
"""In float64, where losses alone are fp32; as between micro-batches."""
NAMES = ("made-up", "biggan", "stylegan2")
"""Families with layers that normalise or compare samples."""
SIZES = [2, pytest.param(3, marks=pytest.mark.long)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Run:
    @cache
    def run(size: int) -> Found:
        folder = tmp_path_factory.mktemp(f"share-{size}")
        for rank, done in enumerate(together(size, "share-groups", folder, *NAMES)):
            assert done.returncode == 0, f"rank {rank}:\n{done.stdout}"
        return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(size)]

    return run


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_a_group_is_shared_by_ranks(size: int, name: str, found: Run) -> None:
    """One group of 12: R1 through minibatch standard deviation, path lengths and batch norm among it."""
    _as_alone(trained(every_family()[name], OneRank(), **SHARED["one group"]), found(size), name)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", SHARED)
def test_in_every_way(size: int, way: str, found: Run) -> None:
    _as_alone(trained(MadeUpFamily(), OneRank(), **SHARED[way]), found(size), way)


def test_plans_that_recompute_other_blocks_are_refused_by_name(found: Run) -> None:
    for rank in found(2):
        assert rank["other plans"].startswith("phase critic: rank 1 (")
        assert "share a normalisation group, and their plans recompute different blocks" in rank["other plans"]


def test_without_the_others_it_would_be_noticed() -> None:
    """The tests above could fail: a part that is normalised by itself makes another training."""
    family = every_family()["biggan"]
    whole, part = (trained(family, OneRank(), group=group, micro_batch=group) for group in (12, 6))
    assert largest_difference(whole, part)[0] > 100 * ROUNDING


@pytest.mark.parametrize("layer", [BatchNorm(4).double(), MinibatchStd(2)], ids=["batch-norm", "minibatch-std"])
def test_what_is_summed_is_differentiable_twice(layer: BatchNorm | MinibatchStd) -> None:
    """Numerically, with a sum that two processes of the same samples would have."""

    def doubled(tensor: Tensor) -> None:
        tensor.mul_(2)

    layer.normalisation_batch = 4
    x = torch.randn(2, 4, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    whole = layer(torch.cat([x, x]))[:2]
    layer.shared = TeamGroup(2, 4, doubled)
    try:
        torch.testing.assert_close(layer(x), whole)
        torch.testing.assert_close(layer(x), _with(layer, LonePart(2, 4), x))
        layer.shared = LonePart(2, 4)
        assert torch.autograd.gradcheck(layer, x)
        assert torch.autograd.gradgradcheck(layer, x)
    finally:
        layer.shared = None


def _with(layer: BatchNorm | MinibatchStd, shared: LonePart, x: Tensor) -> Tensor:
    layer.shared = shared
    made: Tensor = layer(x)
    return made


def _as_alone(alone: dict[str, Tensor], found: Found, name: str) -> None:
    for rank in found[1:]:
        assert_same(found[0][name], rank[name])
    difference, where = largest_difference(alone, found[0][name])
    assert difference < ROUNDING, where
