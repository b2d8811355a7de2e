"""Shares of a batch that are not alike: the result is one process's, and every rank has a plan of its own."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from contract.made_up import MadeUpFamily
from contract.rig import FP32, assert_same, largest_difference
from distributed.processes import together, train_by_shares
from distributed.rank_work import SHARED, every_family, trained
from frugan.engine.plan import Plan
from frugan.engine.ranks.place import check_shares, parse_shares
from frugan.engine.ranks.ranks import OneRank, ShareChoice
from frugan.engine.run.checkpoint import list_checkpoints, verify
from frugan.errors import BadInput
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import write_pictures, write_recipe

ROUNDING = 1e-5
"""In float64, where losses alone are fp32."""


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (2, ("made-up",)),
        *(pytest.param(size, tuple(every_family()), marks=pytest.mark.long) for size in (2, 3)),
    ],
)
def test_the_result_does_not_depend_on_shares(size: int, names: tuple[str, ...], tmp_path: Path) -> None:
    """Whole groups and parts of one, of ranks that recompute, of ranks that take two groups at a time."""
    for rank, done in enumerate(together(size, "uneven", tmp_path, *names)):
        assert done.returncode == 0, f"rank {rank}:\n{done.stdout}"
    results = [torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True) for rank in range(size)]
    alone = {name: trained(every_family()[name], OneRank()) for name in names}
    alone["shared"] = trained(MadeUpFamily(), OneRank(), **SHARED["one group"])
    for name, whole in alone.items():
        for other in results[1:]:
            assert_same(results[0][name], other[name])
        difference, where = largest_difference(whole, results[0][name])
        assert difference < ROUNDING, (name, where)


@pytest.mark.long
def test_shares_of_a_run(tmp_path: Path) -> None:
    """As asked for two steps, otherwise from then on with optimizers' state shared out, then by one process."""
    write_recipe(tmp_path)
    write_pictures(tmp_path / "pictures")
    first, _ = train_by_shares(tmp_path, "run", "1,1", 2)
    assert "shares: 4, 4 samples, as asked for" in first
    kept = verify(list_checkpoints(tmp_path / "run" / "checkpoints")[-1])["shares"]
    assert sum(kept["samples"]) == 8
    assert [plan["micro_batch"] for plan in kept["plans"]] == [2, 2]

    first, other = train_by_shares(tmp_path, "run", "3,1", 4, "shared out")
    assert "shares: 6, 2 samples, as asked for" in first
    assert "batch: 6 on a rank, of 8 on 2, 2 at a time" in first
    assert "batch: 2 on a rank, of 8 on 2, at once" in other
    before, now = (
        verify(each)["plan"]["shard_optimizer"] for each in list_checkpoints(tmp_path / "run" / "checkpoints")
    )
    assert (before, now) == (False, True)

    longer = ["training.normalisation_batch=2", "training.duration=6 steps"]
    recipe, pictures, cpu = str(tmp_path / "tiny.toml"), tmp_path / "pictures", TrainingOptions(device="cpu")
    for run in ("run", "alone"):
        train(recipe, pictures, tmp_path / run, overrides=longer, options=cpu)
    for file in ("networks", "optimizers"):
        difference, where = largest_difference(_kept(tmp_path / "alone", file, 6), _kept(tmp_path / "run", file, 6))
        assert difference < 2e-3, where  # in fp32 at Adam's own eps, six steps: 0.001; shares weighed as equal: 0.011


@pytest.mark.long
def test_a_run_keeps_its_shares(tmp_path: Path) -> None:
    """Resumed, bit for bit an undisturbed training; without being asked for again."""
    write_recipe(tmp_path)
    write_pictures(tmp_path / "pictures")
    train_by_shares(tmp_path, "whole", "6,2", 4)
    train_by_shares(tmp_path, "run", "3,1", 2)
    first, _ = train_by_shares(tmp_path, "run", "", 4)
    assert "shares: 6, 2 samples, as the run had them here; override with --shares equal" in first
    assert "plan: the one that this run has used" in first
    for file in ("networks", "optimizers"):
        assert_same(_kept(tmp_path / "whole", file, 4), _kept(tmp_path / "run", file, 4))


def _kept(run: Path, file: str, step: int) -> dict[str, torch.Tensor]:
    newest = list_checkpoints(run / "checkpoints")[-1]
    assert newest.step == step
    return load_file(newest.path / f"{file}.safetensors")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("6,6,5", "3 shares for 2 ranks; give one for each rank"),
        ("6,0", "0 is no share; each rank takes at least 1"),
        ("6,-1", "-1 is no share"),
        ("6,", "expected equal, or a whole number for each rank"),
        ("fast", "expected equal, or a whole number"),
        ("0.5,0.5", "expected equal, or a whole number"),
        ("auto", "ranks are not timed any more; give a whole number for each rank"),
    ],
)
def test_shares_that_are_none_are_refused(words: str, said: str) -> None:
    with pytest.raises(BadInput, match=f"--shares {words}: {said}"):
        parse_shares(words, 2)


def test_shares_of_a_process_that_trains_alone_are_refused() -> None:
    with pytest.raises(BadInput, match="2 shares for 1 rank; start them with torchrun --nproc-per-node=2"):
        parse_shares("6,5", 1)


def test_shares_come_out_in_whole_groups() -> None:
    check_shares((6, 6, 5, 5), 22, 1)
    check_shares((6, 2), 32, 4)
    check_shares((5, 3, 4, 4), 16, 8)  # two ranks have the first group, and two the second
    with pytest.raises(BadInput, match=r"--shares 5,3: of a batch of 16 .* not multiples of 4.*--shares 12,4"):
        check_shares((5, 3), 16, 4)
    with pytest.raises(BadInput, match=r"they are not whole samples; the nearest are --shares 7,3"):
        check_shares((2, 1), 10, 1)
    with pytest.raises(BadInput, match="not whole samples of one normalisation group of 8 each"):
        check_shares((6, 6, 2, 2), 16, 8)


def test_plans_are_kept_as_long_as_the_first_rank_keeps_its_own() -> None:
    plan = Plan(4, FP32)
    choice = ShareChoice((6, 2), [plan.as_json(), Plan(2, FP32).as_json()])
    choice.forget_plans_unless_same(plan)
    assert len(choice.plans) == 2
    choice.forget_plans_unless_same(replace(plan, shard_optimizer=True))
    assert choice.plans == []


def test_words_are_refused_before_anything_is_read() -> None:
    with pytest.raises(BadInput, match="--shares 1,x"):
        TrainingOptions(shares="1,x")
