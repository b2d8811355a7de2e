"""Draws pictures of a kind.

    python benchmarks/draw_pictures.py KIND OUT [--count 1000] [--side 64] [--seed 0] [--messy]
    python benchmarks/draw_pictures.py KIND OUT.png --sheet

The first writes a folder of PNGs, with a folder for each class where the kind has classes, and beside it
OUT-factors.jsonl, a line for each picture with what is in it.
"""

import argparse
from pathlib import Path

from picture_sets.kinds import KINDS, sheet, write_pictures


def main() -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--messy", action="store_true", help="with duplicates and files that cannot be opened")
    parser.add_argument("--sheet", action="store_true", help="one picture of 10 x 6 of them, to look at")
    given = parser.parse_args()
    kind = KINDS[given.kind]
    if given.sheet:
        sheet(kind, seed=given.seed, columns=10, rows=6, side=given.side).save(given.out)
    else:
        write_pictures(kind, given.out, seed=given.seed, count=given.count, side=given.side, messy=given.messy)


if __name__ == "__main__":
    main()
