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
from frugan.accelerator.base import Processor
from frugan.accelerator.precision import Precision
from frugan.errors import BadInput
from frugan.stepmemory import calibration
from frugan.stepmemory.calibration import calibrate, load_calibration, save_calibration
from frugan.stepmemory.cards import (
    GENERATIONS,
    LAPTOP_SLOWER,
    PUBLISHED,
    TIME_ERROR,
    WORKSPACE_BYTES,
    Budget,
    card_here,
    generation_of,
    is_known,
    is_spilling,
    left_bytes,
    load_libraries,
    named_card,
    spills,
    unnamed_card,
)
from frugan.stepmemory.tracker import Tracker
from frugan.stepmemory.work import MacCounter, Work, WorkCounter
from frugan.wording import GIB, MIB
from limits import Limit

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["rtx-3060", "RTX 3060", "NVIDIA GeForce RTX 3060", " rtx-3060 ", "rtx3060"])
def test_a_card_is_found_by_its_makers_name(name: str) -> None:
    card = named_card(name)
    assert (card.name, card.source, card.capability) == ("rtx-3060", "guess", (8, 6))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA TITAN X (Pascal)", "titan-x"),
        ("GeForce GTX TITAN X", "gtx-titan-x"),
        ("titanxp", "titan-xp"),
        ("rtx-2080", "rtx-2080"),
        ("2070-super", "rtx-2070-super"),
        ("1650", "gtx-1650"),
        ("1080Ti", "gtx-1080-ti"),
        ("gtx 2080", "rtx-2080"),
        ("4070 Ti Super", "rtx-4070-ti-super"),
        ("RTX 4060 Ti 16GB", "rtx-4060-ti-16"),
        ("4060 ti 8 GB", "rtx-4060-ti"),
        ("GeForce GTX 1060 3GB", "gtx-1060-3"),
        ("GTX 1060 6GB", "gtx-1060"),
        ("4090 laptop", "rtx-4090-laptop"),
        ("RTX_3080 Laptop GPU 16 GB", "rtx-3080-laptop-16"),
        ("RTX 2070 with Max-Q Design", "rtx-2070-laptop"),
        ("a4000", "rtx-a4000"),
        ("RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Quadro RTX 8000", "quadro-rtx-8000"),
        ("RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("RTX3060 12G 显卡", "rtx-3060"),
        ("3060显卡", "rtx-3060"),
        ("ＲＴＸ３０６０显卡８Ｇ", "rtx-3060-8"),
        ("видеокарта RTX 3060 12 ГБ", "rtx-3060"),
        ("RTX 4060 笔记本", "rtx-4060-laptop"),
        ("RTX2060 6GB 笔记本电脑", "rtx-2060-laptop"),  # its memory before the word, or the word before all
        ("笔记本 RTX3050 6G", "rtx-3050-laptop-6"),
        ("游戏本RTX2060显卡", "rtx-2060-laptop"),
        ("carte graphique RTX 3060 12 Go", "rtx-3060"),
        ("4060ti16g", "rtx-4060-ti-16"),
        ("MSI Ventus 3080 12G", "rtx-3080-12"),
        ("A10G", "a10g"),
        ("A100-SXM4-80GB", "a100-80"),
        ("A100-SXM4-40GB", "a100"),
        ("Tesla V100-SXM2-32GB", "v100-32"),
        ("H100 80GB HBM3", "h100"),
        ("H100 PCIe", "h100-pcie"),
        ("微星 魔龙 RTX 3060 12G O系列", "rtx-3060"),  # as shops write them
        ("七彩虹 iGame GeForce RTX 3060 Ultra W OC 12G", "rtx-3060"),
        ("GeForce RTX 3060 Ti 8G D6X Gaming X Trio", "rtx-3060-ti"),
        ("华硕 RTX4060 O8G", "rtx-4060"),
        ("TUF-RTX3060-O12G-V2-GAMING", "rtx-3060"),
        ("MSI Ventus 2X 3060", "rtx-3060"),
        ("RTX™ 4070S", "rtx-4070-super"),
        ("4070TiS", "rtx-4070-ti-super"),
        ("RTX 3060 Laptop GPU 6GB 105W", "rtx-3060-laptop"),
        ("拯救者 RTX4050 6G 笔记本", "rtx-4050-laptop"),
        ("i7-13700H 16G 512G DDR5 6000 RTX4060 8G 笔记本", "rtx-4060-laptop"),  # the computer's memory, and its disk
        ("i7 16G RTX 4060 Ti 8G", "rtx-4060-ti"),
        ("AMD R7 5800H RTX 2060", "rtx-2060"),  # the processor's maker
        ("阿里云 ECS A10 24G", "a10"),
        ("AWS A10G 24GB", "a10g"),
    ],
)
def test_cards_are_found_however_people_write_them(name: str, key: str) -> None:
    assert is_known(name)
    assert named_card(name).name == key


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_name_of_the_table_hides_another(name: str) -> None:
    for written in (name, name.upper().replace("-", " "), f"NVIDIA {name}", f"{name} {PUBLISHED[name].gib}GB"):
        assert named_card(written).name == name


SEEN = json.loads((BENCHMARKS / "published" / "card-memory.json").read_text("utf-8"))
WITH_ERROR_CORRECTION = {"k80", "t4", "a10", "a10g", "a40", "l4", "l40", "l40s", "rtx-6000-ada"}
"""In ordinary memory it takes a part of it."""


def test_a_named_card_has_what_its_driver_leaves() -> None:
    """An RTX 2060 had 5.79 GiB with drivers of 2021 and has 5.60 with those that torch needs now."""
    assert {name: card.left_mib for name, card in PUBLISHED.items() if card.left_mib is not None} == {
        name: row["mib"] for name, row in SEEN["seen"].items()
    }
    assert named_card("rtx-2060").memory_bytes == 5735 * MIB
    for name, card in PUBLISHED.items():
        assert named_card(name).memory_bytes == card.left_bytes < card.gib * GIB


def test_what_is_predicted_to_be_left_is_no_more_than_what_was_seen() -> None:
    """And with today's drivers by at most a thirtieth of the card less; 10 MiB is what two digits of GiB hide."""
    for name, row in (SEEN["seen"] | SEEN["older"]).items():
        card = PUBLISHED[name]
        predicted = left_bytes(card.gib * GIB, card.capability)
        if name not in WITH_ERROR_CORRECTION:
            assert predicted <= (row["mib"] + 10) * MIB, name
            assert name in SEEN["older"] or predicted >= row["mib"] * MIB - card.gib * GIB / 30, name
    assert left_bytes(8 * GIB) == 8 * GIB - 460 * MIB
    assert left_bytes(24 * GIB) == int(0.964 * 24 * GIB)


@pytest.mark.parametrize(
    ("name", "left_gib", "capability"),
    [
        ("P100", 15.89, (6, 0)),
        ("K80", 11.17, (3, 7)),
        ("GeForce GTX 1070", 7.92, (6, 1)),
        ("v100-32", 31.73, (7, 0)),
        ("NVIDIA GeForce RTX 5060 Ti", 7.55, (12, 0)),
        ("RTX 5090", 31.35, (12, 0)),
    ],
)
def test_old_and_new_cards_are_known(name: str, left_gib: float, capability: tuple[int, int]) -> None:
    card = named_card(name)
    assert card.memory_bytes == pytest.approx(left_gib * GIB, abs=0.005 * GIB)
    assert card.capability == capability


def test_a_laptops_card_has_its_own_memory_and_predicted_speeds() -> None:
    laptop, desktop = named_card("rtx-4090-laptop"), named_card("rtx-4080")
    own = replace(desktop, name="rtx-4090-laptop", figures_of="rtx-4080", memory_bytes=left_bytes(16 * GIB))
    assert laptop == replace(own, in_laptop=True)
    assert named_card("rtx-4060-laptop").memory_bytes != named_card("rtx-4060").memory_bytes


def test_a_laptops_card_may_take_longer_unless_it_was_measured() -> None:
    least, most = named_card("rtx-a4000").times
    here = card_here("NVIDIA RTX A4000 Laptop GPU", 8 * GIB, (8, 6))
    assert here.times == (least, LAPTOP_SLOWER * most)
    assert replace(here, source="measured").times == (1 - TIME_ERROR, 1 + TIME_ERROR)


def test_a_larger_number_is_a_faster_card_within_a_series() -> None:
    series = [PUBLISHED[f"rtx-50{n}"] for n in ("50", "60", "60-ti", "70", "70-ti", "80", "90")]
    for slow, fast in pairwise(series):
        assert (slow.fp32, slow.half) < (fast.fp32, fast.half)
        assert slow.gb_per_s <= fast.gb_per_s


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rtx-2090", r"the nearest are (?=.*rtx-2080)(?=.*rtx-3090)([\w-]+, ){4}[\w-]+\. .*--memory 6GiB.*--calibrate"),
        ("RTX 4090 D 24G", r"the nearest are rtx-4090, rtx-4090-laptop, "),  # fewer units than an RTX 4090
        ("4090D", r"the nearest are rtx-4090, rtx-4090-laptop, "),
        ("RTX 4000 SFF Ada", r"the nearest are quadro-rtx-4000, rtx-4000-ada, "),
        ("RTX PRO 4000", r"the nearest are quadro-rtx-4000, rtx-4000-ada, "),
        ("GTX 1650 Ti 4G", r"the nearest are gtx-1650, gtx-1650-super, "),
        ("RTX 3060 4060", r"the nearest are rtx-3060, .*rtx-4060, "),  # which one?
        ("ROG A10", "known are gtx-970, |the nearest are a10, "),  # so short a word may be anything
        ("显卡 12G", "known are gtx-970, "),
        ("voodoo", r"known are gtx-970, .* more \(docs/your-card.md names them\).*--memory 6GiB"),
        ("rtx-3006", r'the nearest are .*--memory 6GiB \(memory="6GiB" in Python\)'),
    ],
)
def test_an_unknown_card_names_the_nearest_and_the_way_out(name: str, said: str) -> None:
    with pytest.raises(BadInput, match=rf"card '{name}' is not known; {said}"):
        named_card(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("RTX 3060 24G", "says 24 GB, and rtx-3060 has 12 GB, rtx-3060-8 has 8 GB"),
        (
            "魔改 RTX 2080 Ti 22G 显卡",
            "says 22 GB, and rtx-2080-ti has 11 GB",
        ),  # somebody soldered more to it
        ("RX 6700 XT", r"is AMD's: .* ROCm .* untested"),
        ("6700xt 12G", r"is AMD's: .* ROCm .* untested"),
        ("Intel Arc A770", "is Intel's, .* training would run on the CPU"),
        ("MX450", "is not in the table"),
        ("NVIDIA GeForce MX450 2G", "is not in the table"),
    ],
)
def test_a_name_that_contradicts_the_table_is_told_why(name: str, said: str) -> None:
    assert not is_known(name)
    with pytest.raises(
        BadInput, match=rf"card '{name}' {said}.*[Gg]ive its memory instead, such as --memory 6GiB"
    ) as refused:
        named_card(name)
    assert "nearest" not in str(refused.value)


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
        ("NVIDIA RTX A4000", 16, "rtx-a4000"),
        ("NVIDIA TITAN Xp", 12, "titan-xp"),
        ("NVIDIA GeForce RTX 2060", 11.6, "rtx-2060-12"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 15.6, "rtx-3080-laptop-16"),
        ("NVIDIA RTX 3500 Ada Generation Laptop GPU", 12, None),
        ("Tesla P40", 24, None),
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
    assert card_here("NVIDIA RTX A4000 Laptop GPU", 8 * GIB, (8, 6)).figures_of == "rtx-a4000"
    assert card_here("Tesla P40", 24 * GIB, (6, 1)).figures_of == "rtx-2060"


@pytest.mark.parametrize("name", PUBLISHED)
def test_half_precision_is_never_slower(name: str) -> None:
    card = named_card(name)
    assert card.macs_per_s["fp16"] >= card.macs_per_s["fp32"]
    assert (card.macs_per_s["bf16"] > card.macs_per_s["fp32"]) == (PUBLISHED[name].capability >= (8, 0))


@pytest.mark.parametrize("name", PUBLISHED)
def test_tf32_is_never_slower_than_fp32_and_only_newer_cards_have_it(name: str) -> None:
    card = named_card(name)
    if PUBLISHED[name].capability < (8, 0):
        with pytest.raises(BadInput, match=f"training.tf32=true: .*, which {name} is not; leave it out"):
            card.precision("fp32", tf32=True)
        return
    fp32, tf32, work = card.precision("fp32"), card.precision("fp32", tf32=True), Work(macs=10**12, bytes_moved=1)
    assert (fp32.tf32, tf32.tf32) == (False, True)
    assert card.seconds(work, tf32) <= card.seconds(work, fp32)


def test_tf32_counts_for_what_stays_in_fp32_beside_halves() -> None:
    card = named_card("a100")
    bf16, work = card.precision("bf16"), Work(macs=10**12, fp32_macs=10**12, bytes_moved=1)
    assert card.seconds(work, replace(bf16, tf32=True)) < card.seconds(work, bf16) / 4
    measured = replace(card, macs_per_s={"fp32": 1e12, "bf16": 1e13})  # before there was TF32
    assert measured.seconds(work, replace(bf16, tf32=True)) == measured.seconds(work, bf16)


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
    for name, row in rows("published/stylegan3-costs.json").items():
        for card in ("v100", "a100"):
            if (published := row.get(f"seconds_per_kimg_{card}")) is not None:
                seconds = 1000 / row["batch"] * named_card(card).seconds(Work(**predicted[name]["work"]), FP16)
                yield card, published / seconds, published / seconds
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
    assert unnamed_card().times == (0.5, 2.75)


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
