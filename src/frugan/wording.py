"""One way to say each thing to people: sizes, names, lists."""

import difflib
import re
from collections.abc import Sequence
from typing import Any

from frugan.errors import BadInput


def shown(name: str) -> str:
    """Return `name` as it can be printed anywhere: control characters and undecodable bytes become U+FFFD."""
    return "".join(c if c.isprintable() else "\ufffd" for c in name)


def first_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first `most` names, comma-separated, and how many more there are."""
    text = ", ".join(shown(name) for name in names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most:,} more"


def first_lines(lines: Sequence[str], between: str = "\n  ", most: int = 8) -> str:
    """Return the first `most` of faults that a file may have by the hundred, and how many more there are."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return between.join([*lines[:most], *more])


def first_line(error: BaseException) -> str:
    """Return what an error says first: torch goes on with a trace of its own C++ and advice."""
    return str(error).partition("\n")[0]


def nearest(word: str, known: Sequence[str]) -> str:
    """The closest known word, as a hint to put behind a message; empty if none is close."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else ""


def count(number: int, noun: str) -> str:
    """Return "1 picture", "2 pictures", "3 classes"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}es" if noun.endswith("s") else f"{number:,} {noun}s"


def storable(name: str) -> str:
    """Return `name` as UTF-8 can hold it: bytes of a file name that are not text become "?"."""
    return name.encode("utf-8", "replace").decode("utf-8")


def size(number_bytes: int) -> str:
    """Return bytes as "1.5 GiB", or in MiB below one GiB."""
    return f"{number_bytes / 2**30:.1f} GiB" if number_bytes >= 2**30 else f"{number_bytes / 2**20:.1f} MiB"


KIB, MIB, GIB = 2**10, 2**20, 2**30
_UNITS = {"b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")


def parse_size(text: str) -> int:
    """Bytes of "6GiB", "5632 MiB" or "6GB" (decimal: 5.59 GiB).

    Raises:
        BadInput: not a positive number with a unit.
    """
    match = _FORM.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise BadInput(
            f"{text!r} is not a size: expected a number with a unit, such as 6GiB or 5632MiB (6GB is 5.59GiB)"
        )
    size = int(float(match[1]) * unit)
    if size < 1:
        raise BadInput(f"{text!r} is too small: expected more than 0, such as 6GiB")
    return size


def show_size(size_bytes: float) -> str:
    """Bytes for people: GiB with two digits, MiB below one of them."""
    if abs(size_bytes) >= GIB:
        return f"{size_bytes / GIB:.2f} GiB"
    return f"{size_bytes / MIB:.0f} MiB" if abs(size_bytes) >= MIB or size_bytes == 0 else f"{size_bytes / KIB:.0f} KiB"


def shown_value(value: Any) -> str:
    """A value for a message: containers are not printed, which could take forever."""
    return repr(value)[:60] if type(value) in (int, float, bool, str, type(None)) else f"a {type(value).__name__}"
