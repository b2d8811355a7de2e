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
from frugan.cli.masks import COMMANDS as MASK_COMMANDS
from frugan.cli.page import page
from frugan.cli.plan import plan
from frugan.cli.prepare import prepare
from frugan.cli.sample import sample
from frugan.cli.small_commands import card, convert, export, fetch, info, recipes, report
from frugan.cli.swap import swap
from frugan.cli.train import train
from frugan.errors import BadInput


class _Command(TyperCommand):
    """A command that words parse errors plainly, without the prefixes of pydantic's that typer passes on."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        self._refuse_missing_value(args)
        self._refuse_positional_as_option(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            from pydantic import ValidationError

            from frugan.recipe.faults import in_our_words

            theirs, error.message = error.message, in_our_words(error.message)
            if theirs.startswith("Input ") and isinstance(error.__cause__, ValidationError):
                error.message += f" (got {error.__cause__.errors()[0]['input']})"
            raise

    def _refuse_missing_value(self, args: list[str]) -> None:
        """Say what an option takes that is the last word.

        Raises:
            BadInput: its value is missing.
        """
        for option in self.params:
            if args and args[-1] in option.opts and args[-1].startswith("--") and not getattr(option, "is_flag", True):
                about = getattr(option, "help", None)
                raise BadInput(f"{args[-1]}: its value is missing" + (f" ({about})" if about else ""))

    def _refuse_positional_as_option(self, ctx: Any, args: list[str]) -> None:
        """Say that OUT has no option's name, where other commands have --out.

        Raises:
            BadInput: a word such as --out, of a command that takes OUT by its place.
        """
        words = [word.partition("=")[0] for word in args]
        options = {name for param in self.params for name in param.opts if name.startswith("--")}
        places = [str(param.metavar or param.name) for param in self.params if param.param_type_name == "argument"]
        for place in places:
            name = f"--{place.lower()}"
            if name in words and name not in options:
                group = "" if ctx.parent is None or ctx.parent.parent is None else f"{ctx.parent.info_name} "
                raise BadInput(
                    f"{name}: {place} is given by its place, without {name}: frugan {group}{self.name} "
                    f"{' '.join(word.upper() for word in places[: places.index(place) + 1])}"
                )


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
        swap,
        evaluate,
        fetch,
        report,
        convert,
        card,
        export,
    )
    for command in commands:
        app.command(cls=_Command)(_reporting_interrupts(command.__name__)(command))
    masks = typer.Typer(
        name="masks", help="Labels and masks of aligned faces, by XSeg.", no_args_is_help=True, rich_markup_mode="rich"
    )
    for command in MASK_COMMANDS:
        name = command.__name__.removesuffix("_").replace("_", "-")
        masks.command(name, cls=_Command)(_reporting_interrupts(f"masks {name}")(command))
    app.add_typer(masks)
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
    except KeyboardInterrupt as interrupt:  # of a training that had begun, it says what is lost
        saved = f"; {str(interrupt) or 'what was saved before, if anything, is whole'}" if command in TRAINING else ""
        Console(stderr=True, highlight=False).print(f"\ninterrupted: stopped at once{saved}")
        raise typer.Exit(INTERRUPTED) from None
