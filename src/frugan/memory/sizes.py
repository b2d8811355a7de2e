"""Sizes of memory as people write them."""

import re

from frugan.errors import BadInput

KIB, MIB, GIB = 2**10, 2**20, 2**30
_UNITS = {"b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")


def parse_size(text: str) -> int:
    """Bytes of "6GiB", "5632 MiB" or "6GB" (decimal: 5.59 GiB).

    Raises:
        BadInput: not a positive number with a unit.
    """
    found = _FORM.fullmatch(text)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise BadInput(
            f"{text!r} is not a size: expected a number with a unit, such as 6GiB or 5632MiB (6GB is 5.59GiB)"
        )
    size = int(float(found[1]) * unit)
    if size < 1:
        raise BadInput(f"{text!r} is too small: expected more than 0, such as 6GiB")
    return size


def show_size(size_bytes: float) -> str:
    """Bytes for people: GiB with two digits, MiB below one of them."""
    if abs(size_bytes) >= GIB:
        return f"{size_bytes / GIB:.2f} GiB"
    return f"{size_bytes / MIB:.0f} MiB" if abs(size_bytes) >= MIB or size_bytes == 0 else f"{size_bytes / KIB:.0f} KiB"
