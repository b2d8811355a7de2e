"""How names from elsewhere appear in messages."""

from collections.abc import Sequence


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
