"""The `frugan page` command."""

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from frugan.cli.output import say
from frugan.errors import BadInput, optional_module
from frugan.files import Folders
from frugan.reporting.ports import port_to_listen_on

PORT = 8780
"""The usual one."""


def page(
    runs: Annotated[
        Path | None, typer.Argument(help="folder that holds runs; default: the one that `frugan train` writes to")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="on this machine; default: 8780, or the next free one; 0: any free one")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="show it in the browser at once")] = True,
    work_off: Annotated[
        bool, typer.Option("--work-off", help="without a page: train what its queue holds, one run after the other")
    ] = False,
) -> None:
    """Watch the runs of a folder in a browser, and steer them: samples, curves, save, stop, change, queue.

    For this machine alone: the address holds a token. Trainings go on when the page is closed.

    Example: frugan page runs
    """
    folder = runs or Folders.from_environment().runs
    if work_off:
        from frugan.page.queue import Queue

        if not folder.is_dir():
            raise BadInput(f"{folder}: no such folder (looked from {Path.cwd()}); expected one that holds runs")
        Queue(folder).work_off()
        return
    for module in ("starlette", "uvicorn"):
        optional_module(module, f"the page needs {module}", "page")
    listening_on = port_to_listen_on(port, PORT, say)
    from frugan.page.server import served

    if runs is None:  # the usual place; one that was typed may be mistyped, and is never made
        folder.mkdir(parents=True, exist_ok=True)
    with served(folder, listening_on) as (address, thread), suppress(KeyboardInterrupt):
        print(address, flush=True)
        say("Ctrl-C ends the page; trainings go on")
        if open_browser:
            webbrowser.open(address)
        thread.join()
