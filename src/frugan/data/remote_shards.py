"""WebDataset's shards on a web server: fetched to this machine when they are first needed, and read there.

Training takes pictures by number, in an order that is another in every epoch: a stream of shards would give neither
that order nor a resumption bit for bit. So shards are read from a folder on the machine itself, as local ones are.
"""

import contextlib
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from frugan.data.background import WHITE, Background
from frugan.data.fetching import Forbidden, Missing, Unreachable, fetch, look_at
from frugan.data.shard_urls import shard_urls, without_secrets
from frugan.data.shards import MOST_NAMES_BYTES, NAMES_FILE, list_shards
from frugan.data.source import Source
from frugan.data.wording import shown
from frugan.errors import BadInput
from frugan.regular_files import read_regular
from frugan.whole_files import whole_file

SET_FILE = "remote-shards.json"
AT_ONCE = 8
"""Shards that a server is asked about side by side."""

Say = Callable[[str], None]


class RemoteShard(BaseModel):
    """One shard, as its server described it.

    Attributes:
        url: where it is.
        size: in bytes; None: the server does not say.
        tag: changes with the file, as far as the server tells.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    url: str
    size: int | None
    tag: str


class RemoteSet(BaseModel):
    """The shards that a folder stands for; those that were fetched lie in it.

    Attributes:
        pattern: by which they were asked for.
        most_bytes: that all shards in the folder around this one may take.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    format: Literal["frugan remote shards"] = "frugan remote shards"
    pattern: str
    most_bytes: int
    shards: tuple[RemoteShard, ...]

    @property
    def digest(self) -> str:
        """Changes with the shards, as far as their servers tell."""
        shards = "\n".join(f"{each.url} {each.size} {each.tag}" for each in self.shards)
        return hashlib.sha256(shards.encode()).hexdigest()


def is_remote(path: Path) -> bool:
    """Whether a folder stands for shards on a server."""
    return (path / SET_FILE).is_file()


def stage(pattern: str, folder: Path, most_bytes: int, say: Say) -> Path:
    """Ask servers about all shards of a pattern, and note what they say; none is fetched yet.

    Args:
        folder: for shards of all patterns.
        most_bytes: that all shards in it may take.
        say: is told what was found.

    Returns:
        The folder that stands for these.

    Raises:
        BadInput: no such pattern, a shard that is not there, or a server that does not answer.
    """
    urls = shard_urls(pattern)
    here = folder / hashlib.sha256(pattern.encode()).hexdigest()[:16]
    where = without_secrets(pattern)
    before = read_set(here) if is_remote(here) else None
    try:
        shards = _looked_at(urls)
        here.mkdir(parents=True, exist_ok=True)
        _take_names(urls[0], here)
    except Unreachable as error:
        if before is None:
            raise
        say(f"data: {error}. Going by what it said before, and by what was fetched then")
        shards = before.shards
    known = [each.size for each in shards if each.size is not None]
    size = f", {sum(known):,} bytes" if len(known) == len(shards) else ""
    say(f"data: {where}: {len(shards):,} shards{size}, fetched to {here} as they are needed (FRUGAN_SHARDS)")
    found = RemoteSet(pattern=pattern, most_bytes=most_bytes, shards=shards)
    with whole_file(here / SET_FILE) as beside:
        beside.write_text(found.model_dump_json(indent=1), "utf-8")
    names = {_local_name(number, shard) for number, shard in enumerate(shards)}
    for file in here.glob("shard-*.tar"):
        if file.name not in names:  # of a shard that is another now
            file.unlink(missing_ok=True)
    return here


def read_set(folder: Path) -> RemoteSet:
    """What a folder stands for.

    Raises:
        BadInput: its description is damaged.
    """
    try:
        return RemoteSet.model_validate_json(read_regular(folder / SET_FILE))
    except (OSError, ValidationError) as error:
        raise BadInput(f"{shown(str(folder / SET_FILE))} is damaged: delete that folder, and run it again") from error


def open_remote_shards(folder: Path, background: Background = WHITE) -> Source:
    """List the pictures of all shards; each is fetched for that, if it was not before.

    Raises:
        BadInput: as `open_shards`, or a shard cannot be fetched.
    """
    about = read_set(folder)
    cache = ShardCache(folder, about)
    where = without_secrets(about.pattern)

    def shards() -> Iterator[tuple[str, str, Path]]:
        for number, shard in enumerate(about.shards):
            called = without_secrets(shard.url)
            yield called.rpartition("/")[2], called, cache.path(number)

    kind = f"WebDataset shards ({len(about.shards):,} on a server)"
    return list_shards(folder, where, kind, shards(), cache.open, background)


def refuse_part(folder: Path) -> None:
    """Refuse to read shards in any order where they cannot all be kept: each picture would fetch its shard anew.

    Raises:
        BadInput: they cannot.
    """
    about = read_set(folder)
    size = sum(each.size or 0 for each in about.shards)
    if size > about.most_bytes:
        raise BadInput(
            f"{without_secrets(about.pattern)}: {size:,} bytes of shards, and {about.most_bytes:,} may be kept on this "
            "machine; raise that (FRUGAN_SHARDS_MOST=500GiB), or leave data.stored=encoded out: a prepared set is made "
            "shard by shard"
        )


class ShardCache:
    """The shards of one set on this machine: fetched when needed, the longest unused deleted where they are too many.

    Args:
        folder: of the set.
        about: it.
    """

    def __init__(self, folder: Path, about: RemoteSet) -> None:
        self._folder = folder
        self._about = about
        self._fetched: set[int] = set()

    def path(self, number: int) -> Path:
        """A shard's file.

        Raises:
            BadInput: it cannot be fetched, or is larger than all that may be kept.
        """
        shard = self._about.shards[number]
        file = self._folder / _local_name(number, shard)
        try:
            size = file.stat().st_size
            if size == shard.size or (shard.size is None and number in self._fetched):
                os.utime(file)  # used now
                return file
        except OSError:
            pass  # not there: fetched below
        most = self._about.most_bytes
        if shard.size is not None and shard.size > most:
            raise BadInput(
                f"{without_secrets(shard.url)}: {shard.size:,} bytes, and all shards may take {most:,} on this "
                "machine; raise that: FRUGAN_SHARDS_MOST=100GiB"
            )
        self._make_room(shard.size or 0)
        found = fetch(shard.url, file, most)
        if found.size != shard.size or found.tag != shard.tag:
            file.unlink(missing_ok=True)
            raise BadInput(f"{without_secrets(shard.url)} has changed while it was read; run it again")
        self._fetched.add(number)  # where no size is known, a file of another process may be anything
        if shard.size is None:
            self._make_room(0, but=file)
        return file

    def open(self, number: int) -> io.BufferedReader:
        """A shard, opened; another process may delete it meanwhile, and does no harm.

        Raises:
            BadInput: as `path`.
        """
        while True:
            try:
                return self.path(number).open("rb")
            except FileNotFoundError:
                continue

    def _make_room(self, size: int, but: Path | None = None) -> None:
        """Delete what was unused for longest, of all sets, until so much more may be kept."""
        kept: list[tuple[float, int, Path]] = []
        for file in self._folder.parent.glob("*/shard-*.tar"):
            with contextlib.suppress(OSError):  # another process deleted it
                about = file.stat()
                kept.append((about.st_mtime, about.st_size, file))
        total = sum(bytes_ for _, bytes_, _ in kept)
        for _, bytes_, file in sorted(kept):
            if total + size <= self._about.most_bytes:
                return
            if file != but:
                file.unlink(missing_ok=True)
                total -= bytes_


def _local_name(number: int, shard: RemoteShard) -> str:
    """By number, whatever the address is; another shard at the same address has another name."""
    which = hashlib.sha256(f"{shard.url} {shard.size} {shard.tag}".encode()).hexdigest()[:8]
    return f"shard-{number:06d}-{which}.tar"


def _looked_at(urls: list[str]) -> tuple[RemoteShard, ...]:
    first = look_at(urls[0])  # alone: a server that is not there is found out once
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="frugan-shards")
    try:
        looked = [first, *pool.map(look_at, urls[1:])]
    finally:
        pool.shutdown(cancel_futures=True)
    return tuple(RemoteShard(url=url, size=each.size, tag=each.tag) for url, each in zip(urls, looked, strict=True))


def _take_names(url: str, folder: Path) -> None:
    """The names of the classes that stand beside the shards, if they do."""
    if "?" in url:
        return  # signed: for that one file
    file = folder / NAMES_FILE
    try:
        fetch(f"{url.rpartition('/')[0]}/{NAMES_FILE}", file, MOST_NAMES_BYTES)
    except (Missing, Forbidden):
        file.unlink(missing_ok=True)
