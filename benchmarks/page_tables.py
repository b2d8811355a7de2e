"""Tables in pages of the documentation, made from recorded results.

Each stands between `<!-- table: NAME -->` and `<!-- end -->`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
DOCS = HERE.parent / "docs"


def read(name: str) -> Any:
    """A record, by its file's name."""
    return json.loads((RESULTS / name).read_text("utf-8"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def filled(page: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """A page with its tables made anew.

    Raises:
        KeyError: a table that nobody makes.
    """

    def made(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n\n{tables[match[1]]()}\n\n<!-- end -->"

    return re.sub(r"<!-- table: ([a-z0-9 ]+) -->.*?<!-- end -->", made, page, flags=re.DOTALL)


def fill(pages: Sequence[Path], tables: Mapping[str, Callable[[], str]]) -> None:
    """Write their tables."""
    for page in pages:
        page.write_text(filled(page.read_text("utf-8"), tables), "utf-8")
