"""Packages that pages of the docs show, installed as the pages have them."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def python_blocks(page: str) -> list[str]:
    """Programs of a page, in its order."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


def write_module(page: str, folder: Path) -> None:
    """Write a page's one program and its entry point, as an installation would."""
    (program,) = python_blocks(page)
    text = (DOCS / page).read_text("utf-8")
    ((group, name, module, kind),) = re.findall(r'entry-points\."(.+)"\]\n(\S+) = "(\w+):(\w+)"', text)
    (folder / f"{module}.py").write_text(program, "utf-8")
    information = folder / f"{module}-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 0.1\n", "utf-8")
    (information / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{kind}\n", "utf-8")
    invalidate_caches()


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Have the packages of a folder, which are forgotten afterwards: another test may bring others of their names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    for file in folder.glob("*.py"):
        sys.modules.pop(file.stem, None)


@pytest.fixture(scope="module", autouse=True)
def families_of_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have the families installed that pages show, for a module that imports this."""
    folder = tmp_path_factory.mktemp("families")
    write_module("adding-a-loss.md", folder)
    write_module("adding-a-regulariser.md", folder)
    with importable(folder):
        yield
