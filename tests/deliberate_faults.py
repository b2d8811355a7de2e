"""Puts one fault after the other into a copy of the code and runs the tests that should notice: `make faults`.

`python tests/deliberate_faults.py WORD ...` tries the faults whose name holds one of the words, with `--part 3/8` one
part of eight; parts may run side by side. What was caught at this very commit is not tried again, unless words ask for
it. Ends with 1 if a fault is not caught, if the tests fail without any, or if a fault's old text is no longer there
(once). Needs `os.fork`.
"""

import compileall
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import hypothesis  # noqa: F401  (with torch most of a test's start: loaded once, before the forks)
import pytest
import torch

from deliberate import (
    around_training,
    in_commands,
    in_fir_kernels,
    in_given_up,
    in_kernels,
    in_large_maps,
    in_masks,
    in_matrix_kernels,
    in_modulation_kernels,
    in_nonlinearity,
    in_own_loop,
    in_page,
    in_plans,
    in_pooling_kernels,
    in_runs,
    in_sets,
    in_signals,
    in_swaps,
    in_training,
    in_waits,
    on_a_card,
)
from deliberate.fault import Fault
from passed import ROOT, Passed, part_of, share

TESTS_FAILED = 1
"""What pytest ends with then; everything else says nothing about the fault."""
MOST_SECONDS = 600
"""For the tests of a fault, which may make them wait for ever."""
FAULTS = (
    *in_swaps.FAULTS,
    *in_training.FAULTS,
    *in_own_loop.FAULTS,
    *in_runs.FAULTS,
    *in_masks.FAULTS,
    *in_sets.FAULTS,
    *in_given_up.FAULTS,
    *in_plans.FAULTS,
    *around_training.FAULTS,
    *in_commands.FAULTS,
    *in_page.FAULTS,
    *on_a_card.FAULTS,
    *in_waits.FAULTS,
    *in_kernels.FAULTS,
    *in_large_maps.FAULTS,
    *in_fir_kernels.FAULTS,
    *in_matrix_kernels.FAULTS,
    *in_modulation_kernels.FAULTS,
    *in_nonlinearity.FAULTS,
    *in_pooling_kernels.FAULTS,
    *in_signals.FAULTS,
)


def run_tests(tests: str, source: Path, most_seconds: int = 0) -> tuple[int, str]:
    """Run tests in short mode on a copy of the code, in a process of their own that has torch already.

    Args:
        most_seconds: after which the process ends, by a signal; 0: never.

    Returns:
        What pytest ended with, and the last lines that it printed.
    """
    words, _, expression = tests.partition(" -k ")
    arguments = ["-x", "-q", "-p", "no:cacheprovider", *(f"tests/{word}" for word in words.split())]
    arguments += ["-k", expression.strip("'")] if expression else []
    with tempfile.TemporaryFile("w+") as printed:
        child = os.fork()
        if child == 0:
            signal.alarm(most_seconds)
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            sys.path.insert(0, str(source))
            os.environ["PYTHONPATH"] = str(source)  # of the processes that tests start
            code = int(pytest.main(arguments))
            sys.stdout.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        printed.seek(0)
        return os.waitstatus_to_exitcode(status), "\n".join(printed.read().splitlines()[-5:])


def verdict(fault: Fault, source: Path) -> str:
    """Put a fault into the copy, run its tests, and take it out again."""
    path = source / "frugan" / fault.file
    sound = path.read_text("utf-8")
    if sound.count(fault.old) != 1:
        return f"NO FAULT: {fault.file} holds {fault.old!r} {sound.count(fault.old)} times"
    path.write_text(sound.replace(fault.old, fault.new), "utf-8")
    try:
        code, said = run_tests(fault.tests, source, MOST_SECONDS)
    finally:
        path.write_text(sound, "utf-8")
    if code == TESTS_FAILED:
        return "caught"
    return "NOT caught" if code == 0 else f"NO VERDICT: pytest ended with {code}: {said}"


def main(words: Sequence[str]) -> int:
    """Try faults.

    Args:
        words: of their names, or --part and which; none: all.
    """
    part, passed = (1, 1), Passed("faults")
    known = passed.seconds
    if words[:1] == ["--part"]:
        part, words = part_of(" ".join(words[1:])), []
    elif words:
        known = {}
    os.chdir(ROOT)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a fault of the same size within a second would pass for what it was
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    every = {f"{fault.file}: {fault.name}": fault for fault in FAULTS}
    alike = dict.fromkeys(every, 1.0)
    mine = {name: every[name] for name in share(alike, part)}
    chosen = {name: fault for name, fault in mine.items() if not words or any(word in fault.name for word in words)}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)
        compileall.compile_dir(source, quiet=1)
        failed = 0
        for name in [name for name in chosen if name not in known]:
            begun = time.perf_counter()
            outcome = verdict(chosen[name], source)
            if outcome == "caught":
                passed.keep(name, time.perf_counter() - begun)
            failed += outcome != "caught"
            print(f"{outcome:10}  {name}", flush=True)
        print(f"{len(chosen) - failed} of {len(chosen)} caught")
        named = dict.fromkeys(file for each in chosen.values() for file in each.tests.partition(" -k ")[0].split())
        files = [file for file in named if file not in known]
        # the simulated card has processes of its own, see Makefile
        apart = [file for file in files if file.startswith("simulated_card/")]
        for together in filter(None, (apart, [file for file in files if file not in apart])):
            begun = time.perf_counter()
            code, said = run_tests(" ".join(together), source)
            for file in together if code == 0 else ():
                passed.keep(file, (time.perf_counter() - begun) / len(together))
            if code:
                failed += 1
                print(f"without a fault these tests fail as well:\n{said}")
    print(passed.left(alike, part[1]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
