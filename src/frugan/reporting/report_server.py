"""`report --serve`: the report's page on this machine, while its runs go on."""

from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from frugan.reporting.ports import LOOPBACK, refused_port
from frugan.reporting.report import RunReader, page, readers_of

NAMES = frozenset({LOOPBACK, "localhost"})
"""What this machine is called by its own browsers. A page that asks by another name was led here by a name server of
its own, to read what it may not."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
IDLE_SECONDS = 30
"""Seconds after which an idle connection is closed."""


def report_server(runs: Sequence[str | Path], port: int) -> ThreadingHTTPServer:
    """A server of the page and of nothing else; `serve_forever` runs it.

    It answers GET and HEAD, to this machine alone, and reads of a run what was added since it last looked.

    Args:
        runs: folders.
        port: on the loopback address; 0: any that is free.

    Raises:
        BadInput: a folder that is no run, or a port that is taken.
    """
    readers = readers_of(runs)
    page(readers, live=True)  # says at once what is wrong with them
    reading = Lock()  # every request has a thread of its own

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_SECONDS

        def do_GET(self) -> None:
            self._answer(with_content=True)

        def do_HEAD(self) -> None:
            self._answer(with_content=False)

        def _answer(self, *, with_content: bool) -> None:
            if self.headers.get("Host", "").partition(":")[0] not in NAMES:
                self.send_error(403)
                return
            try:
                with reading:
                    answer = _content(self.path.partition("?")[0], readers)
            except OSError:  # the run was taken away
                self.send_error(503)
                return
            if answer is None:
                self.send_error(404)
                return
            kind, content = answer
            self.send_response(200)
            self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            if with_content:
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Suppress the server's log lines."""

    try:
        return ThreadingHTTPServer((LOOPBACK, port), Handler)
    except (OSError, OverflowError) as error:
        raise refused_port(port, error) from error


def _content(path: str, readers: Sequence[RunReader]) -> tuple[str, bytes] | None:
    """Return the content of a path and its media type; None: there is none.

    Raises:
        OSError: a run's events cannot be read any more.
    """
    if path == "/":
        return "html", page(readers, live=True).encode()
    if path == "/state":  # changes whenever a run has written something
        return "plain", " ".join(str(reader.folder.events.stat().st_size) for reader in readers).encode()
    return None
