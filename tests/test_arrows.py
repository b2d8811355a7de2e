"""Imports inside the package point down only; engine and families meet in `contract` and in `api` alone."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from rooms import ALLOWED, DATA, ENGINE, GROUND, LAYERS, NOT_DRAWN
from tools.draw_rooms import PICTURE, drawing

PACKAGE = Path(__file__).parents[1] / "src" / "frugan"


def _room_of(path: Path) -> str:
    *folders, name = path.relative_to(PACKAGE).with_suffix("").parts
    return "/".join(folders) or name


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """A file's syntax tree, for both tests of every file."""
    return tuple(ast.walk(ast.parse(path.read_text("utf-8"))))


def _imported(path: Path) -> set[str]:
    """Rooms that a file imports, inside functions too."""
    modules: list[str] = []
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            modules += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    rooms = set()
    for module in modules:
        place = PACKAGE.parent.joinpath(*module.split("."))
        if not module.startswith("frugan."):
            continue
        if place.with_suffix(".py").is_file():
            rooms.add(_room_of(place.with_suffix(".py")))
        elif (place / "__init__.py").is_file():
            rooms.add(_room_of(place / "__init__.py"))
    return rooms


FILES = sorted(PACKAGE.rglob("*.py"))
every_room = pytest.mark.parametrize("room", sorted({_room_of(path) for path in FILES}))


@every_room
def test_imports_point_down(room: str) -> None:
    for path in (path for path in FILES if _room_of(path) == room):
        assert _imported(path) - {room} <= ALLOWED[room] | GROUND, path


def test_rooms_stand_on_each_other_and_none_on_itself() -> None:
    """The table has no circle, and no arrow that no file goes along."""
    left = {room: below - {room} for room, below in ALLOWED.items()}
    while ground := [room for room, below in left.items() if not below & left.keys()]:
        for room in ground:
            del left[room]
    assert not left
    groups = {*ENGINE, *DATA, *LAYERS, "accelerator"}
    for room, below in ALLOWED.items():
        gone_along = set().union(*(_imported(path) for path in FILES if _room_of(path) == room))
        assert below - groups <= gone_along, (room, below - groups - gone_along)


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


def test_the_drawing_is_of_the_table() -> None:
    """Else: `python -m tools.draw_rooms`."""
    assert PICTURE.read_text("utf-8") == drawing(ALLOWED, left_out=NOT_DRAWN)


def test_families_import_no_other_but_the_one_that_they_continue() -> None:
    families = [p for p in (PACKAGE / "families").iterdir() if (p / "__init__.py").is_file()]
    assert families
    for family in families:
        continued = {room for room in ALLOWED[f"families/{family.name}"] if room.startswith("families/")}
        assert len(continued) <= 1
        others = {f"frugan.families.{other.name}" for other in families if f"families/{other.name}" not in continued}
        others.discard(f"frugan.families.{family.name}")
        for path in family.rglob("*.py"):
            text = path.read_text("utf-8")
            assert not any(other in text for other in others), path


ROOMS = (
    "families/",
    "faces/",
    "training/demo",
    "cli/demo.py",
)
"""Where a family with its formats, or a kind of data, is at home."""
FRONT_DOORS = ("__init__.py", "conversion/convert.py", "cli/prepare.py", "cli/masks.py", "cli/swap.py", "progress.py")
"""What lists them for users."""
OWN_WORDS = re.compile(r"saehd|leras|biggan|stylegan|(?<!sig_)dfl|deepface|(?<!sur)(?<!inter)face", re.IGNORECASE)


@every_room
def test_general_code_names_no_family_and_no_kind_of_data(room: str) -> None:
    """In identifiers and imports; what people read (help, messages, sources in docstrings) may give examples."""
    for path in (path for path in FILES if _room_of(path) == room):
        where = path.relative_to(PACKAGE).as_posix()
        if where.startswith(ROOMS) or where in FRONT_DOORS:
            continue
        names = {
            value
            for node in _nodes(path)
            for field in ("id", "attr", "name", "arg", "module", "asname")
            if isinstance(value := getattr(node, field, None), str)
        }
        names -= {"SIG_DFL"}  # the default handler of a signal
        assert not [name for name in names if OWN_WORDS.search(name)], path


def test_no_torchvision_no_autocast() -> None:
    for path in FILES:
        text = path.read_text("utf-8")
        assert "import torchvision" not in text, path
        assert "autocast(" not in text, path
