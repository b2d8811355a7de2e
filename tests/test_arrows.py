"""Imports inside the package point down only; engine and families meet in `contract` and in `api` alone."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tools.draw_rooms import PICTURE, drawing

PACKAGE = Path(__file__).parents[1] / "src" / "frugan"

GROUND = {"errors", "files", "progress", "registry", "version", "wording"}
"""What stands on nothing else but each other, and everything on it."""

ENGINE = {"engine", "engine/state", "engine/ranks", "engine/step", "engine/run", "accelerator"}
DATA = {"data", "data/formats"}
LAYERS = {"nn", "objectives", "augment", "safe_pickle", "tf_checkpoint"}

ALLOWED: dict[str, set[str]] = {
    "__init__": {
        *("training", "training/own_loop", "planning", "sampling", "evaluation", "conversion", "conversion/export"),
        *("reporting", "setup", "data", "recipe", "engine/state"),
    },
    "__main__": {"cli"},
    # rooms that nothing imports
    "cli": {
        *("page", "doctor", "training", "planning", "sampling", "evaluation", "conversion", "conversion/export"),
        *("reporting", "setup", "recipe", "recipes", "contract", "faces/data", *DATA),
    },
    "page": {"training", "sampling", "reporting", "setup", "recipe", "recipes", "contract", *DATA, *ENGINE},
    "doctor": {
        *("training", "planning", "evaluation", "setup", "stepmemory", "recipe", "families", "metrics", "contract"),
        *(*DATA, *ENGINE),
    },
    # a room for a command
    "training": {
        *("planning", "sampling", "evaluation", "reporting", "setup", "stepmemory", "recipe", "recipes", "metrics"),
        *("contract", "nn", "faces/data", *DATA, *ENGINE),
    },
    "training/own_loop": {"planning", "stepmemory", "contract", *ENGINE},
    "conversion": {
        *("conversion/export", "sampling", "reporting", "setup", "recipe", "metrics", "contract", "data", *ENGINE),
    },
    "conversion/export": {"sampling", "setup", "recipe", "contract", *ENGINE},
    "evaluation": {"sampling", "setup", "recipe", "metrics", "contract", *DATA, *ENGINE},
    "sampling": {"reporting", "setup", "recipe", "metrics", "contract", *DATA, *ENGINE},
    "planning": {"setup", "stepmemory", "recipe", "families", "contract", *ENGINE},
    "reporting": {"engine/run", "metrics"},
    # what they share
    "setup": {"stepmemory", "recipe", "contract", "nn", *DATA, *ENGINE},
    "recipe": {"recipes", "families", "contract", "engine", "engine/state", "accelerator"},
    "engine/run": {"engine/step", "engine/ranks", "engine/state", "engine", "accelerator", "contract"},
    "engine/step": {"engine/ranks", "engine/state", "engine", "accelerator", "contract"},
    "engine/ranks": {"engine/state", "engine", "accelerator", "contract"},
    "engine/state": {"engine", "accelerator", "contract"},
    "engine": {"accelerator", "contract"},
    # knows torch, and neither generators nor the engine
    "stepmemory": {"accelerator"},
    "accelerator": set(),
    # kinds of model: they meet the engine in `contract` alone
    "families": {"contract", "data", "nn"},
    "families/biggan": {"families", "contract", "data", *LAYERS},
    "families/r3gan": {"families", "contract", "data", *LAYERS},
    "families/stylegan2": {"families", "contract", "data", *LAYERS},
    "faces/saehd": {"contract", "faces/data", *LAYERS},
    "faces/data": {"contract", "safe_pickle", *DATA},
    "faces": set(),
    # come in by the entry point `frugan.ops`: nobody imports them
    "kernels": {"kernels/programs", "contract", "nn"},
    "kernels/programs": set(),
    "nn": {"contract"},
    "augment": {"contract"},
    "data": {"data/formats", "contract"},
    "data/formats": set(),
    "contract": set(),
    "metrics": set(),
    "objectives": {"contract"},
    "recipes": set(),
    "safe_pickle": set(),
    "tf_checkpoint": set(),
    **{part: set() for part in GROUND},
}
"""Room, or sub-room with what lies right in it -> those that it may import, besides itself and the ground."""


NOT_DRAWN: set[str] = GROUND | {"__init__", "__main__"}


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
    "faces/",
    "training/demo",
    "cli/demo.py",
)
"""Where a family with its formats, or a kind of data, is at home."""
FRONT_DOORS = ("__init__.py", "conversion/convert.py", "cli/prepare.py", "progress.py")
"""What lists them for users."""
OWN_WORDS = re.compile(r"saehd|leras|biggan|stylegan|dfl|deepface|(?<!sur)(?<!inter)face", re.IGNORECASE)


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
        assert not [name for name in names if OWN_WORDS.search(name)], path


def test_no_torchvision_no_autocast() -> None:
    for path in FILES:
        text = path.read_text("utf-8")
        assert "import torchvision" not in text, path
        assert "autocast(" not in text, path
