"""The full self-test on a simulated card: whole, in too little time, gone on with; and its larger pieces one by one."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from frugan.cli.application import application
from frugan.doctor.card_memory import COPIES
from frugan.doctor.cards import CardTools, Driver, memory_finding
from frugan.doctor.full import pieces, quick_figures
from frugan.doctor.real_size import TIME

Cards = Callable[..., Any]
BY_SPEED = {TIME, COPIES}
"""A processor that plays a card is as fast as it is."""


@pytest.fixture
def card(cards: Cards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CardTools:
    monkeypatch.setenv("FRUGAN_BASE", str(tmp_path / "base"))
    cards()
    return CardTools(torch.device("simcard", 0))


def test_the_driver_knows_nothing_of_another_kind_of_card(card: CardTools) -> None:
    found = memory_finding(card.device, Driver(found=False))
    assert found.values["others_bytes"] is None
    assert found.values["total_bytes"] == card.card.total_bytes


def call(file: Path, minutes: float) -> dict[str, Any]:
    words = [
        "doctor",
        "--selftest",
        "--full",
        "--device",
        "simcard:0",
        "--record",
        str(file),
        "--minutes",
        str(minutes),
    ]
    result = CliRunner().invoke(application(), [*words, "--out", str(file.parent)])
    assert isinstance(result.exception, SystemExit | None), result.output
    record: dict[str, Any] = json.loads(file.read_text("utf-8"))
    assert result.exit_code == (0 if record["passed"] else 1)
    return record


def untried(record: dict[str, Any]) -> set[str]:
    return {each["piece"] for each in record["outcomes"] if "left_seconds" in each["figures"]}


@pytest.mark.long
def test_it_goes_on_where_it_had_no_time(card: CardTools, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    first = call(file, 0.3)
    every = {each.name for each in pieces(card, quick_figures(card))}
    assert {each["piece"] for each in first["outcomes"]} == every
    assert {"copies", "recipe biggan-imagenet-128"} <= untried(first)
    second = call(file, 2.0)
    assert {each["piece"] for each in second["outcomes"]} == every
    assert untried(second) < untried(first)
    settled = [each for each in first["outcomes"] if each["piece"] not in untried(first)]
    assert settled
    assert [each for each in settled if each not in second["outcomes"]] == []
    failed = [each for each in second["outcomes"] if each["verdict"] == "failed" and each["check"] not in BY_SPEED]
    assert failed == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "passed"),
    [
        ("recipe biggan-digits-32", 2),
        ("launches stylegan2-digits-32", 2),
        ("held biggan-digits-32", 1),
        ("runs out", 1),
        ("scores", 1),
        ("copies", 2),
    ],
)
def test_a_piece_holds(name: str, passed: int, card: CardTools) -> None:
    found = next(each for each in pieces(card, quick_figures(card)) if each.name == name).attempt(math.inf)
    assert isinstance(found, list)
    assert [each for each in found if each.state == "failed" and each.name not in BY_SPEED] == []
    assert sum(each.state == "passed" for each in found) >= passed


@pytest.mark.long
def test_two_ranks_on_two_cards_train_as_one(card: CardTools, cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = (Path(__file__).parent / "installed", Path(__file__).parents[2] / "src")
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, folders)))
    monkeypatch.setenv("SIMCARD_COUNT", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cards(SIMCARD_COUNT=2)
    (found,) = next(each for each in pieces(card, quick_figures(card)) if each.name == "ranks").attempt(math.inf)  # type: ignore[misc]
    assert found.state == "passed", found.line
