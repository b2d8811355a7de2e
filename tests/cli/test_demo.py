"""`frugan demo`: stopped before its end it says so and judges nothing; the commands that it ends with work."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.calling import Frugan
from frugan.cli.output import command_word, program
from frugan.training import demo
from frugan.training.run import TrainingResult
from sampling.generators import MODELS, write


@pytest.mark.parametrize("subject", ["digits", "stylegan2"])
def test_stopped(subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frugan: Frugan) -> None:
    def stopped(*_: object, **__: Any) -> TrainingResult:
        return TrainingResult(tmp_path, step=1234, finished=False, seconds=5.0, threads=1)

    monkeypatch.setattr(demo, "train", stopped)
    told = frugan("demo", subject, "--out", str(tmp_path))
    assert told.returncode == 0
    assert f"Stopped after step 1,234 and saved in {tmp_path}" in told.stdout
    assert "accuracy" not in told.stdout
    printed = json.loads(frugan("demo", subject, "--out", str(tmp_path), "--json").stdout)
    assert printed == {"finished": False, "step": 1234, "run": str(tmp_path)}


def test_the_samples_to_go_on_with_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frugan: Frugan) -> None:
    run = write(MODELS["stylegan2"], tmp_path / "run.safetensors")
    result = demo.DemoResult(1.0, 1.0, 1.0, 5.0, run, run, run, style_mixing=run)
    monkeypatch.setattr(demo, "demo_stylegan2", lambda *_, **__: result)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    told = frugan("demo", "stylegan2").stdout.partition("Next:\n")[2].splitlines()
    assert all(purpose.endswith(":") for purpose in told[::2])  # so that the lines between are copied whole
    lines = [line for line in told[1::2] if " sample " in line]
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line)
        done = frugan(*words[words.index("sample") :], "--device", "cpu")
        assert done.returncode == 0, done.stderr


def test_commands_to_go_on_with_work_in_the_shell_that_typed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = tmp_path / ".venv" / "bin" / "frugan"
    called.parent.mkdir(parents=True)
    called.write_text("#!/bin/sh\n")
    called.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [".venv/bin/frugan", "demo"])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert program() == ".venv/bin/frugan"  # as `make demo` starts it, which activates nothing
    monkeypatch.setenv("PATH", str(called.parent))
    assert program() == "frugan"
    monkeypatch.setattr(sys, "argv", ["/somewhere/frugan/__main__.py", "demo"])
    monkeypatch.setattr(sys, "executable", str(called.parent / "python"))
    assert program() == ".venv/bin/python -m frugan"


def test_commands_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher says its name without .exe there, and PowerShell takes a first word in quotes for text."""
    (tmp_path / "frugan.EXE").write_bytes(b"")
    monkeypatch.setattr("shutil.which", lambda _: str(tmp_path / "frugan.EXE"))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "frugan"), "demo"])
    assert program() == "frugan"
    assert command_word(r".venv\Scripts\frugan", on_windows=True) == r".venv\Scripts\frugan"
    assert command_word(r"C:\my tools\frugan", on_windows=True) == r'& "C:\my tools\frugan"'
    assert command_word("my tools/frugan", on_windows=False) == "'my tools/frugan'"
