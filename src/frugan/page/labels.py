"""The screen on which polygons are drawn in pictures, and what it asks for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from frugan.page.guard import json_of
from frugan.page.server import file_routes, guarded, serving

MOST_JSON_BYTES = 1 << 20
"""Points of one picture's polygons: a JPEG's metadata hold 64 KiB of them."""


class Drawing(Protocol):
    """Pictures with polygons, each saved by itself."""

    @property
    def folder(self) -> str:
        """Name of where they are."""

    def pictures(self) -> list[dict[str, Any]]:
        """Index, name, labelled and bits (how unsure a network is; None: not known), in the order in which to draw."""

    def picture(self, index: int) -> bytes:
        """A JPEG."""

    def label(self, index: int) -> dict[str, Any]:
        """Width, height and polygons: include, and points in the picture's pixels."""

    def save(self, index: int, polygons: Any) -> None:
        """Replace a picture's polygons; what is none is refused."""

    def labelled(self) -> int:
        """How many have polygons."""


@dataclass(frozen=True)
class LabelPage:
    """Application of the screen."""

    drawing: Drawing

    def routes(self) -> list[Route]:
        """Address -> what answers there."""
        return [
            *file_routes(("labels.html", "labels.js", "labels.css", "page.css"), ("charts.js",)),
            Route("/api/pictures", self._pictures),
            Route("/pictures/{index:int}", self._picture),
            Route("/api/labels/{index:int}", lambda request: JSONResponse(self.drawing.label(_index(request)))),
            Route("/api/labels/{index:int}", self._save, methods=["POST"]),
        ]

    def app(self, token: str) -> ASGIApp:
        """All of it, guarded."""
        return guarded(self.routes(), token)

    def _pictures(self, _: Request) -> Response:
        return JSONResponse({"folder": self.drawing.folder, "pictures": self.drawing.pictures()})

    def _picture(self, request: Request) -> Response:
        return Response(self.drawing.picture(_index(request)), media_type="image/jpeg")

    async def _save(self, request: Request) -> Response:
        values: dict[str, Any] = await json_of(request, MOST_JSON_BYTES)
        await run_in_threadpool(partial(self.drawing.save, _index(request), values.get("polygons")))
        return JSONResponse({"labelled": self.drawing.labelled()})


def _index(request: Request) -> int:
    return int(request.path_params["index"])


@contextmanager
def served_labels(drawing: Drawing, port: int) -> Iterator[tuple[str, Thread]]:
    """Serve the screen while the block runs; see `serving`."""
    with serving(LabelPage(drawing).app, port) as served:
        yield served
