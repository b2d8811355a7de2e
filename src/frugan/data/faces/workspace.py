"""The facesets in a DeepFaceLab workspace, which is used as it is."""

from pathlib import Path

from frugan.data.faces.faceset_pak import PAK_NAME
from frugan.data.wording import shown
from frugan.errors import BadInput

SOURCES = {"src": "data_src", "dst": "data_dst"}
ALIGNED = "aligned"


def find_facesets(path: Path) -> dict[str, Path]:
    """Return where a workspace keeps its faces: "src" and "dst", each a folder that `open_faceset` opens.

    Args:
        path: the folder with data_src/aligned and data_dst/aligned in it.

    Raises:
        BadInput: one of them is missing.
    """
    where = shown(str(path))
    if not path.is_dir():
        raise BadInput(f"{where} is no folder; expected a DeepFaceLab workspace. Check the path.")
    found = {side: path / folder / ALIGNED for side, folder in SOURCES.items()}
    missing = [f"{folder}/{ALIGNED}" for side, folder in SOURCES.items() if not found[side].is_dir()]
    if missing:
        raise BadInput(
            f"{where} has no {' and no '.join(missing)}; looked there for aligned faces or {PAK_NAME}, as in a "
            "DeepFaceLab workspace. Give the workspace folder itself, or each folder: --data src=PATH --data dst=PATH."
        )
    return found
