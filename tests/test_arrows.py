"""Imports inside the package point down only; engine and families meet in `contract` and in `api` alone."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "frugan"

GROUND = {"errors", "files", "version", "wording"}
"""What stands on nothing else, and everything on it."""

ALLOWED: dict[str, set[str]] = {
    "__init__": {"api", "recipe", "data", "ema_hook", "engine"},
    "__main__": {"cli"},
    "cli": {"api", "doctor", "page", "contract", "recipe", "recipes", "data", "report"},
    "doctor": {"api", "recipe", "families", "engine", "memory", "data", "metrics", "contract"},
    "page": {"api", "contract", "engine", "recipe", "recipes", "report", "data"},
    "api": {
        "recipe",
        "recipes",
        "registry",
        "families",
        "engine",
        "ema_hook",
        "memory",
        "data",
        "metrics",
        "report",
        "nn",
        "contract",
    },
    "recipe": {"recipes", "families", "engine", "contract"},
    "memory": {"engine", "contract"},
    "engine": {"contract", "registry"},
    "families": {"registry", "contract", "objectives", "augment", "nn", "data", "safe_pickle", "tf_checkpoint"},
    "augment": {"contract"},
    "nn": {"contract"},
    "objectives": set(),
    "contract": set(),
    "data": {"contract", "safe_pickle"},
    "metrics": set(),
    "safe_pickle": set(),
    "tf_checkpoint": set(),
    "report": set(),
    "ema_hook": {"engine", "contract"},
    "errors": set(),
    "files": set(),
    "wording": set(),
    "version": set(),
    "recipes": set(),
    "registry": set(),
}
"""Part -> parts it may import, besides itself and the ground."""


def _part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """A file's syntax tree, for both tests of every file."""
    return tuple(ast.walk(ast.parse(path.read_text("utf-8"))))


def _imported(path: Path) -> set[str]:
    """Parts that a file imports, inside functions too."""
    modules: list[str] = []
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            modules += (
                [f"frugan.{alias.name}" for alias in node.names] if node.module == "frugan" else [node.module or ""]
            )
    return {module.split(".")[1] for module in modules if module.startswith("frugan.")}


FILES = sorted(PACKAGE.rglob("*.py"))
every_part = pytest.mark.parametrize("part", sorted({_part(path) for path in FILES}))


@every_part
def test_imports_point_down(part: str) -> None:
    for path in (path for path in FILES if _part(path) == part):
        assert _imported(path) - {part} <= ALLOWED[part] | GROUND, path


def _imported_files(path: Path) -> set[Path]:
    """Files that a file imports when it runs, inside functions too."""
    for_types = {
        id(node)
        for test in _nodes(path)
        if isinstance(test, ast.If) and ast.unparse(test.test) == "TYPE_CHECKING"
        for node in ast.walk(test)
    }
    files = set()
    for node in _nodes(path):
        if not isinstance(node, ast.ImportFrom) or id(node) in for_types:
            continue
        for name in (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)):
            if (file := PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py")).is_file():
                files.add(file)
    return files


def test_no_circles() -> None:
    """Taking away whatever imports nothing that is left, over and over, leaves nothing."""
    left = {path: _imported_files(path) - {path} for path in FILES}
    assert any(left.values())
    while ground := [path for path, imported in left.items() if not imported & left.keys()]:
        for path in ground:
            del left[path]
    assert not left, sorted(path.relative_to(PACKAGE).as_posix() for path in left)


def test_families_do_not_import_each_other() -> None:
    families = [p for p in (PACKAGE / "families").iterdir() if (p / "__init__.py").is_file()]
    assert families
    for family in families:
        others = {f"frugan.families.{other.name}" for other in families if other != family}
        for path in family.rglob("*.py"):
            text = path.read_text("utf-8")
            assert not any(other in text for other in others), path


ROOMS = (
    "families/",
    "data/faces/",
    "api/demo",
    "cli/demo.py",
)
"""Where a family with its formats, or a kind of data, is at home."""
FRONT_DOORS = ("__init__.py", "api/convert/convert.py", "cli/prepare.py", "api/progress.py")
"""What lists them for users."""
OWN_WORDS = re.compile(r"saehd|leras|biggan|stylegan|dfl|deepface|(?<!sur)(?<!inter)face", re.IGNORECASE)


@every_part
def test_general_code_names_no_family_and_no_kind_of_data(part: str) -> None:
    """In identifiers and imports; what people read (help, messages, sources in docstrings) may give examples."""
    for path in (path for path in FILES if _part(path) == part):
        where = path.relative_to(PACKAGE).as_posix()
        if where.startswith(ROOMS) or where in FRONT_DOORS:
            continue
        names = {
            value
            for node in _nodes(path)
            for field in ("id", "attr", "name", "arg", "module", "asname")
            if isinstance(value := getattr(node, field, None), str)
        }
        assert not [name for name in names if OWN_WORDS.search(name)], path


def test_no_torchvision_no_autocast() -> None:
    for path in FILES:
        text = path.read_text("utf-8")
        assert "import torchvision" not in text, path
        assert "autocast(" not in text, path
