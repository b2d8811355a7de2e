"""Runs all tests, also those marked `long`, each file in a process of its own: `make test-long`.

`python tests/whole.py --part 3/8` runs one part of eight. What passed at this very commit is not run again.
`python tests/whole.py --keep-seconds` writes how long files took, by which parts are made alike, into seconds.json.
Ends with 1 if a file's tests fail. Needs `os.fork`.
"""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import hypothesis  # noqa: F401  (with torch most of a file's start: loaded once, before the forks)
import pytest
import torch

from passed import ROOT, Passed, part_of, share

TESTS = ROOT / "tests"
SECONDS = TESTS / "seconds.json"
"""File -> seconds of a processor's time that its tests take, the long ones too."""
UNKNOWN_SECONDS = 10.0
"""For a file that has not been timed yet."""
PROCESSES = 2
MOST_SECONDS = 5400
"""For a file, whose tests may wait for ever."""
SOUND = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def begin(file: Path, printed: IO[str]) -> int:
    """Start a file's tests in a process that has torch already; gives its number."""
    child = os.fork()
    if child == 0:
        signal.alarm(MOST_SECONDS)
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        words = ["-m", "long or not long", "--hypothesis-profile", "long", "-p", "no:cacheprovider", str(file)]
        code = int(pytest.main(words))
        sys.stdout.flush()
        os._exit(code)
    return child


def run(files: Sequence[Path]) -> Iterator[tuple[Path, int, float, str]]:
    """Run files' tests, some at a time.

    Yields:
        Of each, as it ends: what pytest ended with, negative if by a signal; seconds of a processor's time; and what it
        printed.
    """
    waiting, running = list(files), dict[int, tuple[Path, IO[str]]]()
    printed: IO[str]
    while waiting or running:
        while waiting and len(running) < PROCESSES:
            printed = tempfile.TemporaryFile("w+")  # noqa: SIM115  (read when the process has ended)
            file = waiting.pop(0)
            running[begin(file, printed)] = file, printed
        child, status, used = os.wait4(-1, 0)
        file, printed = running.pop(child)
        with printed:
            printed.seek(0)
            yield file, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, printed.read()


def main(words: Sequence[str]) -> int:
    """Run a part of the tests, or all.

    Args:
        words: --part and which, or --keep-seconds, or none.
    """
    os.chdir(ROOT)
    torch.set_num_threads(1)
    known = json.loads(SECONDS.read_text("utf-8"))
    files = {str(file.relative_to(TESTS)): file for file in sorted(TESTS.rglob("test_*.py"))}
    seconds = {name: known.get(name, UNKNOWN_SECONDS) for name in files}
    passed = Passed("tests")
    if words == ["--keep-seconds"]:
        took = {name: round(passed.seconds.get(name, seconds[name]), 1) for name in files}
        SECONDS.write_text(json.dumps(took, indent=0) + "\n", "utf-8")
        return 0
    if words and (words[0] != "--part" or len(words) != 2):
        raise SystemExit(f"{' '.join(words)}: expected --part and which, --keep-seconds, or nothing")
    part = part_of(words[1]) if words else (1, 1)
    chosen = share(seconds, part)
    due = sorted((name for name in chosen if name not in passed.seconds), key=lambda name: -seconds[name])
    print(f"{len(chosen)} files, of which {len(chosen) - len(due)} passed at this commit before", flush=True)
    failed = []
    for file, code, took_seconds, said in run([files[name] for name in due]):
        name, is_sound = str(file.relative_to(TESTS)), code in SOUND
        print(f"{'passed' if is_sound else 'FAILED'} {took_seconds:7.1f} s  {name}", flush=True)
        if is_sound:
            passed.keep(name, took_seconds)
        else:
            failed.append(name)
            print(f"pytest ended with {code}:\n{said[-6000:]}", flush=True)
    print("\n".join([f"{len(chosen) - len(failed)} of {len(chosen)} files passed", *failed]))
    print(passed.left(seconds, part[1]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
