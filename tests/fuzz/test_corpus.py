"""Files that were made with ill intent are refused, or harmless."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fuzz import formats
from fuzz.corpus import corpus
from fuzz.sandbox import Target, run_cases

MADE = corpus()
TARGETS = list(dict.fromkeys(target for target, _, _ in MADE))


@cache
def _hostile(name: str) -> Target:
    """The reader, with the files of the corpus that are for it in place of damaged ones."""
    whole = formats.target(name)
    makers = [make for target, _, make in MADE if target == name]

    def make(case: int, folder: Path) -> Path:
        return whole.make(-1, folder) if case < 0 else makers[case](folder)

    return replace(whole, make=make)


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_files_do_no_harm(name: str) -> None:
    names = [each for target, each, _ in MADE if target == name]
    outcome = run_cases(_hostile, name, range(len(names)))
    assert outcome.cases == len(names)
    assert [f"{names[fault.case]}: {fault.what}" for fault in outcome.faults] == []
    # a report passes over what it cannot read, a folder over pipes, and its other pictures are taken
    assert outcome.refused or name in ("run", "dataset.json"), "none of them was refused"
