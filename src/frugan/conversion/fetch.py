"""`fetch`: published weights of a feature network, from where they are published or from a mirror."""

import os
import re
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, build_opener

from filelock import FileLock, Timeout

from frugan.errors import BadInput, checked
from frugan.files import Folders, refuse_lack_of_room
from frugan.metrics.public_weights import MIRROR_SETTING, PUBLIC, PublicWeights, sha256_of
from frugan.progress import Progress, Say
from frugan.wording import GIB, MIB, nearest

WAIT_SECONDS = 30
"""For an answer, and for each piece of the file."""
PIECE_BYTES = MIB
MOST_BYTES = GIB
"""Largest file; a larger one is not the published one."""
WHOLE = 200
"""HTTP status of an answer with the whole file."""
PARTIAL = 206
"""HTTP status of an answer with the requested range."""
BEYOND_THE_END = 416
"""HTTP status where the range begins beyond the end of the file."""
A_MIRROR = f"{MIRROR_SETTING} may name the address of another folder that holds the file"


@checked
def fetch(network: str, *, say: Say = print, progress: Progress | None = None) -> Path:
    """Get the published weights of a feature network; what an earlier attempt has brought is not fetched again.

    The proxies that the environment names are used, and the mirror that FRUGAN_MIRROR names.

    Args:
        network: "inception" or "inception-torchvision".
        say: is told where the file comes from.
        progress: (MiB here, of how many).

    Returns:
        The file, checked, where feature networks are looked for.

    Raises:
        BadInput: no such network, what came is another file, or another process is fetching it.
        OSError: no connection, or it broke off; no room on the disk.
    """
    if network not in PUBLIC:
        raise BadInput(f"{network}: nothing to fetch; expected {' or '.join(PUBLIC)}{nearest(network, list(PUBLIC))}")
    public = PUBLIC[network]
    file = public.place(None, Folders.from_environment().cache)
    if file.is_file() and sha256_of(file).startswith(public.digest):
        say(f"{file}: is there already, and whole")
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file.with_name(f".{file.name}.lock"), timeout=0)
    try:
        with lock:
            _fetch(public, file, say, progress)
    except Timeout as error:
        raise BadInput(f"{file}: another process is fetching it; wait for that one") from error
    return file


def _fetch(public: PublicWeights, file: Path, say: Say, progress: Progress | None) -> None:
    """Bring the rest of the file beside its place, check it, and put it there."""
    address = _address(public)
    part = file.with_name(f".{file.name}.part")
    here = part.stat().st_size if part.is_file() else 0
    say(f"from {address}{f', from byte {here:,} on' if here else ''}")
    request = Request(address, headers={"Range": f"bytes={here}-"} if here else {})
    try:
        with build_opener().open(request, timeout=WAIT_SECONDS) as answer:  # with the proxies of now
            _take(answer, part, here, progress)
    except HTTPError as error:
        if error.code != BEYOND_THE_END or not here:
            raise ConnectionError(f"{address}: {error.code} {error.reason}; {A_MIRROR}") from error
        # all of it was here already, or it is another file: the checksum tells
    except BadInput:
        part.unlink(missing_ok=True)
        raise
    except _Broken as error:
        raise ConnectionError(f"{address}: {error}; run the same again to go on") from error
    except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        raise ConnectionError(
            f"{address}: no connection ({reason}). Run the same again when there is one, name a mirror in "
            f"{MIRROR_SETTING}, or bring the file here in another way, as {file}"
        ) from error
    actual = sha256_of(part)
    if not actual.startswith(public.digest):
        part.unlink()
        raise BadInput(
            f"{address}: what came has a SHA-256 that begins with {actual[:8]}, expected {public.digest}: another "
            f"file, or damaged on its way; it was deleted. Run the same again; if that does not help, {A_MIRROR}"
        )
    part.replace(file)


def _address(public: PublicWeights) -> str:
    mirror = os.environ.get(MIRROR_SETTING)
    if not mirror:
        return public.address
    if urlsplit(mirror).scheme not in ("http", "https") or not urlsplit(mirror).netloc:
        raise BadInput(f"{MIRROR_SETTING} {mirror}: expected the address of a folder, such as https://HOST/weights")
    return f"{mirror.rstrip('/')}/{public.file}"


class _Broken(Exception):
    """A file that began to come and did not come to its end."""


def _take(answer: HTTPResponse, part: Path, here: int, progress: Progress | None) -> None:
    """Write what comes behind what is here, or all of it anew where the server starts from the beginning.

    Raises:
        _Broken: it broke off.
        BadInput: it is far too long.
    """
    goes_on = answer.status == PARTIAL and answer.headers.get("Content-Range", "").startswith(f"bytes {here}-")
    if not goes_on and answer.status != WHOLE:
        part.unlink(missing_ok=True)
        raise _Broken(f"answered {answer.status} and another part of the file than was asked for, which was deleted")
    done = here if goes_on else 0
    length = answer.headers.get("Content-Length", "")
    expected = done + int(length) if re.fullmatch(r"\d{1,18}", length) else None
    refuse_lack_of_room(part, (expected or done) - done, "what is to come", "fetch it elsewhere")
    with part.open("ab" if goes_on else "wb") as opened:
        for piece in _pieces(answer):
            done += len(piece)
            if max(done, expected or 0) > MOST_BYTES:
                raise BadInput(f"{answer.url}: more than {MOST_BYTES // MIB:,} MiB; expected a file of weights")
            opened.write(piece)
            if progress is not None and expected is not None:
                progress(done // MIB, expected // MIB)
        opened.flush()
        os.fsync(opened.fileno())
    if expected is not None and done < expected:
        raise _Broken(f"broke off after {done:,} of {expected:,} bytes, which are kept")


def _pieces(answer: HTTPResponse) -> Iterator[bytes]:
    try:
        while piece := answer.read(PIECE_BYTES):
            yield piece
    except (OSError, HTTPException) as error:
        raise _Broken(f"broke off ({error or type(error).__name__}); what came is kept") from error
