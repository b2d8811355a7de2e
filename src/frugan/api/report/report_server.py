"""Shows a run that goes on: its report, made anew for whoever asks, on this machine alone."""

from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from frugan.api.report.run_report import page_of
from frugan.engine.run_folder import RunFolder
from frugan.errors import BadInput

LOOPBACK = "127.0.0.1"


def report_server(runs: Sequence[str | Path], port: int) -> ThreadingHTTPServer:
    """A server of the page and of nothing else; `serve_forever` runs it.

    Args:
        runs: folders.
        port: on the loopback address; 0: any that is free.

    Raises:
        BadInput: a folder that is no run, or a port that is taken.
    """
    page_of(runs)  # says at once what is wrong with them
    folders = [RunFolder(Path(run)) for run in runs]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if self.headers.get("Host", "").partition(":")[0] not in (LOOPBACK, "localhost"):
                self.send_error(403)  # another site's page that was pointed here by its own name server
            elif path == "/":
                self._answer(page_of(runs, live=True), "text/html; charset=utf-8")
            elif path == "/state":
                self._answer(_state(folders), "text/plain; charset=utf-8")
            else:
                self.send_error(404)

        def _answer(self, text: str, kind: str) -> None:
            content = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    try:
        return ThreadingHTTPServer((LOOPBACK, port), Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"--port {port}: {reason}; name another, or 0 for any that is free") from error


def _state(folders: Sequence[RunFolder]) -> str:
    """Changes whenever a run has written something."""
    return " ".join(f"{folder.events.stat().st_size}" for folder in folders)
