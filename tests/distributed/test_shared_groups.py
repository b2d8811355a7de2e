"""Normalisation groups larger than what a rank holds: shared by ranks, and the result is one process's."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from contract.made_up import MadeUpFamily
from contract.rig import FP32, assert_same, largest_difference
from distributed.processes import together, train_by_shares
from distributed.rank_work import SHARED, every_family, trained
from frugan.contract.layers import GroupNormalised
from frugan.engine.plan import Plan
from frugan.engine.ranks.ranks import LonePart, OneRank, TeamGroup, sharing
from frugan.errors import BadInput
from frugan.nn.batch_norm import BatchNorm, MinibatchStd
from frugan.recipe.loading import load_recipe
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from planning.planners import training_planner
from training.pictures import write_pictures, write_recipe

Found = list[dict[str, Any]]
Run = Callable[..., Found]
ROUNDING = 1e-5
"""In float64, where losses alone are fp32; as between micro-batches."""
NAMES = ("made-up", "biggan", "stylegan2")
"""Families with layers that normalise or compare samples."""
SHORT = ("one group", "recompute")
OTHERS = tuple(way for way in SHARED if way not in SHORT)
long = pytest.mark.long


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Run:
    @cache
    def run(size: int, name: str, ways: tuple[str, ...] = SHORT) -> Found:
        folder = tmp_path_factory.mktemp(f"share-{size}-{name}")
        for rank, done in enumerate(together(size, "share-groups", folder, name, *ways)):
            assert done.returncode == 0, f"rank {rank}:\n{done.stdout}"
        return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(size)]

    return run


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=long)])
@pytest.mark.parametrize("way", [way if way in SHORT else pytest.param(way, marks=long) for way in SHARED])
def test_in_every_way(size: int, way: str, found: Run) -> None:
    """One group of 12 or two of 6; the penalty, batch norm and recomputed blocks among it."""
    ways = SHORT if way in SHORT else OTHERS
    _as_alone(trained(MadeUpFamily(), OneRank(), **SHARED[way]), found(size, "made-up", ways), way)


@long
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", NAMES[1:])
def test_a_group_is_shared_by_ranks(size: int, name: str, found: Run) -> None:
    """One group of 12: R1 through minibatch standard deviation, path lengths and batch norm among it."""
    _as_alone(trained(every_family()[name], OneRank(), **SHARED["one group"]), found(size, name), "one group")


@long
def test_recompute_under_penalties(found: Run) -> None:
    """R1 and path lengths differentiate twice through blocks that run again, and sum again."""
    alone = trained(every_family()["stylegan2"], OneRank(), **SHARED["one group"])
    _as_alone(alone, found(2, "stylegan2"), "recompute")


@pytest.mark.long
def test_plans_that_recompute_other_blocks_are_refused_by_name(found: Run) -> None:
    for rank in found(2, "made-up"):
        assert rank["other plans"].startswith("phase critic: rank 1 (")
        assert "share a normalisation group, and their plans recompute different blocks" in rank["other plans"]


@pytest.mark.long
def test_a_recipe_whose_batch_is_one_group(tmp_path: Path) -> None:
    """As the demo's: by two ranks for two steps, by one from then on."""
    write_recipe(tmp_path)
    write_pictures(tmp_path / "pictures")
    first, _ = train_by_shares(tmp_path, "run", "", 2, group=8)
    assert "normalisation groups of 8 are shared by ranks in phases D, G: fewer groups than ranks" in first
    assert "micro-batch: 4 of a normalisation group of 8 that 2 ranks share, of batch 8 on 2" in first
    whole = ["training.normalisation_batch=8", "training.duration=4 steps"]
    recipe, pictures, cpu = str(tmp_path / "tiny.toml"), tmp_path / "pictures", TrainingOptions(device="cpu")
    for run in ("run", "alone"):
        train(recipe, pictures, tmp_path / run, overrides=whole, options=cpu)
    both = [
        load_file(tmp_path / run / "checkpoints" / "step-000000004" / "networks.safetensors")
        for run in ("run", "alone")
    ]
    difference, where = largest_difference(*both)
    assert difference < 1e-3, where  # in fp32 at Adam's own eps


def test_a_micro_batch_is_refused_where_groups_are_shared(said: list[str]) -> None:
    recipe = load_recipe("biggan-digits-32", ["training.batch=32", "training.normalisation_batch=32"])

    def first(micro_batch: int | None) -> Plan:
        options = TrainingOptions(micro_batch)
        ranks = OneRank(0, 2)
        return training_planner(recipe, options, torch.device("cpu"), FP32, said.append, ranks=ranks).first(None)[0]

    with pytest.raises(BadInput, match=r"2 ranks share a normalisation group of 32, .* in one forward, here 16"):
        first(8)
    assert first(None).micro_batch == 16
    assert said[-1].startswith("micro-batch: 16 of a normalisation group of 32 that 2 ranks share")


@pytest.mark.long
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
        assert torch.autograd.gradgradcheck(layer, x, fast_mode=True)
    finally:
        layer.shared = None


class OwnNorm(GroupNormalised):
    """A layer of somebody else's, from before there were shared groups."""


def test_a_layer_that_knows_of_whole_groups_only_is_refused() -> None:
    network = {"D": torch.nn.Sequential(OwnNorm())}
    with sharing(network, None):
        pass
    with (
        pytest.raises(BadInput, match="OwnNorm looks at a whole normalisation group of 8"),
        sharing(network, LonePart(4, 8)),
    ):
        pass


def _with(layer: BatchNorm | MinibatchStd, shared: LonePart, x: Tensor) -> Tensor:
    layer.shared = shared
    made: Tensor = layer(x)
    return made


def _as_alone(alone: dict[str, Tensor], results: Found, name: str) -> None:
    for rank in results[1:]:
        assert_same(results[0][name], rank[name])
    difference, where = largest_difference(alone, results[0][name])
    assert difference < ROUNDING, where
