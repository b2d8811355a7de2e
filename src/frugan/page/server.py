"""The server of the page: what is asked for under which address."""

import asyncio
import logging
import secrets
import shlex
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from frugan.errors import BadFields, BadInput
from frugan.page.explore import explore_routes
from frugan.page.guard import Guard, json_of
from frugan.page.pictures import Thumbnails
from frugan.page.queue import Entry, Queue
from frugan.page.runs import NoRun, Runs
from frugan.page.steering import Steering
from frugan.recipes import shipped_recipes
from frugan.reporting.ports import LOOPBACK, refused_port
from frugan.reporting.report import page_of
from frugan.reporting.run_report import report_file

LAST_SECONDS = 5.0
"""Seconds that a page which ends waits for its last answers."""
KINDS = MappingProxyType({"css": "text/css", "js": "text/javascript", "html": "text/html"})
OWN_FILES = ("page.html", "page.css", "page.js", "explore.css", "explore.js")
REPORT_FILES = ("charts.js",)
SANDBOX = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; sandbox allow-scripts"
)
"""Policy for the report, whose scripts then belong to a page without origin and cannot send requests to this server."""


@dataclass
class Page:
    """Application of the page: the runs of a folder and their steering."""

    runs: Runs
    queue: Queue
    thumbnails: Thumbnails = field(default_factory=Thumbnails)

    @classmethod
    def of(cls, folder: Path) -> "Page":
        """The page of a folder of runs.

        Raises:
            BadInput: it is a run itself, a file, or not there.
        """
        if (folder / "events.jsonl").exists():
            above = shlex.quote(str(folder.parent))
            raise BadInput(f"{folder}: is a run; give the folder that holds it: frugan page {above}")
        if not folder.is_dir():
            raise BadInput(
                f"{folder}: is no folder (looked from {Path.cwd()}); expected one that holds runs. To begin in a new "
                "one, make it first"
            )
        return cls(Runs(folder), Queue(folder))

    @property
    def steering(self) -> Steering:
        """Actions on the runs."""
        return Steering(self.runs, self.queue)

    def routes(self) -> list[Route]:
        """Address -> what answers there."""
        ask = self.steering
        return [
            *file_routes(OWN_FILES, REPORT_FILES),
            Route("/api/runs", self._list),
            Route("/api/runs/{name:path}/fields", lambda request: JSONResponse(ask.fields(_name(request)))),
            Route(
                "/api/runs/{name:path}/ask", _posted(lambda name, v: ask.ask(name, _text(v, "wish"))), methods=["POST"]
            ),
            Route("/api/runs/{name:path}/go-on", _posted(self._go_on), methods=["POST"]),
            Route("/api/runs/{name:path}", self._run),
            Route("/api/recipes", lambda _: JSONResponse(shipped_recipes())),
            Route("/api/start", _posted(self._start), methods=["POST"]),
            Route("/api/queue", _posted(self._queued), methods=["POST"]),
            Route("/sheets/{name:path}/{kind}/{step:int}", self._sheet),
            Route("/report/{name:path}", self._report),
        ]

    def _list(self, request: Request) -> Response:
        self.queue.ensure_runner()
        return _tagged(request, {"folder": self.runs.path.resolve().name, **self.state()})

    def state(self) -> dict[str, Any]:
        """All runs, those too that wait for their folder; and the queue."""
        entries, glances = self.queue.entries(), {about["name"]: about for about in self.runs.glances()}
        by_run: dict[str, Entry] = {}
        for entry in entries:
            by_run.setdefault(entry.run, entry)
        shown = [_with_queue(name, about, by_run.get(name)) for name, about in glances.items()]
        waiting = [_with_queue(name, None, entry) for name, entry in by_run.items() if name not in glances]
        queue = [{"run": entry.run, "state": entry.state} for entry in entries if entry.state != "ended"]
        return {"runs": [about for about in (*waiting, *shown) if about is not None], "queue": queue}

    def _run(self, request: Request) -> Response:
        name, entry = _name(request), self.queue.entry(_name(request))
        try:
            after, beginnings = (_number(request, word) for word in ("after", "beginnings"))
            view = self.runs.view(name, after, beginnings)
        except NoRun:
            view = None
        if (about := _with_queue(name, view, entry)) is None:
            raise NoRun(name)
        if about["state"] == "waiting":
            about |= {"sentence": self._waits_for(name)}
        lines = self.queue.last_lines(name) if about["state"] in ("died", "starting", "stopped") else []
        return _tagged(request, {**about, "lines": lines})

    def _waits_for(self, name: str) -> str:
        """Say what has to end before a run that waits is trained."""
        entries = self.queue.entries()
        entry = next((entry for entry in entries if (entry.run, entry.state) == (name, "waiting")), None)
        ahead = self.queue.ahead(entry, entries, self.runs.owners) if entry is not None else []
        return f"Waits until {', '.join(ahead)} {'has' if len(ahead) == 1 else 'have'} ended." if ahead else ""

    def _sheet(self, request: Request) -> Response:
        where = request.path_params
        path, width = self.runs.sheet(where["name"], where["kind"], where["step"]), _number(request, "width")
        rows, columns = _number(request, "rows"), _number(request, "columns")
        part = (rows, columns) if rows > 0 and columns > 0 else None
        status = path.stat()
        tag = f'"{status.st_mtime_ns:x}-{status.st_size:x}-{width}-{rows}-{columns}"'
        headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        kind, content = self.thumbnails.of(path, width if width > 0 else None, part)
        return Response(content, media_type=f"image/{kind}", headers=headers)

    def _report(self, request: Request) -> Response:
        page = page_of([self.runs.folder(_name(request)).path])
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": SANDBOX})

    def _go_on(self, name: str, values: Mapping[str, Any]) -> str:
        changes = values.get("fields", {})
        if not isinstance(changes, dict) or not all(isinstance(value, str) for value in changes.values()):
            raise BadInput("fields: expected texts by field")
        return self.steering.go_on(name, changes, _text(values, "data"))

    def _start(self, _: str, values: Mapping[str, Any]) -> None:
        name, recipe, fields, data, time = (_text(values, n) for n in ("name", "recipe", "fields", "data", "for"))
        options = {option: _text(values, option) for option in ("device", "memory")}
        self.steering.start(name, recipe, fields, data, time, options)

    def _queued(self, _: str, values: Mapping[str, Any]) -> None:
        run, what = _text(values, "run"), _text(values, "do")
        if what not in ("remove", "first"):
            raise BadInput(f"{what!r}: expected remove or first")
        (self.queue.remove if what == "remove" else self.queue.to_front)(run)

    def app(self, token: str) -> ASGIApp:
        """All of it, guarded."""
        return guarded([*self.routes(), *explore_routes(self.runs)], token)


def guarded(routes: Sequence[Route], token: str) -> ASGIApp:
    """Put routes into an application that lets nobody in without the token, and says why it refuses."""
    handlers: dict[Any, Any] = {BadInput: _refused, NoRun: _missing, OSError: _unreadable}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token)


def file_routes(own: Sequence[str], of_report: Sequence[str]) -> list[Route]:
    """Address -> file, of this folder and of the report's; an .html is what the address without a name shows."""
    return [
        *(Route("/" if name.endswith(".html") else f"/{name}", partial(_file, _own_file(name), name)) for name in own),
        *(Route(f"/{name}", partial(_file, report_file(name), name)) for name in of_report),
    ]


def _with_queue(name: str, about: dict[str, Any] | None, entry: Entry | None) -> dict[str, Any] | None:
    """Merge a run's summary with its entry in the queue; None: neither exists.

    Args:
        about: None: it has no folder yet, or has lost it.
    """
    queued = {"waiting": "waiting", "running": "starting"}.get(entry.state) if entry is not None else None
    if about is not None:
        return about | {"state": queued} if queued is not None and about["state"] != "running" else about
    if entry is None or (entry.state == "ended" and entry.code == 0):
        return None
    return {"name": name, "state": queued or "died"}


def _name(request: Request) -> str:
    return str(request.path_params["name"])


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name, "")
    if not isinstance(value, str) or "\0" in value:
        raise BadInput(f"{name}: expected a text")
    return value.strip()


def _number(request: Request, name: str) -> int:
    """A number of the query; -1: it has none."""
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


def _posted(do: Callable[[str, Mapping[str, Any]], str | None]) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of a JSON request that runs an action, and tells what that has to say."""

    async def answer(request: Request) -> Response:
        values = await json_of(request)
        told = await run_in_threadpool(do, request.path_params.get("name", ""), values)
        return JSONResponse({"done": True, "told": told or ""})

    return answer


def _tagged(request: Request, values: Mapping[str, Any]) -> Response:
    """JSON, or nothing where it is what was told already."""
    answer = JSONResponse(values)
    tag = f'"{hash(bytes(answer.body)) & 0xFFFFFFFFFFFFFFFF:x}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    answer.headers["ETag"] = tag
    answer.headers["Cache-Control"] = "private, no-cache"
    return answer


def _own_file(name: str) -> str:
    return (resources.files("frugan") / "page" / name).read_text("utf-8")


def _file(text: str, name: str, request: Request) -> Response:
    return Response(text, media_type=KINDS[name.rpartition(".")[2]])


def _refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, BadFields):
        return JSONResponse({"error": str(error)}, 422)
    told = "\n".join(f"{field}: {reason}" if field else reason for field, reason in error.reasons.items())
    return JSONResponse({"error": told, "fields": dict(error.reasons)}, 422)


def _missing(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"there is no {error}"}, 404)


def _unreadable(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 503)


@contextmanager
def served(folder: Path, port: int) -> Iterator[tuple[str, threading.Thread]]:
    """Serve the page of a folder of runs while the block runs; see `serving`.

    Raises:
        BadInput: the folder is none of runs, or the port cannot be had.
    """
    with serving(Page.of(folder).app, port) as address_and_thread:
        yield address_and_thread


@contextmanager
def serving(app_of: Callable[[str], ASGIApp], port: int) -> Iterator[tuple[str, threading.Thread]]:
    """Serve an application while the block runs, on this machine alone.

    Args:
        app_of: makes it for a token.
        port: 0: any that is free.

    Yields:
        Its address with the token, and the thread that serves.

    Raises:
        BadInput: the port cannot be had.
    """
    token = secrets.token_urlsafe(32)
    app = app_of(token)
    try:
        listening = socket.create_server((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        raise refused_port(port, error) from error
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        loop="asyncio",
        http="h11",
        timeout_graceful_shutdown=1,
    )
    server, ended = uvicorn.Server(config), threading.Event()

    def serve() -> None:
        try:
            with listening:
                if not server.should_exit:
                    asyncio.run(server.serve([listening]))
        finally:
            ended.set()

    thread = threading.Thread(target=serve, name="frugan-page", daemon=True)
    try:
        thread.start()
        yield f"http://{LOOPBACK}:{listening.getsockname()[1]}/?token={token}", thread
    finally:
        server.should_exit = True
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # requests that are cut off are no errors
        if thread.ident is None:  # Ctrl-C came before it began: it would see that it shall end
            listening.close()
        else:  # Ctrl-C in a join makes Python 3.11 take the thread for ended, so that it is no use to join it again
            ended.wait(LAST_SECONDS)
