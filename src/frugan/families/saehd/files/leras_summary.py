"""The summary.txt of a DeepFaceLab model: name, iteration and options in a box, for people."""

from collections.abc import Mapping
from typing import Any


def summary(title: str, iteration: int, options: Mapping[str, Any]) -> str:
    """The box.

    Args:
        title: name and kind, "new_SAEHD".
        iteration: updates done.
        options: shown one a line.
    """
    rows = {"Model name": title, "Current iteration": str(iteration)}
    shown = {key: str(value) for key, value in options.items()}
    left = max(map(len, (*rows, *shown)))
    right = max(map(len, (*rows.values(), *shown.values())))
    inner = left + right + 4

    def row(key: str, value: str) -> str:
        return f"== {key:>{left}}: {value:<{right}} =="

    empty = f"=={'':{inner}}=="
    first, second = (row(key, value) for key, value in rows.items())
    lines = [f"{' Model Summary ':=^{inner + 4}}", empty, first, empty, second, empty]
    lines += [f"=={' Model Options ':-^{inner}}==", empty, *(row(key, value) for key, value in shown.items()), empty]
    return "\n".join([*lines, "=" * (inner + 4)])
