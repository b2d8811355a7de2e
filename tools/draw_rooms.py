"""Draws docs/pictures/rooms.svg: the rooms of src/frugan, each above all that it imports. `python -m tools.draw_rooms`

tests/rooms.py says which imports which, and tests/test_arrows.py holds the drawing to it.
"""

import sys
from collections.abc import Mapping, Set
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "rooms.svg"
WIDTH, ROW_HEIGHT, BOX_HEIGHT, GAP = 960, 52, 34, 12  # pixels
FILLS = {
    "engine": "#e8f0fb",
    "stepmemory": "#e8f0fb",
    "accelerator": "#e8f0fb",
    "families": "#fdf3e3",
    "faces": "#fdf3e3",
    "nn": "#fdf3e3",
    "objectives": "#fdf3e3",
    "augment": "#fdf3e3",
    "kernels": "#fdf3e3",
    "contract": "#f3e8fb",
}
"""First folder of a room -> its colour: the machine, the models, and where they meet. Other rooms are grey."""


def levels(allowed: Mapping[str, Set[str]]) -> list[list[str]]:
    """Rooms by row, the lowest first: each as low as what it may import leaves it."""
    heights: dict[str, int] = {}
    while left := allowed.keys() - heights.keys():
        for room in sorted(left):
            if allowed[room] <= heights.keys():
                heights[room] = 1 + max((heights[below] for below in allowed[room]), default=-1)
    rows: list[list[str]] = [[] for _ in range(1 + max(heights.values()))]
    for room, height in sorted(heights.items()):
        rows[height].append(room)
    return rows


def drawing(allowed: Mapping[str, Set[str]], *, left_out: Set[str]) -> str:
    """The picture as SVG.

    Args:
        allowed: room -> rooms that it may import.
        left_out: rooms that are not drawn, as everything stands on them, or they stand on everything.
    """
    shown = {room: below - left_out for room, below in allowed.items() if room not in left_out}
    rows = levels(shown)
    height = len(rows) * ROW_HEIGHT + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="Rooms of the package, each above all that it imports">',
        "<style>text{font:13px system-ui,-apple-system,sans-serif;fill:#222;text-anchor:middle}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#fff"/>',
    ]
    for number, rooms in enumerate(rows):
        y = height - (number + 1) * ROW_HEIGHT
        box_width = (WIDTH - GAP) / len(rooms) - GAP
        for column, room in enumerate(rooms):
            x = GAP + column * (box_width + GAP)
            fill = FILLS.get(room.partition("/")[0], "#f2f2f2")
            box = f'x="{x:.0f}" y="{y}" width="{box_width:.0f}" height="{BOX_HEIGHT}" rx="7"'
            lines.append(f'<rect {box} fill="{fill}" stroke="#888"/>')
            lines.append(f'<text x="{x + box_width / 2:.0f}" y="{y + 22}">{room}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    from rooms import ALLOWED, NOT_DRAWN  # the table is the tests', which no installation has

    PICTURE.write_text(drawing(ALLOWED, left_out=NOT_DRAWN), "utf-8")
