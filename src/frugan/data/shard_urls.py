"""Addresses of WebDataset shards, as `--data` takes them: one, or a pattern with numbers in braces."""

import itertools
import math
import re
from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

from frugan.data.wording import shown
from frugan.errors import BadInput

MOST_SHARDS = 100_000
SCHEMES = ("https", "http")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(pipe):", re.IGNORECASE)
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})(?:\.\.(\d{1,18}))?")
MOST_PATTERN = 10_000
EXPECTED = "expected numbers in braces, such as {0000..0099}, or names, such as {a,b}"


def is_address(text: str) -> bool:
    """Whether what was given as data is an address, or a command, and no path."""
    return _SCHEME.match(text) is not None


def shard_urls(pattern: str) -> list[str]:
    """The addresses of "https://host/shard-{0000..0099}.tar", in order.

    Raises:
        BadInput: no http address, no tar files, or too many.
    """
    where = without_secrets(pattern)
    found = _SCHEME.match(pattern)
    scheme = "" if found is None else (found[1] or found[2]).lower()
    if scheme == "pipe":
        raise BadInput(
            f"{where}: `pipe:` would run a command of its own on this machine, and data must not; give an https:// "
            "address, or fetch the shards yourself and give their folder"
        )
    if scheme not in SCHEMES:
        raise BadInput(
            f"{where}: shards are fetched by https:// or http://, and this is {scheme}://; give such an address "
            "(object stores have them), or copy the shards to a folder with the store's own tool and give that"
        )
    if "::" in pattern:
        raise BadInput(f"{where}: one pattern, not several with `::` between them; numbers go into braces")
    urls = _expanded(pattern, where) if "{" in pattern else [pattern]
    for url in urls:
        _check(url)
    if len(set(urls)) != len(urls):
        raise BadInput(f"{where}: the pattern names the same shard twice")
    return urls


def _expanded(pattern: str, where: str) -> list[str]:
    parts = _BRACES.split(pattern)  # what stands in braces is every second
    if len(pattern) > MOST_PATTERN or "{" in (rest := "".join(parts[::2])) or "}" in rest:
        raise BadInput(f"{where}: {EXPECTED}")
    choices = [_numbers(part, where) if number % 2 else [part] for number, part in enumerate(parts)]
    if math.prod(len(each) for each in choices) > MOST_SHARDS:
        raise BadInput(f"{where}: names more than {MOST_SHARDS:,} shards; expected a pattern such as {{0000..0099}}")
    return ["".join(each) for each in itertools.product(*choices)]


def _numbers(braces: str, where: str) -> Sequence[str]:
    """What "0000..0012", "12..0..3" or "a,b" stands for, as a shell has it."""
    found = _RANGE.fullmatch(braces)
    if found is None:
        if "," not in braces or ".." in braces:
            raise BadInput(f"{where}: {EXPECTED}")
        return braces.split(",")
    first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
    if abs(last - first) // max(1, step) >= MOST_SHARDS:  # before a list is made of them
        raise BadInput(f"{where}: names more than {MOST_SHARDS:,} shards; expected a pattern such as {{0000..0099}}")
    padded = any(len(each) > 1 and each.startswith("0") for each in found.groups()[:2])
    width = max(len(found[1]), len(found[2])) if padded else 0
    way = max(1, step) * (1 if last >= first else -1)
    return [f"{number:0{width}d}" for number in range(first, last + (1 if way > 0 else -1), way)]


def _check(url: str) -> None:
    where = without_secrets(url)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadInput(f"{where}: no address ({error})") from error
    if not host or not url.isprintable() or " " in url or not url.isascii():
        raise BadInput(f"{where}: no address; expected one such as https://host/path/shard-{{0000..0099}}.tar")
    if parts.username is not None:
        raise BadInput(f"{where}: no user and password in addresses: they would be kept with the run")
    if not parts.path.lower().endswith(".tar"):
        raise BadInput(f"{where}: shards are uncompressed tar files, and the address of each ends in .tar")


def without_secrets(url: str) -> str:
    """An address as it can be shown: without a password, or a query, which signs addresses of object stores."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return shown(url[:200])
    host = parts.netloc.rpartition("@")[2]
    return shown(urlunsplit((parts.scheme, host, parts.path, "", ""))[:400])
