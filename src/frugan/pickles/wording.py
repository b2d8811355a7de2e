"""How values out of files are named in messages."""

from typing import Any


def shown_value(value: Any) -> str:
    """A value for a message: containers are not printed, which could take forever."""
    return repr(value)[:60] if type(value) in (int, float, bool, str, type(None)) else f"a {type(value).__name__}"
