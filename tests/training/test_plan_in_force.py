"""The plan in force and the card that it belongs to, with a card that is pretended."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from frugan.accelerator.precision import Precision
from frugan.engine.plan import Plan
from frugan.engine.ranks.ranks import OneRank, ShareChoice
from frugan.engine.run.training import Training
from frugan.errors import BadInput, TrainingFailed
from frugan.planning.plan_report import PlanReport
from frugan.recipe.loading import load_recipe
from frugan.setup.devices import card_identity, explain_out_of_memory
from frugan.training import beginning, plan_in_force
from frugan.training.plan_in_force import TrainingPlanner
from frugan.training.run import TrainingOptions
from frugan.wording import GIB, MIB
from planning.formula import PredictionsBy, predicted_by_formula
from planning.planners import training_planner
from training.pictures import write_recipe

BF16 = Precision("bf16", torch.bfloat16, "test")
CUDA = torch.device("cuda", 0)
Planned = Callable[..., TrainingPlanner]
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation"


@dataclass
class Pretended:
    """A card: its name and memory, and what is free and held of it."""

    name: str = "NVIDIA GeForce RTX 3060"
    total_memory: int = 12 * GIB
    free: int = 11 * GIB
    reserved: int = 0
    allocated: int = 0


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, predictions_by: PredictionsBy, tmp_path: Path) -> Pretended:
    pretended = Pretended()
    monkeypatch.setenv("FRUGAN_CACHE", str(tmp_path / "cache"))
    predictions_by(predicted_by_formula)
    monkeypatch.setattr("frugan.stepmemory.cards.load_libraries", lambda device: None)
    answers: dict[str, Callable[..., Any]] = {
        "get_device_name": lambda device: pretended.name,
        "get_device_capability": lambda device: (8, 6),
        "get_device_properties": lambda device: pretended,
        "mem_get_info": lambda device: (pretended.free, pretended.total_memory),
        "memory_reserved": lambda device: pretended.reserved,
        "memory_allocated": lambda device: pretended.allocated,
        "set_per_process_memory_fraction": lambda share, device: None,
        "empty_cache": lambda: None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return pretended


@pytest.fixture
def planned(card: Pretended, tmp_path: Path, said: list[str]) -> Planned:
    """A planner of a batch of 512 in groups of 8, by training options."""
    recipe_file = write_recipe(tmp_path)
    words = ["training.batch=512", "training.normalisation_batch=8"]
    return lambda ranks=None, **options: training_planner(
        load_recipe(recipe_file, words),
        TrainingOptions(**options),
        CUDA,
        BF16,
        said.append,
        name=recipe_file,
        ranks=ranks,
    )


def _first(planner: TrainingPlanner, saved: dict[str, Any] | None) -> Plan:
    return planner.first(saved)[0]


def _saved(plan: Plan, changed: dict[str, Any]) -> dict[str, Any]:
    saved = {"device": "cuda", "card": card_identity(CUDA), "memory_budget_bytes": None, "plan": plan.as_json()}
    return saved | changed


def test_a_run_goes_on_by_its_plan_on_the_same_card(planned: Planned, said: list[str]) -> None:
    planner = planned()
    plan = Plan(24, BF16)
    assert _first(planner, _saved(plan, {})) == plan
    assert said[0].startswith("plan: the one that this run has used")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"card": {"name": "NVIDIA GeForce RTX 4090", "memory_bytes": 24 * GIB}}, "RTX 4090 with 24.00 GiB"),
        ({"card": {"name": "NVIDIA GeForce RTX 3060", "memory_bytes": 8 * GIB}}, "RTX 3060 with 8.00 GiB"),
        ({"card": None}, "a card that it did not note"),
        ({"plan": Plan(512, replace(BF16, name="fp16")).as_json()}, "made again for bf16; it was for fp16"),
    ],
)
def test_a_plan_is_for_one_card_and_precision(
    changed: dict[str, Any], why: str, planned: Planned, said: list[str]
) -> None:
    """A plan for 24 GB would fail at once on 6, and one for 6 would waste 24."""
    planner = planned()
    _first(planner, _saved(Plan(512, BF16), changed))
    assert why in said[0]
    assert any(line.startswith("plan: ") and "predicted" in line for line in said)  # made anew


def test_a_run_is_planned_anew_on_a_smaller_card(card: Pretended, planned: Planned, said: list[str]) -> None:
    planner = planned()
    saved = _saved(Plan(512, BF16), {"memory_budget_bytes": 11 * GIB})
    card.name, card.total_memory, card.free = "NVIDIA GeForce RTX 2060", 6 * GIB, 1 * GIB
    assert _first(planner, saved).micro_batch < 512
    assert "RTX 3060 with 12.00 GiB so far, and this is another one; the budget" in said[0]
    assert any(line.startswith("plan: ") and "predicted" in line for line in said)


def test_the_next_plan_takes_no_more_than_there_is_room_for(card: Pretended, planned: Planned) -> None:
    planner = planned()
    card.free, card.reserved = 100 * MIB, 620 * MIB  # 720 for torch, of which libraries take 320
    plan = planner.next(Plan(512, BF16), "G", FULL)
    reserved_bytes = planner.planner.search.run(plan).prediction.reserved_bytes
    assert reserved_bytes <= 400 * MIB < 0.6 * planner.planner.search.run(Plan(512, BF16)).prediction.reserved_bytes
    card.free = 60 * MIB
    card.reserved = 310 * MIB
    with pytest.raises(TrainingFailed, match=r"no plan takes less, and there is room for 50 MiB \(CUDA out of memory"):
        planner.next(plan, "G", FULL)


def test_a_budget_holds_for_the_next_plan_too(planned: Planned) -> None:
    planner = planned()
    planner.asked_bytes = 1000 * MIB
    plan = planner.next(Plan(512, BF16), "G", FULL)
    assert planner.planner.search.run(plan).prediction.reserved_bytes <= (1000 - 450 - 320) * MIB


def test_a_context_that_grows_takes_no_more_than_the_budget(
    card: Pretended, planned: Planned, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the gigabyte that is taken at first, other programs have all but what the card's figure counts."""
    shares: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, _: shares.append(share))
    planner = planned()
    planner.hold_to_budget()
    planner.cap(6 * GIB)
    planner.hold_to_budget()
    assert shares == pytest.approx([1.0, (6 * GIB - 450 * MIB) / card.total_memory])
    room = planner._room_bytes()
    card.free -= 250 * MIB
    planner.hold_to_budget()
    planner.hold_to_budget()  # nothing was added since
    assert shares[2:] == pytest.approx([(6 * GIB - 700 * MIB) / card.total_memory])
    assert "CUDA's context has grown to 700 MiB, from the 450 MiB" in said[-1]
    assert planner._room_bytes() == (room or 0) - 250 * MIB
    assert planner.planner.card.context_bytes == 700 * MIB


def test_loading_that_finds_no_room_is_done_once_more_with_state_on_the_host(planned: Planned, said: list[str]) -> None:
    tried: list[Plan] = []

    def load(plan: Plan) -> str:
        tried.append(plan)
        if not plan.optimizer_on_host:
            raise torch.OutOfMemoryError(FULL)
        return "loaded"

    loaded, plan = planned().load(load, Plan(512, BF16))
    assert loaded == "loaded"
    assert tried == [Plan(512, BF16), plan]
    assert plan.ema_on_host
    assert said[0].startswith("out of memory while networks and their state were loaded: CUDA out of memory.")


@pytest.mark.long
def test_loading_that_never_finds_room_ends_in_a_sentence(planned: Planned) -> None:
    def load(plan: Plan) -> None:
        raise RuntimeError("CUDA driver error: out of memory")

    with pytest.raises(TrainingFailed, match=r"by the smaller plan as well \(CUDA driver.*room for 11.00 GiB.*again"):
        planned().load(load, Plan(512, BF16))


def test_other_errors_are_passed_on() -> None:
    with pytest.raises(RuntimeError, match="shapes"), explain_out_of_memory(torch.device("cpu"), "set up"):
        raise RuntimeError("shapes cannot be multiplied")
    with pytest.raises(TrainingFailed, match="no plan"), explain_out_of_memory(torch.device("cpu"), "set up"):
        raise TrainingFailed("no plan takes less (CUDA out of memory)")


def test_each_rank_plans_for_its_own_share(planned: Planned) -> None:
    """The larger share takes more micro-batches of the same size, or larger ones; what is asked for holds for both."""
    plans = {}
    for rank in (0, 1):
        planner = planned(OneRank(rank, 2, (480, 32)))
        plans[rank] = planner.own_plan(Plan(8, BF16), None)
        assert planner.planner.search.space.training.batch == (480, 32)[rank]
    assert plans[1].micro_batch == 32
    assert plans[0].micro_batch > 32
    assert planned(OneRank(1, 2, (480, 32)), micro_batch=64).own_plan(Plan(64, BF16), None).micro_batch == 32


def test_what_does_not_divide_is_planned_for_the_largest_share(planned: Planned) -> None:
    planner = planned(OneRank(0, 3))  # 22, 21 and 21 groups
    assert _first(planner, None).micro_batch <= 176
    assert planner.planner.search.space.training.batch == 176


def test_parts_of_a_group_are_planned_as_such(card: Pretended, tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path), ["training.batch=64", "training.normalisation_batch=64"])
    planner = training_planner(recipe, TrainingOptions(), CUDA, BF16, print, ranks=OneRank(3, 4))
    assert _first(planner, None).micro_batch == 16
    training = planner.planner.search.space.training
    assert (training.in_parts, training.batch, training.group, training.ranks) == (True, 16, 16, 4)
    common = Plan(16, BF16, {"G": ("blocks.0",)})
    assert planner.own_plan(common, None) is common  # all run the same forwards


@pytest.mark.parametrize("shared_out", [True, False])
def test_the_optimizers_state_stays_shared_out_as_all_ranks_have_it(
    shared_out: bool, card: Pretended, planned: Planned
) -> None:
    """In a rank's own plan, and when memory runs out on it alone."""
    planner = planned(OneRank(1, 2))
    common = Plan(512, BF16, shard_optimizer=shared_out)
    assert planner.own_plan(common, None).shard_optimizer == shared_out
    card.free, card.reserved = 100 * MIB, 620 * MIB
    assert planner.next(common, "G", FULL).shard_optimizer == shared_out


def test_a_process_that_trains_alone_shares_nothing_out(planned: Planned, said: list[str]) -> None:
    assert not _first(planned(shard_optimizer=True), None).shard_optimizer
    assert "--shard-optimizer is ignored: this process trains alone" in said


def test_ranks_that_share_groups_have_one_plan(card: Pretended, tmp_path: Path) -> None:
    """Six groups are enough for four ranks, and not for eight."""
    recipe = load_recipe(write_recipe(tmp_path), ["training.batch=48", "training.normalisation_batch=8"])
    common = Plan(8, BF16, {"G": ("blocks.0",)})
    for ranks, alike in ((OneRank(3, 4, (3, 1, 1, 1)), False), (OneRank(3, 8, (1,) * 8), True)):
        planner = training_planner(recipe, TrainingOptions(), CUDA, BF16, print, ranks=ranks)
        assert (planner.own_plan(common, None) is common) is alike


def test_another_rank_than_the_first_loads_by_a_smaller_plan_too(
    planned: Planned, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Plan] = []
    refused = 1

    def state(_: Training, plan: Plan, *__: Any) -> str:
        loaded.append(plan)
        if len(loaded) <= refused:
            raise torch.OutOfMemoryError(FULL)
        return "state"

    monkeypatch.setattr(Training, "state", state)
    run = planned(ranks=OneRank(1, 2), device="cuda:0").run
    decision = beginning._Decision(ShareChoice(), Plan(256, BF16).as_json(), None, 0, frozenset())
    start = beginning._begin_other_rank(run, decision)
    assert [start.state, start.plan] == ["state", loaded[1]]
    assert loaded[1].optimizer_on_host > loaded[0].optimizer_on_host
    assert any("out of memory while networks and their state were loaded" in line for line in said)
    loaded.clear()
    refused = 2
    with pytest.raises(TrainingFailed, match="memory ran out while"):
        beginning._begin_other_rank(run, decision)


def keeping_on_host(report: PlanReport, size_bytes: int) -> PlanReport:
    """Let a report's plan keep so much in host memory."""
    prediction = replace(report.chosen.prediction, host_bytes=size_bytes)
    return replace(report, chosen=replace(report.chosen, prediction=prediction))


@pytest.mark.parametrize(("has", "kept"), [(16 * GIB, 10 * GIB), (8 * GIB, 0), (None, 10 * GIB)])
def test_a_plan_keeps_no_more_beside_the_card_than_the_computer_has(
    has: int | None, kept: int, planned: Planned, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned memory cannot be swapped: the system would kill the process."""
    monkeypatch.setattr(plan_in_force, "host_bytes", lambda: has)
    training = planned()
    with training.planner as planner:
        report = keeping_on_host(planner.report(12 * GIB), 10 * GIB)
        assert training._within_host_memory(planner, report, 12 * GIB).chosen.host_bytes == kept
    assert bool([line for line in said if "10.00 GiB in the computer's memory" in line]) is (kept == 0)


def test_what_is_asked_for_and_finds_no_host_memory_is_refused(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_in_force, "host_bytes", lambda: 8 * GIB)
    training = planned(use=("ema-on-host",))
    with training.planner as planner:
        report = keeping_on_host(planner.report(12 * GIB), 10 * GIB)
        with pytest.raises(BadInput, match=r"^ema-on-host: this plan would keep 10.00 GiB in the computer's memory"):
            training._within_host_memory(planner, report, 12 * GIB)
