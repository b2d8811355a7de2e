"""Draws faces, from the root of the repository:

python -m tools.draw_faces src/frugan/faces/data/drawn_faces.zip    # the set that ships, about a minute
python -m tools.draw_faces WORKSPACE --crowd 12 --faces 20          # other people, to pretrain on
"""

import argparse
from pathlib import Path

from tools.draw_faces.crowd import draw_crowd
from tools.draw_faces.shipped_set import write_shipped_set


def main() -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--crowd", type=int, metavar="PEOPLE")
    parser.add_argument("--faces", type=int, default=20, help="of each person of a crowd, on each side")
    parser.add_argument("--seed", type=int, default=1, help="of a crowd")
    given = parser.parse_args()
    if given.crowd is None:
        write_shipped_set(given.out)
    else:
        draw_crowd(given.out, given.crowd, given.faces, seed=given.seed)


if __name__ == "__main__":
    main()
