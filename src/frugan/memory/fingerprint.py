"""What a prediction depends on besides the recipe: the code that was run, and torch."""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch

PARTS = ("engine", "families", "memory", "nn", "objectives", "phase.py")
"""Parts of the package that a step's code, and what counts its cost, is found in."""
START = ("families", "memory/prediction.py")
"""Where it begins: what these import within the parts, they depend on."""


def code_fingerprint(package: Path) -> str:
    """Digest of the code that predictions come from; comments, docstrings and layout do not count.

    Args:
        package: the folder of the package.
    """
    digest = hashlib.sha256()
    for file, tree in sorted(_reached(package).items()):
        digest.update(file.relative_to(package).as_posix().encode())
        for word in _words(tree):
            digest.update(word.encode())
            digest.update(b"\0")
    return digest.hexdigest()[:16]


def torch_fingerprint() -> str:
    """Torch's version without the build: a CPU build predicts the same as a CUDA build."""
    return str(torch.__version__).split("+")[0]


def _reached(package: Path) -> dict[Path, ast.Module]:
    """Files that a prediction imports, directly or not, as far as they are among the parts: file -> its code."""
    found: dict[Path, ast.Module] = {}
    ahead = [file for start in START for file in _files(package / start)]
    while ahead:
        file = ahead.pop()
        if file in found:
            continue
        found[file] = ast.parse(file.read_text("utf-8"))
        for module in _imported(found[file]):
            top, *_ = inside = module.split(".")
            if top in PARTS or f"{top}.py" in PARTS:
                ahead += [at for at in _places(package, inside) if at.is_file()]
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    """Names within the package that a file imports: modules, or what is in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("frugan."):
            module = str(node.module).removeprefix("frugan.")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _places(package: Path, words: list[str]) -> Iterator[Path]:
    """Files that a dotted name may mean: a module, the module that it is in, and the packages above."""
    for count in range(1, len(words) + 1):
        at = package.joinpath(*words[:count])
        yield from (at.with_suffix(".py"), at / "__init__.py")


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
