"""Files from web servers: whole or not at all, and none is waited for without end. Servers are untrusted.

Fetched by Python's own client: WebDataset's library starts `curl`, which gives up a server that cannot be reached, but
not one that falls silent.
"""

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frugan.data.shard_urls import without_secrets
from frugan.errors import BadInput
from frugan.whole_files import whole_file

SILENT_SECONDS = 30.0
"""After so long without a byte a server is given up."""
LEAST_BYTES_PER_S = 4096
"""Over as long: a server that gives less is given up as well."""
TRIES = 3
PAUSE_SECONDS = 2.0
"""After the first failure; then twice as long each time."""
PIECE_BYTES = 1 << 20
NOT_THERE = frozenset((404, 410))
_AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504))
_BROKEN = (OSError, http.client.HTTPException)  # URLError, timeouts and resets are OSErrors


class Unreachable(BadInput):
    """A server that does not answer at all; what was fetched before may do."""


class Missing(BadInput):
    """A file that the server says is not there."""


@dataclass(frozen=True)
class Remote:
    """What a server says of a file.

    Attributes:
        size: in bytes; None: it does not say.
        tag: changes with the file, as far as the server tells; may be empty.
    """

    size: int | None
    tag: str


class Forbidden(BadInput):
    """A file that the server does not give to everybody."""


class _Later(Exception):
    """It failed in a way that may pass."""


def look_at(url: str) -> Remote:
    """Ask for a file's size, by a request whose body is not read: signed addresses often allow nothing else.

    Raises:
        Missing: it is not there.
        Unreachable: the server does not answer.
        BadInput: it answers something else.
    """

    def look() -> Remote:
        with _answer(url) as answer:
            return _about(answer)

    return _patiently(url, look)


def fetch(url: str, to: Path, most_bytes: int) -> Remote:
    """Fetch a file; `to` is there only when it is whole.

    Args:
        most_bytes: that are taken of it.

    Raises:
        BadInput: as `look_at`; or larger, cut short, or the disk is full.
    """
    where = without_secrets(url)

    def get(beside: Path) -> Remote:
        with _answer(url) as answer:
            about = _about(answer)
            if about.size is not None and about.size > most_bytes:
                raise BadInput(f"{where}: {about.size:,} bytes, more than the {most_bytes:,} that there is room for")
            try:
                with beside.open("wb") as file:
                    taken = _copy(answer, file.write, most_bytes, where)
                    file.flush()
                    os.fsync(file.fileno())
            except _Disk as error:
                raise BadInput(
                    f"cannot keep {where} in {to.parent}: {error}. Free some room, or name another folder with "
                    "FRUGAN_SHARDS"
                ) from error
            if about.size is not None and taken != about.size:
                raise _Later(f"it ends after {taken:,} of {about.size:,} bytes")
            return about

    with whole_file(to) as beside:
        return _patiently(url, lambda: get(beside))


class _Disk(Exception):
    """Writing failed, and not reading."""


def _copy(answer: Any, write: Callable[[bytes], object], most_bytes: int, where: str) -> int:
    taken = in_window = 0
    began = time.monotonic()
    while piece := answer.read1(PIECE_BYTES):
        taken += len(piece)
        in_window += len(piece)
        if taken > most_bytes:
            raise BadInput(f"{where}: more than the {most_bytes:,} bytes that there is room for")
        try:
            write(piece)
        except OSError as error:
            raise _Disk(error.strerror or str(error)) from error
        if (passed := time.monotonic() - began) > SILENT_SECONDS:
            if in_window < LEAST_BYTES_PER_S * passed:
                raise _Later(f"it gives {in_window / passed:,.0f} bytes a second")
            began, in_window = time.monotonic(), 0
    return taken


def _about(answer: Any) -> Remote:
    length = answer.headers.get("Content-Length", "")
    size = int(length) if length.isdigit() and len(length) < 19 else None
    tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    return Remote(size, tag[:200])


def _answer(url: str) -> Any:
    """The open answer of a server; redirections lead to web servers alone."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    request = urllib.request.Request(url, headers={"User-Agent": "frugan", "Accept-Encoding": "identity"})
    return opener.open(request, timeout=SILENT_SECONDS)


def _patiently(url: str, work: Callable[[], Remote]) -> Remote:
    """Try again what may pass."""
    where = without_secrets(url)
    for number in range(TRIES):
        try:
            return work()
        except urllib.error.HTTPError as error:
            error.close()
            said = f"the server answers {error.code} ({error.reason})"
            if error.code in NOT_THERE:
                raise Missing(f"{where}: {said}; check the address, and how many shards there are") from error
            if error.code in (401, 403):
                raise Forbidden(
                    f"{where}: {said}; it must be readable without login, or by a signed address"
                ) from error
            if error.code not in _AGAIN:
                raise BadInput(f"{where}: {said}; check the address") from error
            failed: BadInput = BadInput(f"{where}: {said}, {TRIES} times; try again later")
        except _Later as error:
            failed = BadInput(f"{where}: {error}, {TRIES} times; try again later, or copy the shards to a folder")
        except TimeoutError:
            failed = Unreachable(
                f"{where}: the server gave nothing for {SILENT_SECONDS:g} seconds, {TRIES} times; try again later, or "
                "copy the shards to a folder"
            )
        except _BROKEN as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                reason = f"nothing for {SILENT_SECONDS:g} seconds"
            failed = Unreachable(f"{where} cannot be reached ({reason}), {TRIES} times; is there a network?")
        if number + 1 < TRIES:
            time.sleep(PAUSE_SECONDS * 2**number)
    raise failed
