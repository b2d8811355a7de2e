"""The tab "explore" of the page: what is asked for under `/explore/`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from frugan.errors import BadInput
from frugan.page.guard import body_of, json_of
from frugan.page.latents import Latents, ProjectionJob, Stopped
from frugan.page.runs import NoRun, Runs
from frugan.page.worker import Overtaken, Worker

MOST_PICTURE_BYTES = 16 << 20
PROJECT = "project"


@dataclass
class Explore:
    """Answers for the tab; what takes time is done by one thread."""

    latents: Latents
    worker: Worker = field(default_factory=Worker)
    going: ProjectionJob | None = None  # the newest projection

    def routes(self) -> list[Route]:
        """Address -> what answers there."""
        return [
            Route("/explore/sources", self._sources),
            Route("/explore/about", self._about),
            Route("/explore/draw", self._posted("draw", self.latents.draw), methods=["POST"]),
            Route("/explore/film", self._posted("film", self.latents.film), methods=["POST"]),
            Route("/explore/names", self._posted("names", self._rename), methods=["POST"]),
            Route("/explore/project", self._project, methods=["POST"]),
            Route("/explore/project", self._going),
            Route("/explore/stop", self._stop, methods=["POST"]),
        ]

    async def _sources(self, _: Request) -> Response:
        return await self._done(
            "sources", lambda: {"sources": self.latents.sources(), "show_given": self.latents.show_given()}
        )

    async def _about(self, request: Request) -> Response:
        query = request.query_params
        return await self._done("about", partial(self.latents.about, query.get("source", ""), newest="newest" in query))

    def _posted(
        self, kind: str, do: Callable[[str, Mapping[str, Any]], Any]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a request with a JSON body."""

        async def answer(request: Request) -> Response:
            values = await json_of(request)
            source = values.get("source")
            if not isinstance(source, str):
                raise BadInput("source: expected the name of a run")
            return await self._done(kind, partial(do, source, values))

        return answer

    async def _done(self, kind: str, do: Callable[[], Any]) -> Response:
        """Answer with the worker's result, unless a newer request of the kind has overtaken this one."""
        try:
            return JSONResponse(await asyncio.wrap_future(self.worker.ask(kind, do)))
        except Overtaken:
            return JSONResponse({"error": "overtaken"}, 409)

    def _rename(self, source: str, values: Mapping[str, Any]) -> dict[str, Any]:
        names = values.get("names")
        if not isinstance(names, dict):
            raise BadInput("names: expected new ones by old ones")
        return {"directions": self.latents.rename(source, names)}

    async def _project(self, request: Request) -> Response:
        query, picture = request.query_params, await body_of(request, MOST_PICTURE_BYTES)
        steps = query.get("steps", "")
        if not (steps.isascii() and steps.isdigit() and len(steps) < 7):
            raise BadInput(f"steps {steps[:20]!r}: expected a whole number")
        source, name, space = (query.get(word, "") for word in ("source", "name", "space"))
        going = self.latents.begun(source, name, int(steps), space, query.get("features") or "small")
        self._end()
        self.going = going
        self.worker.ask(PROJECT, partial(self._search, going, picture))
        return self._going(request)

    def _search(self, going: ProjectionJob, picture: bytes) -> None:
        try:
            self.latents.search(going, picture, partial(self.worker.between, PROJECT))
        except Stopped:
            going.error = "stopped"
        except (BadInput, NoRun, OSError, RuntimeError) as error:
            going.error = str(error)

    def _going(self, _: Request) -> Response:
        return JSONResponse({"going": None if self.going is None else self.going.told()})

    async def _stop(self, _: Request) -> Response:
        self._end()
        return JSONResponse({"done": True})

    def _end(self) -> None:
        if self.going is not None:
            self.going.stop.set()


def explore_routes(runs: Runs) -> list[Route]:
    """Address -> what answers there."""
    return Explore(Latents(runs)).routes()
