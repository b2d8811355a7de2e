"""The `frugan` command and how it ends: 0, 1 (failed) or 2 (bad input)."""

import errno
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console

from frugan.cli.convert import convert
from frugan.cli.demo import demo
from frugan.cli.evaluate import evaluate
from frugan.cli.info import info
from frugan.cli.plan import plan
from frugan.cli.prepare import prepare
from frugan.cli.recipes import recipes
from frugan.cli.report import report
from frugan.cli.sample import sample
from frugan.cli.train import train
from frugan.errors import BadInput, TrainingFailed

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
TRAINING = ("train", "demo")
"""Commands that write checkpoints."""


def application() -> typer.Typer:
    """The command with its sub-commands."""
    app = typer.Typer(
        name="frugan",
        help="Train big image generators on the GPU you have.",
        no_args_is_help=True,
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    for command in (demo, recipes, info, plan, prepare, train, sample, evaluate, report, convert):
        app.command()(_telling_of_interrupts(command))
    app.callback()(_options)
    return app


def _options(
    show_version: Annotated[bool, typer.Option("--version", help="print the version", is_eager=True)] = False,
) -> None:
    if show_version:
        print(f"frugan {version('frugan')}, torch {version('torch')}")
        raise typer.Exit


def _telling_of_interrupts(command: Callable[..., None]) -> Callable[..., None]:
    """typer ends in silence on a second Ctrl-C, when one wants to know most what became of the training."""

    @functools.wraps(command)
    def told(*words: object, **options: object) -> None:
        try:
            command(*words, **options)
        except KeyboardInterrupt:
            saved = "; what was saved before is whole" if command.__name__ in TRAINING else ""
            Console(stderr=True, highlight=False).print(f"\ninterrupted: stopped at once{saved}")
            raise typer.Exit(INTERRUPTED) from None

    return told


@contextmanager
def _told_in_lines(console: Console) -> Iterator[None]:
    """Tell of warnings, and of faults in threads, in a line each: without source code, without tracebacks."""

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        console.print(f"warning: {message}", markup=False, soft_wrap=True)

    def end_of_thread(fault: threading.ExceptHookArgs) -> None:
        if fault.exc_type is not SystemExit:
            warn(f"a thread in the background ended: {fault.exc_value}")

    before, threading.excepthook = threading.excepthook, end_of_thread
    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn
            yield
    finally:
        threading.excepthook = before


def run() -> None:
    """Run the command line; errors are told in words, on stderr."""
    console = Console(stderr=True, highlight=False)

    def end(kind: str, message: str, code: int) -> None:
        console.print(f"[bold red]{kind}:[/]", end=" ")
        console.print(message, markup=False, soft_wrap=True)
        sys.exit(code)

    with _told_in_lines(console):
        try:
            application()()
        except BadInput as error:
            end("bad input", str(error), BAD_INPUT)
        except TrainingFailed as error:
            end("training stopped", str(error), FAILED)
        except (FileExistsError, NotADirectoryError) as error:
            wanted = "is a file, and a folder is wanted there; choose another path"
            end("bad input", f"{error.filename}: {wanted}", BAD_INPUT)
        except OSError as error:
            end("failed", _words(error), FAILED)


def _words(error: OSError) -> str:
    """What the system refused, what to do about it, and what became of the training, if it was one."""
    full = " The disk is full: free some room and run the same command again." if error.errno == errno.ENOSPC else ""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    untouched = " Earlier checkpoints are untouched." if command in TRAINING else ""
    return f"{error}.{full}{untouched}"


if __name__ == "__main__":
    run()
