"""The full self-test's record: written as things are found, gone on with, and never silent about what was not tried."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from doctor.made_up_card import MadeUpCard
from frugan.cli.application import application
from frugan.doctor import full, selftest
from frugan.doctor.card_memory import SMALL_HELD, planned
from frugan.doctor.cards import Driver
from frugan.doctor.finding import Finding, judged, out_of_time
from frugan.doctor.full import Piece, SavedRecord, Session, origin_of, pieces, quick_figures, run_full_self_test
from frugan.errors import BadInput
from frugan.stepmemory.cards import named_card
from frugan.version import __version__
from frugan.wording import GIB

ORIGIN = {"card": "card", "torch": "2.13.0", "frugan": "1.0"}


@dataclass
class Tried:
    """A piece that notes each time that it is tried."""

    end: BaseException | None = None
    left: list[float] = field(default_factory=list)

    def __call__(self, left_seconds: float) -> Finding:
        self.left.append(left_seconds)
        if self.end is not None:
            raise self.end
        return judged("check", "small", "as it should be", passed=True, predicted_seconds=1.0, measured_seconds=1.1)


def piece(attempt: Callable[[float], Finding | list[Finding]], name: str = "first") -> Piece:
    return Piece(name, "check", "small", attempt)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "record.json"


def call(file: Path, *given: Piece, seconds: float = 100.0) -> dict[str, Any]:
    """A call with these pieces, and the record that it leaves."""
    session = Session("card", SavedRecord.of(file, ORIGIN), [], time.perf_counter() + seconds)
    for each in given:
        session.settle(each, MadeUpCard())
    values: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return values


def test_a_second_call_goes_on_where_the_first_stopped(file: Path) -> None:
    first, second = Tried(), Tried()
    call(file, piece(first))
    values = call(file, piece(first), piece(second, "second"))
    assert [len(first.left), len(second.left)] == [1, 1]
    assert [each["piece"] for each in values["outcomes"]] == ["first", "second"]
    assert values["passed"] is True
    assert values["full"]["begun"] == {}


def test_what_there_is_no_time_for_is_told_and_tried_again(file: Path) -> None:
    tried = Tried()
    values = call(file, piece(tried), piece(lambda left: out_of_time("check", "large", 1e6, left), "large"), seconds=-1)
    assert not tried.left
    assert [each["line"] for each in values["outcomes"]] == ["the time was over before it"] * 2
    assert [each["verdict"] for each in values["outcomes"]] == ["not checked"] * 2
    values = call(file, piece(tried), piece(lambda left: out_of_time("check", "large", 1e6, left), "large"))
    assert [each["verdict"] for each in values["outcomes"]] == ["passed", "not checked"]
    assert values["outcomes"][1]["line"].startswith("takes about 1000000 s, and ")


def test_a_piece_that_breaks_has_failed_and_the_others_go_on(file: Path) -> None:
    values = call(file, piece(Tried(RuntimeError("CUDA error\nand more"))), piece(Tried(), "second"))
    assert [each["verdict"] for each in values["outcomes"]] == ["failed", "passed"]
    assert values["outcomes"][0]["line"] == "RuntimeError: CUDA error"


def test_a_card_that_fails_for_good_loses_no_outcome(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some faults every later call to the card raises, that which gives memory back among them."""

    def gone(_: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")

    on_a_card = MadeUpCard(torch.device("cuda", 0))
    monkeypatch.setattr(selftest, "release_memory", lambda _: None)
    session = Session("card", SavedRecord.of(file, ORIGIN), [], time.perf_counter() + 100)
    session.settle(piece(Tried()), on_a_card)
    monkeypatch.setattr(selftest, "release_memory", gone)
    session.settle(piece(Tried(), "second"), on_a_card)
    outcomes = json.loads(file.read_text("utf-8"))["outcomes"]
    assert [(each["piece"], each["verdict"]) for each in outcomes] == [
        ("first", "passed"),
        ("second", "passed"),
        ("second", "failed"),
    ]
    assert outcomes[-1]["line"].endswith("answers no more: CUDA error: an illegal memory access was encountered")


def test_the_record_names_nobody(file: Path) -> None:
    values = call(file, piece(Tried(RuntimeError(f"no such file: {Path.home() / 'kernels'}"))))
    assert values["outcomes"][0]["line"].endswith("no such file: ~/kernels")


def test_a_piece_that_ends_the_process_is_tried_once_more_and_then_left_alone(file: Path) -> None:
    def ends(left_seconds: float) -> Finding:
        """Look at what a process that ends here would leave."""
        seen.append(json.loads(file.read_text("utf-8")))
        return judged("check", "small", "", passed=True)

    seen: list[dict[str, Any]] = []
    call(file, piece(ends))
    for _ in range(full.TRIES - 1):
        file.write_text(json.dumps(seen[-1]), "utf-8")
        call(file, piece(ends))
    assert seen[-1]["full"]["begun"] == {"first": full.TRIES}
    file.write_text(json.dumps(seen[-1]), "utf-8")
    values = call(file, piece(ends), piece(Tried(), "second"))
    assert len(seen) == full.TRIES
    assert [(each["verdict"], each["piece"]) for each in values["outcomes"]] == [
        ("failed", "first"),
        ("passed", "second"),
    ]
    assert "the process ended in it" in values["outcomes"][0]["line"]


def test_a_person_may_stop_it_at_any_time(file: Path) -> None:
    for _ in range(full.TRIES + 1):
        tried = Tried(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            call(file, piece(tried))
        assert tried.left
        assert json.loads(file.read_text("utf-8"))["full"]["begun"] == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "expected a record of"),
        ('{"format": 1, "outcomes": []}', "no record of a full self-test"),
        (json.dumps({"format": 1, "full": {"origin": ORIGIN}}), "damaged"),
        ('{"format": 1, "device": "card", "full": {"torch": "2.13.0"}}', "is of card None, now card; torch None"),
        (json.dumps({"format": 1, "full": {"origin": ORIGIN | {"card": "other"}}}), "is of card other, now card. What"),
        (json.dumps({"format": 1, "full": {"origin": ORIGIN | {"frugan": "0.9"}}}), "is of frugan 0.9, now 1.0. What"),
    ],
)
def test_another_file_is_refused(text: str, said: str, file: Path) -> None:
    file.write_text(text, "utf-8")
    with pytest.raises(BadInput, match=said):
        SavedRecord.of(file, ORIGIN)
    assert file.read_text("utf-8") == text


def test_every_piece_has_a_name_of_its_own_and_numbers_come_first() -> None:
    card = MadeUpCard()
    names = [each.name for each in pieces(card, quick_figures(card))]
    assert len(names) == len(set(names))
    assert names[0] == "amp: fp32 against float64"
    order = [names.index(name) for name in ("recipe biggan-imagenet-128", "runs out", "copies")]
    assert order == sorted(order)
    assert names.index("biggan: memory saving recompute") > names.index("copies")


def test_a_record_says_what_its_figures_depend_on() -> None:
    card = type("Card", (), {"name": "RTX", "total_bytes": 12})()
    origin = origin_of(card, Driver(found=True, version="580.1"))
    assert {"card": "RTX", "card memory": 12, "driver": "580.1"}.items() <= origin.items()
    assert (origin["torch"], origin["frugan"]) == (torch.__version__, __version__)


def test_a_limit_is_planned_for_on_the_card_that_is_tried() -> None:
    """Whichever card torch would take by itself."""
    figures = replace(named_card("rtx-3060"), context_bytes=3 * GIB)
    report = planned(SMALL_HELD, figures, 6 * GIB)
    assert report.card is figures
    assert report.categories["CUDA context"] == 3 * GIB


@pytest.mark.usefixtures("no_driver")
def test_it_is_for_cards(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="tries what only a card can show, and this is cpu"):
        run_full_self_test("cpu", tmp_path, lambda _: tmp_path / "record.json")
    with pytest.raises(BadInput, match="--minutes -1"):
        run_full_self_test("cpu", tmp_path, lambda _: tmp_path / "record.json", -1.0)
    assert not (tmp_path / "record.json").exists()


@pytest.mark.parametrize("words", [["--full"], ["--selftest", "--minutes", "3"]])
def test_options_that_need_others_are_refused(words: list[str]) -> None:
    assert isinstance(CliRunner().invoke(application(), ["doctor", *words]).exception, BadInput)
