"""Commands called as a person or a program calls them, in the process of a test."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from frugan.cli.main import run


@dataclass(frozen=True)
class Result:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


Frugan = Callable[..., Result]


@pytest.fixture
def frugan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frugan:
    """Run a command in this process (starting one of its own takes seconds)."""

    def call(*words: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["frugan", *words])
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        code = 0
        try:
            run()
        except SystemExit as error:
            code = int(error.code or 0)
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call
