"""The result does not depend on the number of ranks: real processes over gloo beside one that trains alone."""

import json
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from contract.made_up import MadeUpFamily
from contract.rig import FP16, assert_same, largest_difference
from distributed.critic import critic, critic_losses, critic_pictures
from distributed.processes import AFTER_SECONDS, together
from distributed.rank_work import STEPS, every_family, go_on_alone, rig_of, trained
from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.engine.ranks.ranks import OneRank
from frugan.engine.run.events import read_events
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from training.pictures import write_pictures, write_recipe

ROUNDING = 1e-5
"""In float64, where losses alone are fp32; as between micro-batches."""

Found = list[dict[str, Any]]
Run = Callable[[int], Found]
FIRST = {2: ("made-up",), 3: ("made-up", "stylegan2")}
"""Ranks -> families that they train besides their other work."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Run:
    """What each of so many ranks found; they are started once for all tests. Three go on from where two were."""

    @cache
    def run(size: int) -> Found:
        if size == 2:
            write_recipe(folder)
            write_pictures(folder / "pictures")
            return found_by(2, folder, "compare-and-lose", *FIRST[2], codes=(1, -9))
        run(2)  # has written a checkpoint after two steps
        (folder / "three").mkdir()
        (folder / "checkpoints").rename(folder / "three" / "checkpoints")
        go_on_alone(folder / "three" / "checkpoints")
        return found_by(3, folder / "three", "go-on", *FIRST[3])

    return run


def found_by(size: int, folder: Path, work: str, *words: str, codes: tuple[int, ...] = (0, 0, 0)) -> Found:
    for rank, (done, code) in enumerate(zip(together(size, work, folder, *words), codes, strict=False)):
        assert done.returncode == code, f"rank {rank}:\n{done.stdout}"
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(size)]


def assert_as_alone(alone: dict[str, Tensor], results: Found, name: str) -> None:
    for rank in results[1:]:
        assert_same(results[0][name], rank[name])
    difference, where = largest_difference(alone, results[0][name])
    assert difference < ROUNDING, where


@pytest.mark.parametrize(
    ("size", "name"),
    [
        pytest.param(size, name, marks=[pytest.mark.long] if size == 3 else [])
        for size, names in FIRST.items()
        for name in names
    ],
)
def test_the_result_does_not_depend_on_the_number_of_ranks(size: int, name: str, ranks: Run) -> None:
    """Weights, averages, running statistics, singular vectors, carried state, optimizers, terms; shares that differ."""
    assert_as_alone(trained(every_family()[name], OneRank()), ranks(size), name)


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_train_every_family_as_one(size: int, tmp_path: Path) -> None:
    names = tuple(every_family())
    results = found_by(size, tmp_path, "families", *names)
    for name in names:
        assert_as_alone(trained(every_family()[name], OneRank()), results, name)


def test_a_share_that_is_left_out_would_be_noticed() -> None:
    """The tests above could fail: one rank's share alone makes another training."""
    whole, half = (trained(MadeUpFamily(), ranks) for ranks in (OneRank(), OneRank(0, 2)))
    assert largest_difference(whole, half)[0] > 100 * ROUNDING


def test_fp16_looks_for_its_scale_alike(ranks: Run) -> None:
    results = ranks(2)
    assert_same(results[0]["fp16"], results[1]["fp16"])
    alone = trained(MadeUpFamily(), OneRank(), precision=FP16)
    assert largest_difference(alone, results[0]["fp16"])[0] < 0.1  # half precision rounds each rank's sums by itself


def test_what_is_not_finite_on_one_rank_is_skipped_on_all(ranks: Run) -> None:
    skipped = [rank["skipped"] for rank in ranks(2)]
    assert skipped[0]["accepted"] == skipped[1]["accepted"]
    assert [all(step) for step in skipped[0]["accepted"]] == [True, False, True]
    assert_same(skipped[0]["state"], skipped[1]["state"])
    assert all(bool(torch.isfinite(value).all()) for value in skipped[0]["state"].values())


def test_memory_that_runs_out_on_one_rank_changes_nothing(ranks: Run) -> None:
    alone = rig_of(MadeUpFamily(), OneRank())
    alone.run(STEPS)
    assert_as_alone(alone.tensors(), ranks(2), "after out of memory")


def test_ranks_that_came_apart_are_noticed_and_mended(ranks: Run) -> None:
    for rank in ranks(2):
        healed = rank["healed"]
        assert healed["agreed"] == [True, False]
        assert healed["step"] == 1
        assert_same(healed["state"], ranks(2)[0]["healed"]["before"])


def test_resumed_by_as_many_ranks_is_bit_equal(ranks: Run) -> None:
    for rank in ranks(2):
        assert_same(rank["resumed"]["whole"], rank["resumed"]["again"])


@pytest.mark.long
def test_two_ranks_then_one_then_three(ranks: Run) -> None:
    whole = rig_of(MadeUpFamily(), OneRank())
    whole.run(4)
    assert_as_alone(whole.tensors(), ranks(3), "state")


def test_a_lost_rank_is_named_at_once(ranks: Run, folder: Path) -> None:
    ranks(2)  # of which the last was killed at the end
    said = (folder / "lost.txt").read_text()
    assert said.startswith("rank 1 (")
    assert ") is lost; noticed while adding up phase critic" in said
    assert "torchrun --max-restarts" in said


@pytest.mark.long
def test_a_call_that_the_others_leave_out_ends_all_of_them_and_is_named(tmp_path: Path) -> None:
    began = time.monotonic()
    both = together(2, "call-alone", tmp_path)
    assert time.monotonic() - began < 60 + 20  # to start, on a busy machine, and to end
    for done in both:
        assert done.returncode == 1
        assert "they do not run the same, and would wait for each other for ever" in done.stdout
        assert "rank 1 (" in done.stdout
        assert ") was waiting for all ranks" in done.stdout
        assert ") was adding up phase critic" in done.stdout


@pytest.mark.long
def test_a_rank_that_falls_silent_is_lost_within_a_minute(tmp_path: Path) -> None:
    """Rank 0 waits in a sum that nobody can wake it from: the watch ends it, and rank 1, all with the name."""
    began = time.monotonic()
    first, second, frozen = together(3, "freeze", tmp_path)
    assert time.monotonic() - began < 60 + 60 + AFTER_SECONDS  # to start, to notice, and until the frozen one is killed
    assert (first.returncode, second.returncode, frozen.returncode) == (1, 1, -9)
    for rank, done in enumerate((first, second)):
        assert "training stopped: rank 2 (" in done.stdout
        assert f") is lost: no sign of life for 30 seconds; rank {rank} (" in done.stdout


def test_a_run_of_two_ranks_is_one_run(ranks: Run, folder: Path, tmp_path: Path, said: list[str]) -> None:
    """Two ranks train to step 4, one goes on to step 6: as one does all by itself."""
    ranks(2)  # has trained the recipe first
    first, other = (json.loads((folder / f"train-{rank}.json").read_text()) for rank in (0, 1))
    assert first | {"said": [], "rank": 1} == other
    assert (first["step"], first["over"]) == (4, True)
    assert first["said"][0].startswith("ranks: 2, 2 of them on this machine; this is rank 0 (")
    assert "batch: 4 on a rank, of 8 on 2, at once (override with --micro-batch; fewer" in "\n".join(first["said"])
    events = list(read_events(folder / "run" / "events.jsonl"))
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2, 3, 4]
    assert [event for event in events if event["event"] == "warning"] == []

    longer = ["training.duration=6 steps"]
    recipe, pictures, cpu = str(folder / "tiny.toml"), folder / "pictures", TrainingOptions(device="cpu")
    train(recipe, pictures, folder / "run", overrides=longer, options=cpu, say=said.append)
    assert any("the batch is on 1 process now, and was on 2" in line for line in said)
    train(recipe, pictures, tmp_path / "alone", overrides=longer, options=cpu)
    weights = Path("checkpoints", "step-000000006", "networks.safetensors")
    both = (load_file(run / weights) for run in (folder / "run", tmp_path / "alone"))
    difference, where = largest_difference(*both)
    assert difference < 1e-3, where  # in fp32 at Adam's own eps


@pytest.mark.long
def test_ranks_go_back_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates stay not finite from step 3 on: all ranks begin again at the last sound checkpoint, in another order."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    minigan_and_pictures(tmp_path)
    for rank, done in enumerate(together(2, "go-back", tmp_path)):
        assert done.returncode == 0, f"rank {rank}:\n{done.stdout}"
        assert json.loads((tmp_path / f"back-{rank}.json").read_text()) == {"step": 6, "over": True}
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    (back,) = [event for event in events if event["event"] == "rollback"]
    assert (back["to"], back["number"]) == (4, 1)  # saved before the second update in a row was known to be skipped
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert steps[-2:] == [5, 6]
    assert [event["in_a_row"] for event in events if event["event"] == "skipped"][-1] == 2
    assert [event for event in events if event["event"] == "warning" and "apart" in event["line"]] == []


def test_all_ranks_use_the_kernels_that_the_first_has_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    minigan_and_pictures(tmp_path)
    for rank, done in enumerate(together(2, "chosen-kernels", tmp_path)):
        assert done.returncode == 0, f"rank {rank}:\n{done.stdout}"
        assert json.loads((tmp_path / f"kernels-{rank}.json").read_text()) == ["0"]


def test_a_full_disk_of_the_first_rank_leaves_no_other_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    minigan_and_pictures(tmp_path)
    for rank, done in enumerate(together(2, "full-disk", tmp_path)):
        assert done.returncode == 0, f"rank {rank}:\n{done.stdout}"
        assert json.loads((tmp_path / f"full-{rank}.json").read_text()) == {"step": 4, "over": True}
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    assert [event["step"] for event in events if event["event"] == "checkpoint_failed"] == [2]
    assert [event["path"] for event in events if event["event"] == "checkpoint"] == [
        "checkpoints/step-000000004",
        "backups/step-000000004",
    ]


def test_why_not_ddp(ranks: Run) -> None:
    """Torch's wrapper hooks its sums on the outputs of a forward: a penalty's double backward passes by some of them.

    Whole batch of 4 on one process beside two ranks with two each.
    """
    results = [rank["ddp"] for rank in ranks(2)]
    network = critic()
    losses = critic_losses(network, critic_pictures())

    def furthest(case: str, names: tuple[str, ...]) -> float:
        network.zero_grad()
        torch.stack([losses[name] for name in names]).sum().backward(retain_graph=True)
        exact = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
        return max(float((rank[case][name] - g).abs().max()) for rank in results for name, g in exact.items())

    assert furthest("with the main loss", ("main", "penalty")) < 1e-12
    assert furthest("penalty only", ("penalty",)) > 1e-3
    assert furthest("static graph", ("main", "penalty")) > 1e-3
