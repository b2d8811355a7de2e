"""Addresses of WebDataset shards, as `--data` takes them: one, or a pattern with numbers in braces."""

import math
import re
from urllib.parse import urlsplit, urlunsplit

from frugan.data.wording import shown
from frugan.errors import BadInput

MOST_SHARDS = 100_000
SCHEMES = ("https", "http")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(pipe):", re.IGNORECASE)
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)(?:\.\.(\d+))?\}")


def is_address(text: str) -> bool:
    """Whether what was given as data is an address, or a command, and no path."""
    return _SCHEME.match(text) is not None


def shard_urls(pattern: str) -> list[str]:
    """The addresses of "https://host/shard-{0000..0099}.tar", in order.

    Raises:
        BadInput: no http address, no tar files, too many, or the extra is missing.
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
    counts = [_count(*found.groups()) for found in _RANGE.finditer(pattern)]
    lists = [found.count(",") + 1 for found in re.findall(r"\{([^{}.]*,[^{}]*)\}", pattern)]
    if math.prod([*counts, *lists]) > MOST_SHARDS:  # before the library makes a list of them
        raise BadInput(f"{where}: names more than {MOST_SHARDS:,} shards; expected a pattern such as {{0000..0099}}")
    if len(pattern) > 10_000 or pattern.count("{") != len(counts) + len(lists):
        raise BadInput(f"{where}: expected numbers in braces, such as {{0000..0099}}, or names, such as {{a,b}}")
    try:
        from webdataset.shardlists import expand_urls  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise BadInput(
            f"{where}: patterns of shards need webdataset: pip install 'frugan[data]' (one address without braces does "
            "not)"
        ) from error
    return [str(url) for url in expand_urls(pattern)]


def _count(first: str, last: str, step: str | None) -> int:
    most = 10**9  # whatever is longer is too many
    if max(len(first), len(last)) > 9:
        return most
    return abs(int(last) - int(first)) // max(1, int((step or "1")[:9])) + 1


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
