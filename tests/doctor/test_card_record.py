"""Records of self-tests, and the table that benchmarks/cards.py makes of them for docs/memory-measured.md."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmark_programs import program
from frugan.doctor.finding import Finding, judged, left_out
from frugan.doctor.selftest import record
from frugan.errors import BadInput
from frugan.wording import GIB

if TYPE_CHECKING:
    import cards
else:
    cards = program("cards")

ROOT = Path(__file__).parents[2]
FINDINGS = [
    Finding("versions", "fine", "…", None, {"torch": "2.13.0+cu130"}),
    Finding("run folder", "fine", "/home/someone/runs: writes 500 MB/s", None, {"free_bytes": 1}),
    Finding("card", "fine", "…", None, {"name": "NVIDIA GeForce RTX 3060", "capability": [8, 6]}),
    Finding("card memory", "fine", "…", None, {"total_bytes": 12 * GIB}),
]
OUTCOMES = [
    judged("memory as predicted", "small", "…", passed=True, reserved_off=0.02),
    judged("memory as predicted", "large", "…", passed=False, reserved_off=-0.2),
    judged("time as predicted", "small", "…", passed=True, off=0.1),
    left_out("out of memory, by a cap", "small", "…"),
]


def test_a_record_comes_back_and_names_nobody(tmp_path: Path) -> None:
    made = record("NVIDIA GeForce RTX 3060", FINDINGS, OUTCOMES, 61.23)
    (tmp_path / "card.json").write_text(json.dumps(made), "utf-8")
    assert cards.read_records(tmp_path) == [made]
    assert "someone" not in json.dumps(made)
    assert made["passed"] is False
    assert [each["finding"] for each in made["machine"]] == ["versions", "card", "card memory"]


def test_the_table_has_a_row_for_each_card() -> None:
    rows = cards.table_of([record("NVIDIA GeForce RTX 3060", FINDINGS, OUTCOMES, 61.0)]).splitlines()
    assert len(rows) == 3
    assert "NVIDIA GeForce RTX 3060, 12 GiB | 2.13.0+cu130" in rows[2]
    assert "| 2 | 1: memory as predicted (large) | 1 | -20% | +10% |" in rows[2]


def test_without_records_it_says_so() -> None:
    assert cards.table_of([]) == cards.NONE_YET


def test_the_page_has_the_table_of_the_folder() -> None:
    page = (ROOT / "docs" / "memory-measured.md").read_text("utf-8")
    table = cards.page_of(cards.read_records(ROOT / "benchmarks" / "results" / "cards"))
    assert cards.with_table(page, table) == page, "run python benchmarks/cards.py"


def test_every_measured_figure_stands_beside_its_prediction() -> None:
    outcomes = [
        judged("copies", "pinned", "…", passed=True, predicted_bytes_per_s=1e10, measured_bytes_per_s=2e10, off=-0.5),
        judged("memory", "small", "…", passed=True, predicted_live_bytes=GIB, taken_live_bytes=2 * GIB, limit=0.1),
        judged("waits", "small", "…", passed=True, predicted_waits=0, measured_waits=0),
        judged("launches", "small", "…", passed=True, predicted_kernels=5, measured_kernels=None),
    ]
    made = [record("NVIDIA GeForce RTX 3060", FINDINGS, outcomes, 61.0)]
    rows = cards.figures_of(made).splitlines()
    assert rows[2:] == [
        "| NVIDIA GeForce RTX 3060, 12 GiB | copies | pinned | bytes per s | 10.0 GB/s | 20.0 GB/s | -50% |",
        "| NVIDIA GeForce RTX 3060, 12 GiB | memory | small | live bytes | 1.00 GiB | 2.00 GiB | -50% |",
        "| NVIDIA GeForce RTX 3060, 12 GiB | waits | small | waits | 0 | 0 | - |",
    ]
    assert cards.page_of(made) == f"{cards.table_of(made)}\n\n{cards.figures_of(made)}"
    assert cards.page_of([]) == cards.NONE_YET


@pytest.mark.parametrize(
    ("text", "said"), [("{", "no JSON"), ("[]", "expected what"), ('{"format": 9}', "expected what")]
)
def test_another_file_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(text, "utf-8")
    with pytest.raises(BadInput, match=said):
        cards.read_records(tmp_path)


def test_a_page_without_a_place_for_it_is_refused() -> None:
    with pytest.raises(BadInput, match="no place for the table"):
        cards.with_table("# Memory\n", cards.NONE_YET)
