"""Entry point of the `frugan` command: errors become one sentence on stderr and an exit code.

Processes that make face samples read the module again that the program was started with, which may be this one: the
commands are imported only once one of them runs, and torch, which takes seconds, inside those that need it. So is rich:
until `run` begins nothing can tell of a Ctrl-C.
"""

import atexit
import errno
import gc
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from frugan.cli import BAD_INPUT, FAILED, INTERRUPTED, TRAINING
from frugan.errors import BadInput, TrainingFailed

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def _warnings_as_lines(console: "Console") -> Iterator[None]:
    """Show warnings and exceptions in threads as one line each, without source code or traceback."""

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        console.print(f"warning: {message}", markup=False, soft_wrap=True)

    def end_of_thread(fault: threading.ExceptHookArgs) -> None:
        if fault.exc_type is not SystemExit:
            warn(f"a thread in the background ended: {fault.exc_value}")

    before, threading.excepthook = threading.excepthook, end_of_thread
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("default", category=UserWarning)
            # Pillow's, of a large picture: it names none; data/formats/decoding.py refuses by name what is too large
            warnings.filterwarnings("ignore", "Image size", RuntimeWarning)
            warnings.showwarning = warn
            yield
    finally:
        threading.excepthook = before


HOME = re.compile(r"((?:--[a-z-]+=)?(?:[a-z_.]+=)?)(~/.*)", re.DOTALL)
"""A word that is a path below the home folder, perhaps behind an option's or a set's name."""


def run() -> None:
    """Run the command line; errors become one sentence on stderr.

    What ends a program from outside ends it as Ctrl-C does: whatever is written is whole or deleted.
    """
    # a shell leaves ~ as it is in quotes and behind "=", as in --data=~/pictures
    matches = [HOME.fullmatch(word) for word in sys.argv]
    sys.argv = [m[1] + os.path.expanduser(m[2]) if m else word for m, word in zip(matches, sys.argv, strict=True)]
    try:
        with _ended_as_by_ctrl_c():
            from rich.console import Console

            from frugan.cli.application import application

            console = Console(stderr=True, highlight=False)
            with _warnings_as_lines(console), _report_errors(console):
                application()()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        atexit.unregister(_end_at_once)  # tests run many commands in a process
        atexit.register(_end_at_once)  # the last to be registered is the first to run


def _end_at_once() -> None:
    """Leave to the system what the interpreter would tidy up, and let another Ctrl-C end it without a traceback.

    All is written by then. Looking for circles among all objects that torch and a plan have left took seconds, or half
    a minute on a busy machine, in which the shell seemed to hang.
    """
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt, unless the caller ignores them (`nohup`)."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    ours = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def _report_errors(console: "Console") -> Iterator[None]:
    """End the program on an error with one sentence and its exit code."""

    def end(kind: str, message: str, code: int) -> None:
        console.print(f"[bold red]{kind}:[/]", end=" ")
        console.print(message, markup=False, soft_wrap=True)
        sys.exit(code)

    try:
        yield
    except BadInput as error:
        end("bad input", str(error), BAD_INPUT)
    except TrainingFailed as error:
        end("training stopped", str(error), FAILED)
    except (FileExistsError, NotADirectoryError) as error:
        wanted = "is a file, and a folder is wanted there; choose another path"
        end("bad input", f"{error.filename}: {wanted}", BAD_INPUT)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            end("bad input", f"{error.filename}: a longer name than the system takes; choose a shorter one", BAD_INPUT)
        end("failed", _words(error), FAILED)


def _words(error: OSError) -> str:
    """Describe what the system refused, what to do about it, and the state of the training if there was one."""
    full = (
        " The disk is full: free some room and run the same command again."
        if error.errno in (errno.ENOSPC, errno.EDQUOT)
        else ""
    )
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    untouched = " Earlier checkpoints are untouched." if command in TRAINING else ""
    return f"{error}.{full}{untouched}"


if __name__ == "__main__":
    run()
