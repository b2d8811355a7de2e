"""Who may ask the page: a browser of this machine, from the page itself, that holds its token."""

import json
import secrets
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAMES = frozenset({"127.0.0.1", "localhost"})
"""Names of this machine in its own browsers. A page that uses another name got here by DNS rebinding, to read what it
may not."""
METHODS = frozenset({"GET", "HEAD", "POST"})
MOST_BODY_BYTES = 32 << 20
"""Largest body of any request, a picture. `frugan.page.server` allows less for JSON."""
HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: "
        "data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cache-Control": "no-store",
    }
)
"""Headers of every answer that sets none itself."""
NO_TOKEN = "This page wants its token: open the address that `frugan page` printed when it started.\n"


@dataclass(frozen=True)
class Guard:
    """Stands before an application and lets nobody else in."""

    app: ASGIApp  # application that is guarded
    token: str  # token of this server, new at each start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, hand out the cookie, or pass on."""
        if scope["type"] != "http":  # no web sockets
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._answer(scope)
        if answer is not None:
            await answer(scope, receive, guarded)
        else:
            await self.app(scope, _limited(receive), guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a request that must not pass or that sets the token; None: it may pass."""
        headers = Headers(scope=scope)
        if (refusal := _refusal(scope["method"], headers)) is not None:
            code, line = refusal
            return PlainTextResponse(f"{line}\n", code)
        host = headers["host"]
        if scope["path"] == "/" and (tokens := parse_qs(scope["query_string"].decode("latin-1")).get("token")):
            return self._entered(tokens[0], host) if self._right(tokens[0]) else PlainTextResponse(NO_TOKEN, 401)
        kind, _, shown = headers.get("authorization", "").partition(" ")
        cookie = cookie_parser(headers.get("cookie", "")).get(_cookie(host), "")
        right = self._right(shown if kind.lower() == "bearer" else cookie)
        return None if right else PlainTextResponse(NO_TOKEN, 401)

    def _right(self, token: str) -> bool:
        return secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode())

    def _entered(self, token: str, host: str) -> Response:
        """The token moves into a cookie, and out of the address, which others may come to see."""
        answer = Response(status_code=303, headers={"Location": "/"})
        answer.set_cookie(_cookie(host), token, httponly=True, samesite="strict")
        return answer


def _refusal(method: str, headers: Headers) -> tuple[int, str] | None:
    """Status and line for what nobody may ask, whatever their token; None: it may be asked."""
    host = headers.get("host", "")
    if host.partition(":")[0] not in NAMES:
        return 403, "This page is for browsers of this machine: http://127.0.0.1"
    if method not in METHODS:
        return 405, "Unknown method"
    # Cookies are shared by all ports of a machine: other pages of it have the cookie too, but another origin.
    foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
    if headers.get("origin", f"http://{host}") != f"http://{host}" or (foreign and method == "POST"):
        return 403, "Another page may not ask this one"
    if _length(headers) > MOST_BODY_BYTES:
        return 413, "Too large"
    return None


def _cookie(host: str) -> str:
    """Pages on several ports of a machine would overwrite each other's."""
    return f"frugan-{host.partition(':')[2] or '80'}"


def _length(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else MOST_BODY_BYTES + 1


def _limited(receive: Receive) -> Receive:
    """Pass on a body up to `MOST_BODY_BYTES`, whatever length was announced."""
    left = MOST_BODY_BYTES

    async def limited() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, "Too large")
        return message

    return limited


async def body_of(request: Request, most_bytes: int) -> bytes:
    """The body of a request.

    Raises:
        HTTPException: it is larger.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise HTTPException(413, f"Expected at most {most_bytes:,} bytes")
    return bytes(body)


async def json_of(request: Request, most_bytes: int = 1 << 16) -> dict[str, Any]:
    """The JSON object that a request brings.

    Raises:
        HTTPException: it brings none, or a larger one.
    """
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "Expected application/json")
    try:
        values = json.loads(await body_of(request, most_bytes))
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "Expected JSON") from error
    if not isinstance(values, dict):
        raise HTTPException(400, "Expected a JSON object")
    return values
