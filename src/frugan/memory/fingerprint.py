"""What a prediction depends on besides the recipe: the code that was run, and torch."""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch

PARTS = ("engine", "families", "memory", "nn", "objectives", "phase.py")
"""Parts of the package whose code runs in a step, or counts what it takes."""


def code_fingerprint(package: Path) -> str:
    """Digest of the code that predictions come from; comments, docstrings and layout do not count.

    Args:
        package: the folder of the package.
    """
    files = sorted(file for part in PARTS for file in _files(package / part))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(package).as_posix().encode())
        for word in _words(ast.parse(file.read_text("utf-8"))):
            digest.update(word.encode())
            digest.update(b"\0")
    return digest.hexdigest()[:16]


def torch_fingerprint() -> str:
    """Torch's version without the build: a CPU build predicts the same as a CUDA build."""
    return str(torch.__version__).split("+")[0]


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def _words(node: ast.AST) -> Iterator[str]:
    """A tree as words, the same in every version of Python: what is empty is left out."""
    yield type(node).__name__
    for name, value in sorted(ast.iter_fields(node)):
        if name in ("type_comment", "kind", "ctx") or value is None or value == []:
            continue
        values = value if isinstance(value, list) else [value]
        if name == "body" and isinstance(values[0], ast.Expr) and isinstance(values[0].value, ast.Constant):
            values = values[1:]  # a docstring
        yield name
        for each in values:
            if isinstance(each, ast.AST):
                yield from _words(each)
            else:
                yield repr(each)
    yield "."
