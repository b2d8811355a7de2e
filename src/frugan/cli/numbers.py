"""Lists of numbers as words of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frugan.errors import BadInput

if TYPE_CHECKING:
    from frugan.contract.family import StyleMixing

MOST_NUMBERS = 10_000_000
MOST_DIGITS = 18


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """Read "0,3,7-9".

    Raises:
        BadInput: not numbers, a range that goes down, or far more than anyone looks at.
    """
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not (_is_number(last) and int(last) >= int(first))):
            raise BadInput(f"{option} {text[:80]}: expected numbers and ranges, such as 0,3,7-9")
        if len(chosen) + int(last or first) - int(first) >= MOST_NUMBERS:
            raise BadInput(f"{option} {text[:80]}: more than {MOST_NUMBERS:,} numbers")
        chosen.extend(range(int(first), int(last or first) + 1))
    return tuple(chosen)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def parse_mixing(text: str) -> StyleMixing:
    """Read "rows=85,100 cols=55 layers=0-6".

    Raises:
        BadInput: not these three, or not numbers.
    """
    from frugan.contract.family import StyleMixing

    parts = [part.partition("=") for part in text.split()]
    found = {name: value for name, _, value in parts}
    if len(parts) != len(found) or set(found) != {"rows", "cols", "layers"}:
        raise BadInput(
            f"--style-mixing {text[:80]!r}: expected rows, cols and layers, such as "
            "'rows=85,100 cols=55,821 layers=0-6'"
        )
    rows, columns, layers = (parse_numbers(found[n], f"--style-mixing {n}") for n in ("rows", "cols", "layers"))
    return StyleMixing(rows, columns, layers)
