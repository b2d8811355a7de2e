"""The drawn people on disk, as a DeepFaceLab workspace: faces to try things on, of nobody."""

from pathlib import Path

from frugan.api.defaults import FACES, SIDE_PIXELS
from frugan.api.progress import Progress
from frugan.data.faces.opencv import opencv
from frugan.data.unfinished import unfinished_folder
from frugan.errors import BadInput

SEED = 0
LEAST_SIDE, MOST_SIDE = 64, 1024


def draw_faces(
    out: Path, faces: int = FACES, side_pixels: int = SIDE_PIXELS, *, seed: int = SEED, progress: Progress | None = None
) -> Path:
    """Draw both people and write their aligned faces, whole or not at all; the defaults are the demo's faces.

    Args:
        out: the workspace to make, with data_src/aligned and data_dst/aligned in it; must not be there, or be empty.
        faces: of each person, at least 1.
        side_pixels: of the aligned pictures, 64 to 1024.
        seed: of the moments that they are drawn in, at least 0.
        progress: (done, all), over both people.

    Returns:
        The workspace.

    Raises:
        BadInput: a number out of range, `out` is there already, or OpenCV is missing; nothing is written then.
    """
    if faces < 1:
        raise BadInput(f"{faces} faces: expected at least 1 of each person")
    if not LEAST_SIDE <= side_pixels <= MOST_SIDE:
        raise BadInput(f"faces of {side_pixels} pixels: expected {LEAST_SIDE} to {MOST_SIDE}, such as {SIDE_PIXELS}")
    if seed < 0:
        raise BadInput(f"seed {seed}: expected at least 0")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out}: is there already; choose a new or empty folder for the drawn faces")
    opencv()
    from frugan.data.faces.drawn.drawn_faceset import draw_workspace  # noqa: PLC0415  (a large import)

    with unfinished_folder(out) as folder:
        draw_workspace(folder, faces, seed=seed, size=side_pixels, progress=progress)
    return out
