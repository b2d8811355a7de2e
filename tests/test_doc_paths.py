"""Files and modules that docs, docstrings and comments name are there."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("README*.md")), ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("src", "tests", "benchmarks", "tools", "docs")
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
THEIRS = {
    *("legacy.py", "make_hdf5.py"),
    *("fast_square/__init__.py", "fast_square/programs.py", "least_squares.py", "consistent.py"),
}
"""Programs of other people that frugan speaks of, and those that pages on adding something make."""
NO_MODULES = {"frugan.formats", "frugan.ops", "frugan.ipynb"}
"""Groups of entry points, and the notebook."""
PATH = re.compile(r"(?<![\w./\\-])((?:src/frugan|tests|benchmarks|tools|docs)/[\w./*-]*\w|(?:\w+/)*\w+\.py\b)(?!/)")
MODULE = re.compile(r"(?<![\w./-])frugan(?:\.[A-Za-z_]\w*)+")


@cache
def files() -> frozenset[str]:
    """Files of the repository and their folders."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    return frozenset(path.relative_to(ROOT).as_posix() for path in [*paths, *ROOT.glob("*.*")]) | set(FOLDERS)


@cache
def ends() -> frozenset[str]:
    """Of these, behind each slash."""
    parts = [path.split("/") for path in files()]
    return frozenset("/".join(each[at:]) for each in parts for at in range(1, len(each)))


def is_there(path: str) -> bool:
    """Whether a path, or the end of one such as `contract/layers.py`, is of the repository."""
    if "*" in path:
        return any(ROOT.glob(path)) or (ROOT / path.rpartition("/")[0]).is_dir()  # records that are yet to come
    return path in files() or path in THEIRS or path in ends()


def is_known(dotted: str) -> bool:
    """Whether a module is there, or a name stands in it."""
    place, rest = ROOT / "src" / "frugan", dotted.split(".")[1:]
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    if rest and (place / f"{rest[0]}.py").is_file():
        place /= f"{rest.pop(0)}.py"
    file = place / "__init__.py" if place.is_dir() else place
    return not rest or re.search(rf"\b{rest[0]}\b", file.read_text("utf-8")) is not None


def unknown(text: str) -> list[str]:
    """Paths and modules in a text that are not there."""
    paths = [match[1] for match in PATH.finditer(text) if not is_there(match[1])]
    dotted = [match[0] for match in MODULE.finditer(text) if match[0] not in NO_MODULES]
    return paths + [name for name in dotted if not is_known(name)]


def prose(path: Path) -> Iterator[str]:
    """Comments and docstrings of a source file."""
    source = path.read_text("utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_pages_name_is_there(page: Path) -> None:
    assert unknown(page.read_text("utf-8")) == []


@pytest.mark.parametrize("folder", FOLDERS[:-1])
def test_what_docstrings_and_comments_name_is_there(folder: str) -> None:
    named = {
        path.relative_to(ROOT).as_posix(): missing
        for path in SOURCES
        if path.is_relative_to(ROOT / folder)
        if unknown(path.read_text("utf-8"))  # anywhere: few files have to be taken apart
        and (missing := [each for text in prose(path) for each in unknown(text)])
    }
    assert named == {}


def test_pages_of_the_site_are_there() -> None:
    pages = re.findall(r"(?m)^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"))
    assert len(pages) > 20
    assert [page for page in pages if not (ROOT / "docs" / page).is_file()] == []


@pytest.mark.parametrize("text", ["src/frugan/engine/lost.py", "`lost.py`", "engine/lost.py", "frugan.lost"])
def test_what_is_not_there_is_noticed(text: str) -> None:
    assert unknown(text) == [text.strip("`")]
