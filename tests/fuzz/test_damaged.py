"""Every reader on damaged files: a value, or an error of ours."""

import pytest

from fuzz.formats import target, targets
from fuzz.sandbox import Outcome, run_cases

EVERY = 8
"""Of a format's first cases every eighth runs in the short mode."""
LONG = 10
"""So many times the first cases run in the long mode."""


def _check(name: str, outcome: Outcome, cases: int) -> None:
    faults = "\n".join(f"case {fault.case}: {fault.what}" for fault in outcome.faults[:5])
    assert not outcome.faults, f"{len(outcome.faults)} of {cases}:\n{faults}"
    assert outcome.cases == cases
    assert outcome.refused, f"{name}: no damage was noticed"
    print(f"{name}: {cases} cases, {outcome.refused} refused, {outcome.most_bytes >> 20} MiB at most")


def test_there_are_20000_cases() -> None:
    assert LONG * sum(each.cases for each in targets().values()) >= 20_000


@pytest.mark.parametrize("name", targets())
def test_damaged_files_are_refused_or_read(name: str) -> None:
    cases = range(0, target(name).cases, EVERY)
    _check(name, run_cases(target, name, cases), len(cases))


@pytest.mark.long
@pytest.mark.parametrize("name", targets())
def test_forty_times_as_many(name: str) -> None:
    cases = range(LONG * target(name).cases)
    _check(name, run_cases(target, name, cases), len(cases))
