"""Extension of griffe for the docs: what a comment beside or above a field says is the field's description there."""

import ast
from typing import Any

from griffe import Attribute, Docstring, Extension, ObjectNode


class FieldComments(Extension):
    """Fields of classes get the comment of their line, or those above it, as docstring."""

    def on_attribute_instance(self, *, node: ast.AST | ObjectNode, attr: Attribute, **kwargs: Any) -> None:
        """Called by griffe once a field has been read."""
        file = attr.filepath  # several are a package's without a file of its own, which has no fields
        if attr.docstring is not None or attr.lineno is None or attr.parent is None or isinstance(file, list):
            return
        if attr.parent.is_class:
            lines = file.read_text("utf-8").splitlines()
            said = comment_of(lines, attr.lineno - 1, (attr.endlineno or attr.lineno) - 1)
            attr.docstring = Docstring(said, parent=attr, lineno=attr.lineno) if said else None


def comment_of(lines: list[str], first: int, last: int) -> str:
    """Comment at the end of what stands in lines `first` to `last`, or else in the lines above it; empty: none."""
    _, mark, beside = lines[last].rpartition("  # ")
    if mark:
        return beside
    above = first
    while above and lines[above - 1].lstrip().startswith("# "):
        above -= 1
    return " ".join(line.lstrip().removeprefix("# ") for line in lines[above:first])
