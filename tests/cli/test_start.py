"""How a command starts: what needs no torch comes without it, and a Ctrl-C is told at any moment."""

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
import sys
from frugan.cli.main import run

class Interrupting:
    def find_spec(self, name, *_):
        if name == WHEN:
            raise KeyboardInterrupt

WHEN, sys.argv = sys.argv[1], ["frugan", *sys.argv[2:]]
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
    ("when", "words"),
    [
        ("typer", ["--help"]),
        ("torch", ["info", "biggan-cifar10-32"]),
        *(
            pytest.param(when, words, marks=pytest.mark.long)
            for when, words in (
                ("rich.console", ["recipes"]),
                ("frugan.cli.application", ["--help"]),
                ("frugan.recipes", ["recipes"]),
            )
        ),
    ],
)
def test_an_interrupt_while_things_are_imported_is_told(when: str, words: list[str]) -> None:
    result = _python(INTERRUPTED, when, *words)
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr.strip().startswith("interrupted")
    assert len(result.stderr.strip().splitlines()) == 1
