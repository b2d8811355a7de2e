"""The self-test on a processor, and on a card that is none; and that each deliberate fault is reported by it."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from typer.testing import CliRunner

from contract.made_up import Looking, MadeUpFamily
from doctor.made_up_card import MadeUpCard
from frugan.accelerator.base import Accelerator, Event, Processor
from frugan.accelerator.precision import Precision
from frugan.cli.application import application
from frugan.contract.family import Family
from frugan.doctor import checks, real_size, selftest
from frugan.doctor.cards import MeasuredMemory
from frugan.doctor.checks import (
    fp32_arithmetic,
    half_precision,
    memory_saving,
    out_of_memory_is_survived,
    same_as_the_processor,
    trains_as_the_processor,
    waits_on_a_card,
)
from frugan.doctor.finding import Finding, judged, left_out
from frugan.doctor.real_size import (
    MEASURED,
    judge_memory,
    judge_running_out,
    judge_time,
    measured_training,
    real_size_checks,
    real_size_on_a_card,
)
from frugan.doctor.selftest import run_self_test, self_test
from frugan.doctor.trial import FP32, CountedCopies, Trial, Way, begin, tiny_subject
from frugan.engine.run.training import Training
from frugan.engine.state.gradients import SliceSum
from frugan.engine.step import recompute, update
from frugan.errors import TrainingFailed
from frugan.families import families, family
from frugan.planning.prediction import Prediction
from frugan.stepmemory.cards import named_card
from frugan.stepmemory.work import Work
from frugan.wording import MIB

CPU = torch.device("cpu")
BF16 = Precision("bf16", torch.bfloat16, "test")
RTX_3060 = replace(named_card("rtx-3060"), workspace_bytes=2 * MIB)


@pytest.fixture(scope="module")
def tiny() -> Training:
    return tiny_subject(MadeUpFamily())


def test_everything_holds_on_a_processor_and_what_it_cannot_show_is_named() -> None:
    told: list[Finding] = []
    outcomes = self_test({"made-up": MadeUpFamily()}, CPU, tell=told.append)
    assert told == outcomes
    assert [each for each in outcomes if each.state == "failed"] == []
    assert {each.name for each in outcomes if each.state == "passed"} == {
        "fp32 against float64",
        "bf16 against fp32",
        "memory saving micro-batch",
        "memory saving keep-products",
        "memory saving recompute",
        "out of memory, on purpose",
    }
    assert {each.name for each in outcomes if each.state == "not checked"} == {
        "memory saving dense-slices",  # it has no plain dense layer
        "memory saving offload",
        "memory saving ema-on-host",
        "memory saving shard-optimizer",
        "memory saving optimizer-on-host",
        "same step as the processor's",
        "trains as the processor",
        "fp16 against fp32",
        "the host waits for nothing",
        "memory as predicted",
        "time as predicted",
        "out of memory, by a cap",
    }


@pytest.mark.long
def test_everything_holds_for_every_family() -> None:
    outcomes = self_test(families(), CPU)
    assert [each for each in outcomes if each.state == "failed"] == []
    assert {each.subject for each in outcomes if each.state == "passed"} == set(families())


@pytest.mark.long
def test_what_only_a_card_can_show_is_run_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a made-up one, at the size of the contract tests; of a family whose recomputation saves something so small."""
    monkeypatch.setattr(checks, "_anywhere", lambda *_: ())
    monkeypatch.setattr(real_size, "MEASURED", {"made-up": ("tiny", ())})
    monkeypatch.setattr(real_size, "measured_training", lambda _: tiny_subject(family("biggan")))
    monkeypatch.setattr(real_size, "resolve_precision", lambda *_: FP32)  # "auto" is bf16 on some processors
    card = MadeUpCard()
    outcomes = self_test({"made-up": MadeUpFamily()}, CPU, card, RTX_3060)
    verdicts = {each.name: each.state for each in outcomes}
    assert verdicts["same step as the processor's"] == "passed"
    assert verdicts["trains as the processor in fp32"] == "passed"
    assert verdicts["the host waits for nothing"] == "passed"
    assert verdicts["out of memory, by a cap"] == "passed"
    assert {"memory as predicted", "time as predicted"} <= verdicts.keys()
    assert card.waited > 0


def test_a_recipe_that_has_no_room_is_left_out(tiny: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_size, "predict", lambda *_: PREDICTION)
    outcomes = real_size_on_a_card(tiny, MadeUpCard(room=1000), RTX_3060, FP32)
    assert [each.state for each in outcomes] == ["not checked"] * 3
    assert "there is room for" in outcomes[0].line


def test_a_family_without_a_recipe_is_left_out() -> None:
    outcomes = [check() for _, _, check in real_size_checks("made-up", MadeUpCard(), RTX_3060)]
    assert [isinstance(each, Finding) and each.state for each in outcomes] == ["not checked"] * 3


def test_every_family_that_ships_has_a_recipe_of_more_than_one_micro_batch() -> None:
    assert set(MEASURED) == set(families())
    for name in MEASURED:
        subject = measured_training(name)
        assert subject.family == name
        assert subject.micro_batch < subject.batch


# deliberate faults


PREDICTION = Prediction(1000 * MIB, 1100 * MIB, "D", "start", {}, {}, Work())


@pytest.mark.parametrize(
    ("allocated", "reserved", "verdict"),
    [
        (1001, 1101, "passed"),
        (1300, 1400, "passed"),  # with workspaces of 320 MiB
        (1400, 1450, "failed"),
        (900, 1100, "failed"),  # memory that nobody takes cannot be used either
        (1001, 1600, "failed"),
        (1001, 900, "failed"),
    ],
)
def test_a_wrong_prediction_is_reported_on_a_card(allocated: int, reserved: int, verdict: str) -> None:
    card = named_card("rtx-3060")
    outcome = judge_memory("recipe", PREDICTION, MeasuredMemory(allocated * MIB, reserved * MIB), card)
    assert outcome.state == verdict, outcome.line


def test_what_libraries_take_is_recorded_beside_what_was_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """And how torch's allocator was set, which predictions do not know."""
    taken = MeasuredMemory(1100 * MIB, 1200 * MIB, outside_bytes=700 * MIB)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    card = named_card("rtx-3060")
    outcome = judge_memory("recipe", PREDICTION, taken, card)
    assert outcome.line.endswith("; the prediction does not know PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    names = ("workspace_bytes", "taken_workspace_bytes", "context_bytes", "taken_outside_bytes", "allocator")
    recorded = [outcome.values[name] for name in names]
    settings = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert recorded == [card.workspace_bytes, 100 * MIB, card.context_bytes, 700 * MIB, settings]
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    assert "does not know" not in judge_memory("recipe", PREDICTION, taken, card).line


def test_a_cap_that_is_not_survived_is_reported_beside_what_was_found_before(
    tiny: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*_: Any) -> Finding:
        raise TrainingFailed("memory ran out in the midst of the update\nand more")

    monkeypatch.setattr(real_size, "predict", lambda *_: PREDICTION)
    monkeypatch.setattr(real_size, "_time", lambda *_: None)
    monkeypatch.setattr(real_size, "_run_out", failed)
    memory, _, cap = real_size_on_a_card(tiny, MadeUpCard(), RTX_3060, FP32)
    assert memory.values["taken_live_bytes"] > 0
    assert (cap.state, cap.line) == ("failed", "not survived: memory ran out in the midst of the update")


def test_updates_that_were_all_skipped_survive_nothing() -> None:
    updates = [("D", False), ("G", True), ("D", False)]
    found = judge_running_out("made-up", ["D"], updates, finite=True)
    assert found.state == "failed"
    assert found.line == "ran out in D; repeated by a smaller plan; 1 of 3 updates accepted, and none of D"
    assert judge_running_out("made-up", ["D"], [*updates, ("D", True)], finite=True).state == "passed"
    assert judge_running_out("made-up", ["D"], [("D", True)], finite=False).state == "failed"


def test_steps_are_timed_by_the_card_and_not_by_what_the_host_has_queued(
    tiny: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queueing takes no time at all here, and what was queued takes half of the most that is allowed."""
    seconds, each = [0.0], real_size.MOST_SECONDS / 2

    class Slow(Processor):
        def queued_so_far(self) -> Event:
            return SimpleNamespace(synchronize=lambda: seconds.append(seconds.pop() + each))

    class SlowCard(MadeUpCard):
        @property
        def card(self) -> Accelerator:
            return Slow(self.device)

    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    trial = begin(tiny, Way(CPU))
    assert real_size._time(tiny, trial, SlowCard()) is None
    monkeypatch.setattr(real_size, "MOST_SECONDS", 1e9)
    assert real_size._time(tiny, trial, SlowCard()) is not None


@pytest.mark.parametrize(("predicted", "measured", "verdict"), [(1, 1.2, "passed"), (1, 2, "failed"), (2, 1, "failed")])
def test_a_wrong_time_is_reported(predicted: float, measured: float, verdict: str) -> None:
    assert judge_time("recipe", predicted, measured).state == verdict


def test_a_step_that_waits_is_reported() -> None:
    found = waits_on_a_card(tiny_subject(Looking()), MadeUpCard())
    assert found.state == "failed"
    assert "called a synchronizing CUDA operation (made_up_card.py" in found.line


def _slices_grow(self: SliceSum, first: int, leaf: torch.Tensor) -> None:
    assert leaf.grad is not None
    leaf.grad *= 1.001
    _ADD(self, first, leaf)


def _made_again_wrongly(*given: Any, **options: Any) -> torch.Tensor:
    made: torch.Tensor = _CHECKPOINT(*given, **options)
    return made * 1.001


_ADD, _CHECKPOINT = SliceSum.add, checkpoint


@pytest.mark.parametrize(
    ("family", "saver", "place", "name", "wrong"),
    [
        (families()["saehd"], "dense-slices", SliceSum, "add", _slices_grow),
        (MadeUpFamily(), "recompute", recompute, "checkpoint", _made_again_wrongly),
    ],
)
def test_a_saving_that_changes_the_result_is_reported(
    family: Family, saver: Any, place: object, name: str, wrong: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = tiny_subject(family)
    monkeypatch.setattr(place, name, wrong)
    outcome = memory_saving(tiny, CPU, saver)
    assert outcome.state == "failed"
    assert outcome.values["difference"] > outcome.values["limit"]


def test_a_saving_beside_a_card_that_saves_nothing_is_reported(tiny: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "ONLY_BESIDE_A_CARD", ())
    assert memory_saving(tiny, CPU, "offload").state == "passed"
    monkeypatch.setattr(CountedCopies, "is_worth_it", lambda *_: False)
    assert memory_saving(tiny, CPU, "offload").line == "nothing went to host memory"


def test_half_precision_that_is_not_used_is_reported(tiny: Training) -> None:
    assert half_precision(tiny, CPU, BF16).state == "passed"
    outcome = half_precision(tiny, CPU, replace(BF16, dtype=torch.float32))
    assert outcome.state == "failed"
    assert "has not been used" in outcome.line


def test_half_precision_that_is_not_finite_is_reported(tiny: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """As fp16 convolutions are on some GTX 16xx."""
    monkeypatch.setattr(checks, "begin", _broken(lambda way: way.precision.name == "bf16", float("nan")))
    outcome = half_precision(tiny, CPU, BF16)
    assert outcome.state == "failed"
    assert "training.precision=fp32" in outcome.line


def test_fp32_of_few_digits_is_reported(tiny: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """As TF32 is where it is forced."""
    monkeypatch.setattr(checks, "begin", _broken(lambda way: not way.exact, 1.003))
    assert fp32_arithmetic(tiny, CPU).state == "failed"


def test_a_card_that_computes_otherwise_is_reported(tiny: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def first(_: Way) -> bool:
        calls.append(1)
        return len(calls) == 1

    assert same_as_the_processor(tiny, CPU).state == "passed"
    monkeypatch.setattr(checks, "begin", _broken(first, 1.001))
    assert same_as_the_processor(tiny, CPU).state == "failed"


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_card_that_trains_otherwise_is_reported(
    factor: float, tiny: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own first steps alone are off, beside those in float64 that hold."""
    monkeypatch.setattr(checks, "half_precisions", lambda _: ())
    (outcome,) = trains_as_the_processor(tiny, CPU, "adam")
    assert (outcome.state, outcome.values["apart"]) == ("passed", 0)
    calls = []

    def second(_: Way) -> bool:
        calls.append(1)
        return len(calls) == 2

    monkeypatch.setattr(checks, "begin", _broken(second, factor))
    (outcome,) = trains_as_the_processor(tiny, CPU, "adam")
    assert outcome.state == "failed"


def _broken(where: Callable[[Way], bool], factor: float) -> Callable[..., Trial]:
    """Weights that are off by a factor."""

    def made(subject: Training, way: Way, *probe: Any) -> Trial:
        trial = begin(subject, way, *probe)
        if where(way):
            for network in trial.state.networks.values():
                for parameter in network.parameters():
                    nn.init.constant_(parameter, float(parameter.detach().mean()) * factor)
        return trial

    return made


def test_memory_that_runs_out_for_good_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "ran_out_of_memory", lambda _: False)
    outcomes = selftest.run_check(
        "out of memory, on purpose",
        "made-up",
        lambda: out_of_memory_is_survived(tiny_subject(MadeUpFamily()), CPU),
        CPU,
        lambda _: None,
    )
    assert [each.state for each in outcomes] == ["failed"]
    assert "OutOfMemoryError" in outcomes[0].line


# the command


HOLDS = judged("memory saving recompute", "made-up", "largest difference 0", passed=True, difference=0.0)
LEFT_OUT = left_out("time as predicted", "made-up", "only a card can show it")


@pytest.mark.usefixtures("no_driver")
def test_the_command_ends_with_a_table_and_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "self_test", lambda *_: [HOLDS, LEFT_OUT])
    file = tmp_path / "record.json"
    result = CliRunner().invoke(
        application(),
        ["doctor", "--selftest", "--device", "cpu", "--record", str(file), "--out", str(tmp_path)],
        env={"COLUMNS": "200"},
    )
    assert result.exit_code == 0, result.output
    assert "memory saving recompute" in result.stdout
    assert "not checked here: time as predicted (made-up): only a card can show it" in result.stdout
    record = json.loads(file.read_text("utf-8"))
    assert record["passed"] is True
    assert str(tmp_path) not in file.read_text("utf-8")  # nothing of who or where
    assert str(Path.home()) not in file.read_text("utf-8")


@pytest.mark.usefixtures("no_driver")
def test_a_failed_check_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = judged("memory as predicted", "made-up", "off", passed=False)
    monkeypatch.setattr(selftest, "self_test", lambda *_: [failed])
    result = CliRunner().invoke(
        application(), ["doctor", "--selftest", "--device", "cpu", "--json", "--record", str(tmp_path / "r.json")]
    )
    assert result.exit_code == 1
    assert json.loads(result.stdout)["outcomes"][0]["verdict"] == "failed"
    assert CliRunner().invoke(application(), ["doctor", "--record", "x"]).exit_code != 0
    assert run_self_test("cpu", tmp_path).passed is False
