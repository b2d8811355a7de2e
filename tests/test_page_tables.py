"""Pages say what the records say, and records of predictions what is predicted today."""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("program", ["performance_page", "training_page", "predicted_pages", "zoo_page"])
def test_tables_are_those_of_the_records(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tables, maker = importlib.import_module("page_tables"), importlib.import_module(program)
    pages = [page.read_text("utf-8") for page in maker.PAGES]
    for page in pages:
        assert tables.filled(page, maker.TABLES) == page, f"run python benchmarks/{program}.py"
        assert tables.filled(page.replace("| --- |", "| === |"), maker.TABLES) == page  # a table that is wrong is seen
    assert set(re.findall(r"<!-- table: ([a-z0-9 ]+) -->", "".join(pages))) == set(maker.TABLES)


def test_predictions_in_records_are_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    program = importlib.import_module("published_costs")
    recorded = importlib.import_module("page_tables").read(program.RECORD.name)["rows"]
    for row in ("auto-128-8", "imagenet-128-8"):
        found = program.run(program.trainings()[row])
        assert {**recorded[row], "ran_seconds": found["ran_seconds"]} == found, (
            "run python benchmarks/predicted_pages.py --anew"
        )


def test_limits_of_cards_in_records_are_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    program = importlib.import_module("card_limit")
    recorded = importlib.import_module("page_tables").read("card-limit.json")["steps"]
    (step,) = (step for step in recorded if (step["card"], step["recipe"]) == ("rtx-3060", "biggan-small-64"))
    assert program.limit_on(step["card"], step["recipe"]) == step, "run python benchmarks/card_limit.py"


def test_growth_in_records_is_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    program = importlib.import_module("growth")
    recorded = importlib.import_module("page_tables").read("growth-counts.json")["axes"]
    for axis, points in program.counted_axes().items():
        if axis in ("channels", "cards"):
            assert program.counts_of(points[1]) == recorded[axis]["points"][1], (
                "run python benchmarks/growth.py --counts"
            )


def test_powers_are_those_of_the_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    program = importlib.import_module("growth")
    rows = [{"x": x, "square": 3 * x**2, "same": 5, "root": x**0.5, "sometimes": x - 1} for x in (1, 2, 4, 8)]
    assert program.exponents(rows) == {"square": 2.0, "same": 0.0, "root": 0.5}


def test_a_search_gives_blocks_back_in_a_named_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    program = importlib.import_module("block_orders")
    planner = program.planner_of("biggan-digits-32", (), program.PlanOptions())
    orders = program.orders(planner)
    for order in orders.values():
        assert {name: sorted(blocks) for name, blocks in order.items()} == {
            name: sorted(blocks) for name, blocks in planner.search.space.blocks.items()
        }
    search = program.ordered(planner.search, orders["end"])
    assert search.space.costly_blocks == orders["end"] != orders["weights"]
    assert search.estimates is planner.search.estimates


def test_what_is_counted_for_a_card_is_what_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    program = importlib.import_module("card_limit")
    planned, behind = program.Work(macs=1000, bytes_moved=1000), program.Work(bytes_moved=500)
    found = {("G", "product", "mm"): planned, (program.AVERAGES, "moves numbers", "lerp"): behind}
    program.check_counts("a step", found, planned)
    with pytest.raises(RuntimeError, match="a step: 1000 macs were counted, and the planner has 1100"):
        program.check_counts("a step", found, program.Work(macs=1100, bytes_moved=1000))


def test_what_people_write_is_answered_with_recorded_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    published, tables = importlib.import_module("published_costs"), importlib.import_module("page_tables")
    page = (tables.DOCS / "common-advice.md").read_text("utf-8")
    missing = [figure for figure in (*_faces(published, tables), *_advice(tables)) if figure not in page]
    assert not missing, "docs/common-advice.md says otherwise than the records"


def _faces(published: Any, tables: Any) -> Iterator[str]:
    name = "faces-512-1"
    training, found = published.trainings()[name], tables.read(published.RECORD.name)["rows"][name]
    theirs = json.loads((ROOT / "benchmarks" / "published" / "other-costs.json").read_text("utf-8"))["rows"][name]
    least, most = theirs["seconds"]["rtx-2060"]
    (line,) = published.lines(name, training, found)
    *_, ours, _ = (cell.strip() for cell in line.strip("| ").split("|"))
    yield (
        f"one iteration of {theirs['micro_batch']} faces in half precision | {least} to {most} s | {ours} s while the "
        "card is busy"
    )
    yield f"The same, batch {theirs['micro_batch']} on its 6 GB"


def _advice(tables: Any) -> Iterator[str]:
    """Figures of docs/common-advice.md, as its record has them."""
    record = tables.read("common-advice.json")
    memory = {(row["recipe"], row["plan"]): row for row in record["memory"]}
    for recipe in ("biggan-imagenet-128", "saehd-df-ud-512"):
        full, half = (memory[recipe, plan]["live_gib"] for plan in ("fp32", "half"))
        yield f"{full:.2f} → {half:.2f} GiB (\N{MINUS SIGN}{1 - half / full:.0%})".replace("%", " %")
    for (_, plan), row in memory.items():
        parts = row["at_the_peak_gib"]
        kept = sum(parts.get(part, 0) for part in ("parameters", "averages", "optimizer"))
        cells = [kept, parts.get("working weights"), parts["gradients"], parts["saved activations"], row["live_gib"]]
        shown = " | ".join("none" if cell is None else f"{cell:.2f}" for cell in cells)
        more = " | ".join(f"{row[extra]:.0%}".replace("%", " %") for extra in ("extra_macs", "extra_bytes_moved"))
        yield f"| {shown} |" if plan in ("fp32", "half") else f"| {more} | {row['live_gib']:.2f} |"
    half_types = [[row for row in record["dssim"] if row["dtype"] == kind] for kind in ("float16", "bfloat16")]
    for fp16, bf16 in zip(*half_types, strict=True):
        windows = [
            f"{100 * row['at_or_below_zero']:.1f} % | \N{MINUS SIGN}{-row['least']:.{digits}f}"
            for row, digits in ((fp16, 4), (bf16, 3))
        ]
        yield f"| {fp16['window']} | {' | '.join(windows)} |"
    norms = record["accumulation"]
    yield f"{100 * norms['batch norm']:.1f} % with batch norm, by {norms['group norm']:.0e}"
    errors = [100 * record["rate"][kind]["relative_error"] for kind in ("fp16", "bf16")]
    yield f"fp16 holds it to {errors[0]:.2f} %, bf16 to {errors[1]:.2f} %"
    for share in ("parameters", "working weights", "optimizer"):
        yield " / ".join(f"{row[share]:.1f}" for row in record["file"])
    one, eight, *_ = record["power_iterations"]
    worst = [f"{100 * row['largest_error']:.1f} %" for row in (one, eight)]
    yield (
        f"{one['layers']} layers to {100 * one['mean_error']:.2f} % (worst: {worst[0]}), eight to "
        f"{100 * eight['mean_error']:.2f} % ({worst[1]})"
    )
