"""The package of docs/adding-a-kernel.md, as the page has it."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-kernel.md"


def write_package(folder: Path) -> None:
    """Write the page's two files and its entry point, as an installation would."""
    programs, package = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (place,) = re.findall(r'^fast_square = "(.*)"$', PAGE.read_text("utf-8"), re.MULTILINE)
    (folder / "fast_square").mkdir(parents=True)
    (folder / "fast_square" / "programs.py").write_text(programs, "utf-8")
    (folder / "fast_square" / "__init__.py").write_text(package, "utf-8")
    information = folder / "fast_square-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: fast_square\nVersion: 0.1\n", "utf-8")
    (information / "entry_points.txt").write_text(f"[frugan.ops]\nfast_square = {place}\n", "utf-8")
