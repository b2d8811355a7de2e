"""`frugan report`."""

from pathlib import Path
from typing import Annotated

import typer

from frugan.cli.output import say
from frugan.errors import BadInput


def report(
    runs: Annotated[list[Path], typer.Argument(help="run folder; several are compared")],
    out: Annotated[Path | None, typer.Option(help="file to write; default: report.html in the first run")] = None,
    serve: Annotated[
        bool, typer.Option(help="show it on this machine in a browser, updated while training goes on")
    ] = False,
    port: Annotated[int, typer.Option(help="port of --serve; 0: any free one")] = 8765,
) -> None:
    """Write one HTML page about a run: curves, sample grids through time, scores, memory, recipe and plan.

    The page holds everything itself and fetches nothing.

    Example: frugan report runs/first

    Several: frugan report runs/first runs/second --out comparison.html
    """
    from frugan.api.report import write_report
    from frugan.api.report_server import report_server

    if not serve:
        print(write_report(runs, out))
        return
    if out is not None:
        raise BadInput(f"--out {out}: --serve writes no file; leave out one of the two")
    with report_server(runs, port) as server:
        say(f"http://{server.server_address[0]!s}:{server.server_address[1]} (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
