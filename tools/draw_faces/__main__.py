"""Makes the set of drawn faces that ships; from the root of the repository, about a minute:

python -m tools.draw_faces src/frugan/data/faces/drawn_faces.zip
"""

import sys
from pathlib import Path

from tools.draw_faces.shipped_set import write_shipped_set

if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    write_shipped_set(Path(sys.argv[1]))
