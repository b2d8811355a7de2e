"""How far something is, where there is no terminal for a bar."""

import sys
from io import StringIO

import pytest

from frugan.cli.output import Bar


@pytest.fixture
def now() -> list[float]:
    """The time on a clock that the test moves."""
    return [0.0]


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_lines_come_now_and_then_and_where_something_begins(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Bar("preparing", clock=lambda: now[0]) as bar:
        bar(1, 2000)
        assert told(capsys) == []  # what is over soon is not told
        now[0] = 10.0
        bar(1500, 2000)
        bar(1501, 2000)
        assert told(capsys) == ["preparing: 1,500 of 2,000"]
        bar.begin("judging")
        now[0] = 15.0
        bar(3, 9)
        now[0] = 20.0
        bar(5, 9)
        assert told(capsys) == ["judging", "judging: 5 of 9"]
        now[0] = 30.0
        bar(6, 900)
        assert told(capsys) == ["judging: 6 of 900, about 50 min left"]
        bar(1, 900)  # it begins anew
        now[0] = 40.0
        bar(2, 900)
        assert told(capsys) == ["judging: 2 of 900, about 75 min left"]


def test_a_terminal_has_one_line_that_moves(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Bar("pictures", clock=lambda: now[0]) as bar:
        bar.begin("judging")
        now[0] = 99.0
        bar(2, 9)
    shown = terminal.getvalue()
    assert "judging" in shown
    assert "2/9" in shown
    assert "2 of 9" not in shown
