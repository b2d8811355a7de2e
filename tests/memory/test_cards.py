"""Cards, budgets and calibration."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from contract.rig import BF16, FP32
from frugan.engine.accelerator.base import Processor
from frugan.engine.precision import Precision
from frugan.errors import BadInput
from frugan.memory import calibration
from frugan.memory.calibration import calibrate, load_calibration, save_calibration
from frugan.memory.cards import (
    GENERATIONS,
    PUBLISHED,
    WORKSPACE_BYTES,
    Budget,
    card_here,
    generation_of,
    is_spilling,
    load_libraries,
    named_card,
    spills,
    unnamed_card,
)
from frugan.memory.tracker import Tracker
from frugan.memory.work import MacCounter, Work, WorkCounter
from frugan.wording import GIB, MIB
from limits import Limit


@pytest.mark.parametrize("name", ["rtx-3060", "RTX 3060", "NVIDIA GeForce RTX 3060", " rtx-3060 ", "rtx3060"])
def test_a_card_is_found_by_its_makers_name(name: str) -> None:
    card = named_card(name)
    assert (card.memory_bytes, card.source, card.capability) == (12 * GIB, "guess", (8, 6))


@pytest.mark.parametrize(
    ("name", "gib", "capability"),
    [
        ("NVIDIA TITAN X", 12, (6, 1)),
        ("GeForce GTX TITAN X", 12, (5, 2)),
        ("P100", 16, (6, 0)),
        ("K80", 12, (3, 7)),
        ("GeForce GTX 1070", 8, (6, 1)),
        ("v100-32", 32, (7, 0)),
        ("NVIDIA GeForce RTX 5060 Ti", 8, (12, 0)),
        ("RTX 5090", 32, (12, 0)),
    ],
)
def test_old_and_new_cards_are_known(name: str, gib: int, capability: tuple[int, int]) -> None:
    card = named_card(name)
    assert (card.memory_bytes, card.capability) == (gib * GIB, capability)


def test_a_larger_number_is_a_faster_card_within_a_series() -> None:
    series = [PUBLISHED[f"rtx-50{n}"] for n in ("50", "60", "60-ti", "70", "70-ti", "80", "90")]
    for slow, fast in pairwise(series):
        assert (slow.fp32, slow.half) < (fast.fp32, fast.half)
        assert slow.gb_per_s <= fast.gb_per_s


def test_an_unknown_card_names_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"'rtx-9999' is not known; known are gtx-1060.*--calibrate"):
        named_card("rtx-9999")


@pytest.mark.parametrize(
    ("name", "gib", "like"),
    [
        ("NVIDIA GeForce RTX 3060", 12, "rtx-3060"),
        ("NVIDIA GeForce RTX 3060 Ti", 8, "rtx-3060-ti"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", 6, "rtx-3060"),
        ("NVIDIA GeForce GTX 1060 6GB", 6, "gtx-1060"),
        ("NVIDIA GeForce RTX 5060 Ti", 15.5, "rtx-5060-ti-16"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100"),
        ("NVIDIA H100 80GB HBM3", 79.1, "h100"),
        ("NVIDIA H200", 140, "h200"),
        ("Tesla T4", 14.6, "t4"),
        ("Tesla V100-SXM2-16GB", 15.8, "v100"),
        ("Tesla V100-SXM2-32GB", 31.7, "v100-32"),
        ("Tesla P100-PCIE-16GB", 15.9, "p100"),
        ("NVIDIA TITAN X (Pascal)", 11.9, "titan-x"),
        ("NVIDIA GeForce GTX TITAN X", 12, "gtx-titan-x"),
        ("NVIDIA RTX A4000", 16, None),
        ("NVIDIA TITAN Xp", 12, None),
    ],
)
def test_cards_by_what_their_drivers_call_them(name: str, gib: float, like: str | None) -> None:
    here = card_here(name, int(gib * GIB), (8, 6))
    assert (here.name, here.memory_bytes, here.capability) == (name, int(gib * GIB), (8, 6))
    known = unnamed_card() if like is None else named_card(like)
    assert (here.macs_per_s, here.bytes_per_s) == (known.macs_per_s, known.bytes_per_s)


def test_guessed_speeds_name_the_card_that_they_are_of() -> None:
    assert card_here("NVIDIA GeForce RTX 3060", 12 * GIB, (8, 6)).figures_of is None
    assert card_here("NVIDIA GeForce RTX 3060 Laptop GPU", 6 * GIB, (8, 6)).figures_of == "rtx-3060"
    assert card_here("NVIDIA RTX A4000", 16 * GIB, (8, 6)).figures_of == "rtx-2060"


@pytest.mark.parametrize("name", PUBLISHED)
def test_half_precision_is_never_slower(name: str) -> None:
    card = named_card(name)
    assert card.macs_per_s["fp16"] >= card.macs_per_s["fp32"]
    assert (card.macs_per_s["bf16"] > card.macs_per_s["fp32"]) == (PUBLISHED[name].capability >= (8, 0))


FP16 = Precision("fp16", torch.float16, "as published")
SLOW = replace(
    unnamed_card(),
    macs_per_s={"fp32": 10.0, "bf16": 100.0},
    bytes_per_s=5.0,
    host_bytes_per_s=2.0,
    seconds_per_kernel=0.5,
    seconds_per_operation=3.0,
)


def test_plans_are_compared_by_the_sum_of_all_parts() -> None:
    work = Work(macs=100, bytes_moved=10, operations=4, host_bytes=6)
    assert SLOW.compared_seconds(work, FP32) == 10 + 2 + 2 + 3
    assert SLOW.compared_seconds(work, BF16) == 1 + 2 + 2 + 3


def test_time_is_the_longer_one_of_card_and_host() -> None:
    work = Work(macs=100, bytes_moved=10, operations=4, host_bytes=6)
    assert SLOW.seconds(work, FP32) == 10 + 2 + 3
    assert SLOW.seconds(work, BF16) == 4 * 3.0  # the card would be done after 1 + 2 + 3
    assert replace(SLOW, queued=False).seconds(work, BF16) == 1 + 2 + 3 + 4 * 3.0  # a processor is its own host


def test_copies_beside_the_rest_take_what_they_take_longer() -> None:
    """And those that the card waits for come on top."""
    hidden, longer = (Work(macs=100, bytes_moved=10, host_bytes=6, beside_bytes=each) for each in (5, 50))
    for seconds in (SLOW.seconds, SLOW.compared_seconds):
        assert seconds(hidden, BF16) == 1 + 2 + 3
        assert seconds(longer, BF16) == 25 + 3


def test_products_that_stay_fp32_take_their_time_in_half_precision() -> None:
    work = Work(macs=100, fp32_macs=40)
    assert SLOW.seconds(work, BF16) == 60 / 100 + 40 / 10
    assert SLOW.seconds(work, FP32) == 100 / 10


def test_products_are_counted_by_their_numbers() -> None:
    full, half = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bfloat16)
    with WorkCounter() as counter:
        full @ full.T
        half @ half.T @ half
    assert counter.work.macs == 12 + 12 + 12
    assert counter.work.fp32_macs == 12


@pytest.mark.parametrize(
    ("card", "precision", "work", "published_seconds"),
    [
        ("v100", FP32, Work(4.198e13, 6.594e11, 11543, fp32_macs=4.198e13), 8.64),
        ("v100", FP16, Work(3.307e12, 1.26e11, 5692, fp32_macs=3.009e11), 20.84 * 16 / 1000),
        ("a100", FP16, Work(3.307e12, 1.26e11, 5692, fp32_macs=3.009e11), 12.53 * 16 / 1000),
        ("v100", FP16, Work(1.608e12, 6.449e10, 5166, fp32_macs=1.054e11), 3.61 * 64 / 1000),
        ("v100", FP16, Work(4.027e12, 2.457e11, 6305, fp32_macs=8.59e11), 17.55 * 32 / 1000),
    ],
    ids=["biggan", "stylegan2-256", "stylegan2-256-a100", "stylegan2-256-host", "stylegan2-1024"],
)
def test_published_steps_take_what_is_predicted(
    card: str, precision: Precision, work: Work, published_seconds: float
) -> None:
    """Counts of benchmarks/results/published-costs.json, times of benchmarks/published."""
    predicted = named_card(card).seconds(work, precision)
    assert abs(predicted / published_seconds - 1) < 0.12


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _published_times() -> Iterator[tuple[str, float, float]]:
    """Every published time of a card, and least and most of it beside what is predicted, by the record's counts."""

    def rows(file: str) -> dict[str, Any]:
        return dict(json.loads((BENCHMARKS / file).read_text("utf-8"))["rows"])

    predicted = rows("results/published-costs.json")
    for name, row in rows("published/stylegan2-costs.json").items():
        steps = 1000 / (row["batch_per_card"] * int(row["options"]["gpus"]))
        for card in ("v100", "a100"):
            if (published := row.get(f"seconds_per_kimg_{card}")) is not None:
                both = published if isinstance(published, list) else [published, published]
                seconds = steps * named_card(card).seconds(Work(**predicted[name]["work"]), FP16)
                yield card, both[0] / seconds, both[1] / seconds
    for name, row in rows("published/other-costs.json").items():
        precision = FP32 if row["precision"] == "fp32" else FP16
        for card, (least, most) in row["seconds"].items():
            seconds = named_card(card).seconds(Work(**predicted[name]["work"]), precision)
            yield card, least / seconds, most / seconds
            if (beside := row.get("half_beside_fp32")) is not None:
                seconds = named_card(card).seconds(Work(**predicted[name]["fp32"]["work"]), FP32)
                yield card, least / beside["seconds"] / seconds, most / beside["seconds"] / seconds


def test_every_published_time_lies_in_the_range_of_its_generation() -> None:
    """And where there are few, or none, the range is wider than what they show."""
    times = list(_published_times())
    for generation in GENERATIONS:
        own = [(a, b) for card, a, b in times if generation_of(PUBLISHED[card].capability) == generation]
        assert len(own) == generation.rows
        if own:
            least, most = min(a for a, _ in own), max(b for _, b in own)
            assert generation.least <= least < most <= generation.most
            room = 1.15 if generation.rows < 10 else 1.0
            assert generation.least * room <= least < most <= generation.most / room
        else:
            assert generation.most / generation.least > 2.5
    assert unnamed_card().times == (0.7, 2.5)


def test_hosts_of_later_cards_are_faster() -> None:
    """Published steps too small for their cards: 42 to 56 microseconds for each operation, and 27 to 28."""
    assert 42e-6 <= named_card("v100").seconds_per_operation <= 56e-6
    assert 27e-6 <= named_card("a100").seconds_per_operation <= 28e-6
    assert named_card("rtx-2060").seconds_per_operation == named_card("v100").seconds_per_operation
    assert named_card("rtx-4090").seconds_per_operation == named_card("a100").seconds_per_operation


def test_a_budget_divides() -> None:
    budget = Budget.on(replace(unnamed_card(), context_bytes=400 * MIB, workspace_bytes=112 * MIB), 6 * GIB)
    assert budget.step_bytes == 6 * GIB - 512 * MIB
    budget.check(5 * GIB)
    with pytest.raises(BadInput, match=r"parameters alone take 5.60 GiB.*shown what it takes"):
        budget.check(int(5.6 * GIB))


def test_libraries_are_loaded_by_a_convolution_and_a_product_and_nothing_stays() -> None:
    with MacCounter() as counted, Tracker({}) as looking:
        load_libraries(torch.device("cpu"))
    assert counted.macs() > 8 * 8 * 8 * 8 * 9 + 512 * 8  # forward, and more: backward
    assert looking.live_bytes == 0


def test_a_calibration_is_kept_by_the_devices_name(tmp_path: Path) -> None:
    card = replace(named_card("rtx-3060"), source="measured")
    save_calibration(card, tmp_path)
    assert load_calibration("RTX-3060", tmp_path) == card
    assert load_calibration("another", tmp_path) is None
    next(tmp_path.iterdir()).write_text("{", "utf-8")
    assert load_calibration("rtx-3060", tmp_path) is None


def test_this_cpu_is_measured(limit: Limit) -> None:
    limit("side of a measured product", 128)
    limit("bytes of a measured copy", 2**20)
    cpu = torch.device("cpu")
    card = calibrate(cpu)
    assert card.name == Processor(cpu).name
    assert card.source == "measured"
    assert card.context_bytes == card.workspace_bytes == 0
    assert min(card.macs_per_s.values()) > 1e6
    assert 1e-8 < card.seconds_per_kernel < card.seconds_per_operation < 1e-2  # autograd's part is more than nothing
    assert not card.queued
    assert not is_spilling(cpu)


def test_few_launches_and_much_work_do_not_wait_for_the_host() -> None:
    """And a processor, which is its own host, has nothing to wait for."""
    card = named_card("rtx-3060")
    busy = Work(macs=card.macs_per_s["fp32"], operations=1)  # a second
    assert not card.waits_for_launches(busy, FP32)
    launches = 1 / card.seconds_per_kernel
    assert not card.waits_for_launches(replace(busy, operations=0.9 * launches), FP32)
    assert card.waits_for_launches(replace(busy, operations=1.1 * launches), FP32)
    assert not replace(card, queued=False).waits_for_launches(replace(busy, operations=1.1 * launches), FP32)


@pytest.mark.parametrize(
    ("system", "release", "expected"),
    [
        ("Windows", "10", True),
        ("Linux", "5.15.153.1-microsoft-standard-WSL2", True),
        ("Linux", "6.8.0-45-generic", False),
        ("Darwin", "24.0.0", False),
    ],
)
def test_where_a_full_card_spills(system: str, release: str, expected: bool) -> None:
    assert spills(system, release) is expected


@dataclass
class _Watched:
    """Says that each convolution, forward and backward, took so much besides its tensors."""

    extra: int
    live_bytes: int = 0
    has_bf16_units: bool = False
    is_card: bool = True

    @property
    def peak_live_bytes(self) -> int:
        return self.extra

    def give_back(self) -> None:
        pass

    def reset_peaks(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


@pytest.mark.parametrize(("extra", "expected"), [(0, WORKSPACE_BYTES), (500 * MIB, 500 * MIB)])
def test_what_is_measured_raises_the_guess_and_never_lowers_it(
    extra: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "accelerator_of", lambda _: _Watched(extra))
    monkeypatch.setattr(calibration, "_SHAPES", ((1, 4, 8, 8),))
    assert calibration._workspace_bytes(torch.device("cpu")) == pytest.approx(expected, rel=0.001)
