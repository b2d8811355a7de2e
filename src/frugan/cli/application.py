"""The `frugan` command with its sub-commands."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from frugan.cli import INTERRUPTED, TRAINING
from frugan.cli.demo import demo
from frugan.cli.doctor import doctor
from frugan.cli.evaluate import evaluate
from frugan.cli.page import page
from frugan.cli.plan import plan
from frugan.cli.prepare import prepare
from frugan.cli.sample import sample
from frugan.cli.small_commands import card, convert, export, fetch, info, recipes, report
from frugan.cli.train import train
from frugan.errors import BadInput


class _Command(TyperCommand):
    """A command that words parse errors plainly, without the prefixes of pydantic's that typer passes on."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


def application() -> typer.Typer:
    """Return the `frugan` command with its sub-commands."""
    app = typer.Typer(
        name="frugan",
        help="Train big image generators on the GPU you have.",
        no_args_is_help=True,
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    commands = (
        demo,
        doctor,
        recipes,
        info,
        plan,
        page,
        prepare,
        train,
        sample,
        evaluate,
        fetch,
        report,
        convert,
        card,
        export,
    )
    for command in commands:
        app.command(cls=_Command)(_reporting_interrupts(command.__name__)(command))
    app.callback()(_options)
    return app


def _options(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="print the version", is_eager=True)] = False,
) -> None:
    if show_version:
        from importlib.metadata import version  # torch's is known without importing it

        from frugan.version import __version__

        print(f"frugan {__version__}, torch {version('torch')}")
        raise typer.Exit
    command = context.invoked_subcommand
    if command not in ("train", "evaluate") and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BadInput(f"torchrun starts `frugan train` and `frugan evaluate`: run `frugan {command}` without it")


@contextmanager
def _reporting_interrupts(command: str) -> Iterator[None]:
    """Report an interrupt: typer ends silently on a second Ctrl-C, which leaves the state of the training unclear."""
    try:
        yield
    except KeyboardInterrupt:
        saved = "; what was saved before is whole" if command in TRAINING else ""
        Console(stderr=True, highlight=False).print(f"\ninterrupted: stopped at once{saved}")
        raise typer.Exit(INTERRUPTED) from None
