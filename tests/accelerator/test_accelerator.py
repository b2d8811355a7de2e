"""Outside of the one door to devices nobody asks torch for a kind of card."""

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "frugan"
ASKING = re.compile(r"torch\.cuda|is_cuda|type\s*[!=]=\s*\"cuda\"|device\.type in")


def test_the_door_is_the_only_one() -> None:
    door = PACKAGE / "accelerator"
    asked = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if door not in path.parents
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if ASKING.search(line)
    ]
    assert asked == []


def test_the_search_would_find_them() -> None:
    assert ASKING.search((PACKAGE / "accelerator" / "cuda.py").read_text("utf-8"))
    assert all(map(ASKING.search, ("if tensor.is_cuda:", 'if device.type == "cuda":', "torch.cuda.synchronize()")))
