"""How a command starts: what needs no torch comes without it, and a Ctrl-C is told at any moment."""

import signal
import subprocess
import sys

import pytest

LOADED = """
import sys
from frugan.cli.main import run
sys.argv = ["frugan", *sys.argv[1:]]
try:
    run()
except SystemExit as end:
    assert not end.code, end.code
print(sorted({"torch", "numpy", "PIL"} & sys.modules.keys()), file=sys.stderr)
"""
INTERRUPTED = """
import os
import sys
from frugan.cli.main import run

class Interrupting:
    def find_spec(self, name, *_):
        if name == WHEN:
            if not BY:
                raise KeyboardInterrupt
            os.kill(os.getpid(), BY)

WHEN, BY, sys.argv = sys.argv[1], int(sys.argv[2]), ["frugan", *sys.argv[3:]]
sys.meta_path.insert(0, Interrupting())
run()
"""


def _python(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--help"],
        *(
            pytest.param(words, marks=pytest.mark.long)
            for words in (["recipes"], ["--help"], ["evaluate", "--help"], ["--version"])
        ),
    ],
)
def test_help_and_lists_come_without_torch(words: list[str]) -> None:
    result = _python(LOADED, *words)
    assert (result.returncode, result.stderr) == (0, "[]\n")
    assert result.stdout


@pytest.mark.parametrize(
    ("when", "number", "words"),
    [
        ("typer", 0, ["--help"]),
        ("torch", signal.SIGTERM, ["info", "biggan-cifar10-32"]),
        *(
            pytest.param(when, number, words, marks=pytest.mark.long)
            for when, number, words in (
                ("rich.console", 0, ["recipes"]),
                ("frugan.cli.application", signal.SIGHUP, ["--help"]),
                ("frugan.recipes", 0, ["recipes"]),
            )
        ),
    ],
)
def test_an_interrupt_while_things_are_imported_is_told(when: str, number: int, words: list[str]) -> None:
    result = _python(INTERRUPTED, when, str(int(number)), *words)
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr.strip().startswith("interrupted")
    assert len(result.stderr.strip().splitlines()) == 1


ENDED = """
import atexit
import gc
import signal
import sys
from frugan.cli.main import run

def told():
    print(gc.get_freeze_count() > 1000, signal.getsignal(signal.SIGINT) == signal.SIG_DFL, file=sys.stderr)

atexit.register(told)  # before all that a command registers, so that it runs after that
sys.argv = ["frugan", "--version"]
run()
"""


def test_the_interpreter_does_not_tidy_up_at_the_end() -> None:
    """With all that torch leaves it took seconds, in which a Ctrl-C showed a traceback."""
    result = _python(ENDED)
    assert (result.returncode, result.stderr) == (0, "True True\n")
